"""Arrivals: who comes when, with how many tokens, sharing which prefix, in which session."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from scheduler.records import RequestSpec
from scheduler.simulation.errors import SimulationError
from scheduler.simulation.tables import Row, read_rows

BLOCK_TOKENS = 512
"""Tokens of one block of `block_ids_512`."""
NS_PER_S = 1_000_000_000
LARGEST_S = 1e9
"""The latest arrival and the longest think time, 31 years: simulated times stay far below 2**62 ns."""


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace. Counts are tokens.

    `time_ns`: arrival in an open loop; for a later turn of a session it is None and the turn arrives `think_ns` after
    the turn before it has finished. `shared_prefix_tokens`: how many of the prompt's first tokens an earlier request
    had too, when nothing was ever forgotten. `prefix`: what the sharers have in common ("" when nothing is said).
    `blocks`: ids of the prompt's blocks of 512 tokens, in order; equal ids mean equal tokens up to that block's end.
    `patience_ns`: when its client leaves, from its arrival on, if the answer is not complete by then; None: never.
    `spec`: how a real engine admitted this request, cached tokens and cuts included; it is admitted in the same way.
    """

    index: int
    time_ns: int | None
    prompt_tokens: int
    output_tokens: int
    shared_prefix_tokens: int = 0
    prefix: str = ""
    blocks: tuple[int, ...] = ()
    session: str = ""
    think_ns: int = 0
    client: str = ""
    patience_ns: int | None = None
    spec: RequestSpec | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """`arrivals` in the order of the trace; `next_turn[i]` is the index of the turn that follows arrival i.

    `empty_outputs`: rows that asked for no output token and were raised to one.
    """

    arrivals: tuple[Arrival, ...]
    next_turn: Mapping[int, int]
    empty_outputs: int = 0


def parse_arrivals(text: str, name: str, rate_scale: float = 1.0, requests: int | None = None) -> Workload:
    """The workload of an arrivals CSV: time_s, prompt_tokens, output_tokens and what else the file knows.

    `rate_scale` F divides arrival times, so F = 2 doubles the rate; think times stay. `requests`: only the first so
    many rows. No arrival may lie, scaled, beyond LARGEST_S. Rows are taken in order of time. Raises SimulationError.
    """
    if not 0 < rate_scale < float("inf"):
        raise SimulationError(f"the rate scale is {rate_scale:g}; it must be a finite number above 0")
    rows = list(read_rows(text, name, ("time_s", "prompt_tokens", "output_tokens")))
    rows.sort(key=lambda row: row.number("time_s"))
    last_of_session: dict[str, int] = {}
    next_turn: dict[int, int] = {}
    arrivals = []
    empty = 0
    for index, row in enumerate(rows[:requests]):
        session = row.text("session_id")
        before = last_of_session.get(session) if session else None
        if session:
            last_of_session[session] = index
        if before is not None:
            next_turn[before] = index
        arrival = _arrival(row, index, rate_scale, follows=before is not None)
        empty += row.count("output_tokens") == 0
        arrivals.append(arrival)
    return Workload(tuple(arrivals), next_turn, empty)


def _arrival(row: Row, index: int, rate_scale: float, follows: bool) -> Arrival:
    session = row.text("session_id")
    group = row.text("prefix_group")
    return Arrival(
        index=index,
        time_ns=None if follows else _time_ns(row, rate_scale),
        prompt_tokens=row.count("prompt_tokens", 1),
        output_tokens=max(1, row.count("output_tokens")),
        shared_prefix_tokens=row.count("shared_prefix_tokens") if row.text("shared_prefix_tokens") else 0,
        prefix=f"session {session}" if session else f"group {group}" if group else "",
        blocks=_blocks(row),
        session=session,
        think_ns=round(row.number("think_s", maximum=LARGEST_S) * NS_PER_S) if row.text("think_s") else 0,
        client=row.text("client_id"),
        patience_ns=_patience_ns(row),
    )


def _patience_ns(row: Row) -> int | None:
    return round(row.number("patience_s", maximum=LARGEST_S) * NS_PER_S) if row.text("patience_s") else None


def _time_ns(row: Row, rate_scale: float) -> int:
    time_s = row.number("time_s") / rate_scale
    if time_s > LARGEST_S:
        raise row.wrong("time_s", f"at most {LARGEST_S:g} s when divided by the rate scale, {rate_scale:g}")
    return round(time_s * NS_PER_S)


def _blocks(row: Row) -> tuple[int, ...]:
    """`0;14-27` -> 0, 14, 15, ..., 27."""
    blocks: list[int] = []
    for part in filter(None, row.text("block_ids_512").split(";")):
        first, _, last = part.partition("-")
        if not (first.isascii() and first.isdigit() and (last or "0").isascii() and (last or "0").isdigit()):
            raise row.wrong("block_ids_512", "ids and ranges such as 0;14-27")
        low, high = int(first), int(last or first)
        if not low <= high < low + 1_000_000:
            raise row.wrong("block_ids_512", "ids and rising ranges such as 0;14-27")
        blocks.extend(range(low, high + 1))
    return tuple(blocks)
