"""Plans as the engine writes them: the scheduler's own records as bytes, turned into PlanCommitted by whoever reads.

The engine copies a few hundred bytes of each plan instead of making an object for each lane and runner-up; a reader
makes the objects. Both sides agree through LAYOUTS: what the columns of each layout are, and what the numbers in them
mean. A layout is never changed once plans were written in it; when the scheduler's records change, the next number is
added here, and plans in the earlier layouts stay readable.
"""

from __future__ import annotations

import array
import dataclasses
import functools
import operator
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from service.journal.errors import UnknownLayout
from service.journal.records import (
    AlternativeRecord,
    LaneRecord,
    PackedPlan,
    PartsRecord,
    PlanCommitted,
    Record,
    ShapeRecord,
    decoder,
)

LITTLE_ENDIAN = sys.byteorder == "little"
"""Whether this machine's integers have the byte order of packed rows."""

Row = tuple[Any, ...]
GraphEntry = tuple[int, str, ShapeRecord]
"""A graph's place in the catalog, its label and its shape."""
Shapes = dict[int, tuple[ShapeRecord, str]]
"""Shape and label of graphs by their places."""
Columns = dict[str, list[Any]]
"""Values of each column of a table, by the column's name."""

_graphs_decoder = msgspec.msgpack.Decoder(list[GraphEntry])
SLOT = struct.Struct("<q")
NO_SOURCE = -1
MISFITS = (struct.error, LookupError, ValueError, StopIteration, msgspec.MsgspecError)
"""What reading a plan raises whose rows do not fit its layout."""


class Table:
    """Rows of 64-bit columns, named in their order, floats with a "*" behind the name; gives a choice of them.

    What the choice names last and the rows do not have, since it came later, is 0.0 in each row. `row_bytes`: the size
    of a row.
    """

    def __init__(self, columns: str, chosen: str) -> None:
        names, wanted = columns.split(), chosen.split()
        self.columns = tuple(names)
        codes = ["d" if name.endswith("*") else "q" for name in names]
        plain = [name.removesuffix("*") for name in names]
        self._reader = struct.Struct("<" + "".join(codes))
        there = [name for name in wanted if name in plain]
        self._choose: Callable[[Row], Row] = operator.itemgetter(*map(plain.index, there))
        self._later = tuple(name for name in wanted if name not in plain)
        assert wanted == [*there, *self._later], "what a layout does not have is chosen last"
        self._places = [(name, place, codes[place] == "d") for place, name in enumerate(plain) if name in wanted]
        self.row_bytes = self._reader.size

    def rows(self, data: bytes) -> Iterator[Row]:
        """The chosen columns of each row, in the order of the choice. Raises struct.error."""
        chosen = map(self._choose, self._reader.iter_unpack(data))
        if not self._later:
            return chosen
        zeros = (0.0,) * len(self._later)
        return (row + zeros for row in chosen)

    def by_column(self, data: bytes) -> Columns:
        """The chosen columns by name, each with its values of all rows. Raises ValueError for half a row."""
        if len(data) % self.row_bytes:
            raise ValueError(f"{len(data)} bytes are no rows of {self.row_bytes}")
        words = array.array("q", data)
        if not LITTLE_ENDIAN:
            words.byteswap()
        numbers = memoryview(words)
        floats = numbers.cast("B").cast("d")
        step = len(self.columns)
        found = {name: (floats if is_float else numbers)[at::step].tolist() for name, at, is_float in self._places}
        zeros = [0.0] * (len(data) // self.row_bytes)
        return {**found, **dict.fromkeys(self._later, zeros)}


_LANE = "slot generation prompt_tokens rows ceiling source expected_tokens"
_DETAIL = "role token_price delivery_price age_ms sigma_ms terminal_value value"
_CANDIDATE = (
    "graph following known barred needs_empty lanes score token_value delivery_value age_relief terminal_relief "
    "wait_cost horizon_ms logical_rows selected_ns observed_ns cost_state prompt_wait_relief decode_late_relief"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """One layout of packed plans: scheduler.layout's LANE, LANE_DETAIL and CANDIDATE, and what numbers stand for."""

    lane: Table
    detail: Table
    candidate: Table
    reasons: tuple[str, ...]
    roles: tuple[str, ...]
    sources: tuple[str, ...]
    cost_states: tuple[str, ...]
    barred: tuple[str, ...]


_LANES = Table("slot generation epoch rows ceiling prompt_tokens source expected_tokens*", _LANE)
_DETAILS = Table("role token_price* delivery_price* age_ms* sigma_ms* value* terminal_value*", _DETAIL)
_ROLES = ("prefill", "decode", "init", "restore", "vision", "snapshot", "terminal")
_SOURCES = ("learned", "copy")
_COST_STATES = ("unknown", "fresh", "stale")

LAYOUTS = {
    1: Layout(
        _LANES,
        _DETAILS,
        Table(
            "graph following known barred needs_empty lanes following_lanes first following_first served prompt_slot "
            "prompt_tokens following_prompt_slot following_prompt_tokens horizon_ns horizon_ms* score* token_value* "
            "delivery_value* age_relief* terminal_relief* wait_cost* logical_rows physical_rows hash selected_ns "
            "observed_ns cost_state",
            _CANDIDATE,
        ),
        reasons=("ordinary", "discovery", "timing_refresh", "acceptance_learning", "solo_prefill"),
        roles=_ROLES,
        sources=_SOURCES,
        cost_states=_COST_STATES,
        barred=("none", "pruned", "unmeasured", "pages"),
    ),
    2: Layout(
        _LANES,
        _DETAILS,
        Table(
            "graph following known barred needs_empty lanes following_lanes first following_first served prompts "
            "prompt_tokens following_prompts horizon_ns horizon_ms* score* token_value* delivery_value* age_relief* "
            "terminal_relief* prompt_wait_relief* decode_late_relief* wait_cost* logical_rows physical_rows hash "
            "selected_ns observed_ns cost_state",
            _CANDIDATE,
        ),
        reasons=("ordinary", "discovery", "timing_refresh", "acceptance_learning", "solo_prefill", "token_budget"),
        roles=_ROLES,
        sources=_SOURCES,
        cost_states=_COST_STATES,
        barred=("none", "pruned", "unmeasured", "pages", "cadence", "token_budget"),
    ),
}
LAYOUT = 2
"""The layout that this version writes."""


def decode_records(payload: bytes) -> list[Record]:
    """The records of one frame. Raises msgspec.DecodeError, UnicodeDecodeError, RecursionError, UnknownLayout."""
    return [unpack_plan(record) if isinstance(record, PackedPlan) else record for record in decoder.decode(payload)]


def decode_packed(payload: bytes) -> list[Record]:
    """As decode_records, but packed plans stay as they are. Whether they fit their layout is not looked at."""
    records: list[Record] = decoder.decode(payload)
    for record in records:
        if isinstance(record, PackedPlan):
            layout_of(record)
    return records


def layout_of(packed: PackedPlan) -> Layout:
    """The layout that the plan was written in. Raises UnknownLayout."""
    layout = LAYOUTS.get(packed.layout)
    if layout is None:
        raise UnknownLayout(
            f"plan {packed.fence} has layout {packed.layout} and this program knows {', '.join(map(str, LAYOUTS))}; "
            "read it with the version of Helios that wrote it"
        )
    return layout


def unpack_plan(packed: PackedPlan) -> PlanCommitted:
    """The plan as plan_committed would have made it. Raises UnknownLayout, also for rows that do not fit the layout."""
    layout = layout_of(packed)
    try:
        return _plan(packed, layout)
    except MISFITS as error:
        raise misfit(packed, error) from error


def misfit(packed: PackedPlan, error: Exception) -> UnknownLayout:
    """What to raise for one of MISFITS."""
    return UnknownLayout(f"plan {packed.fence} does not fit its layout {packed.layout}: {error}")


@functools.cache  # the few tables of LAYOUTS
def numbered(names: tuple[str, ...]) -> dict[int, str]:
    """What the numbers of a layout stand for. A negative one stands for nothing."""
    return dict(enumerate(names))


def _plan(packed: PackedPlan, layout: Layout) -> PlanCommitted:
    shapes = named_graphs(bytes(packed.shapes))
    slots = [slot for (slot,) in SLOT.iter_unpack(packed.slots)]
    name_of = dict(zip(dict.fromkeys(slots), packed.request_ids, strict=True))
    candidates = layout.candidate.rows(packed.candidates)
    row = next(candidates)  # columns as chosen in _CANDIDATE
    graph, following, known, _, _, lanes, score, *parts, logical_rows, selected_ns, observed_ns, state, _, _ = row
    timing_credit, timing_spent, timing_ordinary, credit, spent, ordinary, discovery = packed.ledgers
    kind, label = _following(shapes, following)
    return PlanCommitted(
        fence=packed.fence,
        committed_ns=packed.committed_ns,
        shape=shapes[graph][0],
        reason=numbered(layout.reasons)[packed.reason],
        score_kind="rate" if known else "work",
        score=score,
        log_scale=packed.log_scale,
        parts=_parts(known, parts, row[-2:]),
        selected_cost_ns=selected_ns,
        observation_age_ns=packed.planned_ns - observed_ns if selected_ns else None,
        cost_state=numbered(layout.cost_states)[state],
        active_decoders=packed.active_decoders,
        logical_rows=logical_rows,
        margin=packed.margin,
        candidates=packed.priced,
        exploration_credit_ms=packed.exploration_credit_ns / 1e6,
        timing_credit_ms=timing_credit,
        timing_spent_ms=timing_spent,
        timing_ordinary_ms=timing_ordinary,
        acceptance_credit_ms=credit,
        acceptance_spent_ms=spent,
        acceptance_ordinary_ms=ordinary,
        discovery_ms=discovery,
        queue_depth=packed.queue_depth,
        frame_slot=packed.frame_slot,
        policy_version=packed.policy_version,
        plan_us=packed.plan_ns / 1e3,
        following_kind=kind,
        following_shape=label,
        lanes=_lanes(packed, layout, name_of),
        alternatives=_alternatives(packed, layout, shapes, [name_of[slot] for slot in slots], candidates, lanes),
    )


@functools.lru_cache(4096)
def named_graphs(data: bytes) -> Shapes:
    """The graphs in a plan's `shapes`. Raises msgspec.MsgspecError, UnicodeDecodeError."""
    return {place: (shape, label) for place, label, shape in _graphs_decoder.decode(data)}


def _lanes(packed: PackedPlan, layout: Layout, name_of: dict[int, str]) -> list[LaneRecord]:
    roles, sources = numbered(layout.roles), numbered(layout.sources)
    return [
        LaneRecord(
            name_of[slot],
            slot,
            generation,
            roles[role],
            prompt_tokens,
            rows,
            ceiling,
            None if source == NO_SOURCE else sources[source],
            token_price,
            delivery_price,
            age_ms,
            sigma_ms,
            expected_tokens,
            terminal_value,
            value,
        )
        for (slot, generation, prompt_tokens, rows, ceiling, source, expected_tokens), (
            role, token_price, delivery_price, age_ms, sigma_ms, terminal_value, value
        ) in zip(layout.lane.rows(packed.lanes), layout.detail.rows(packed.details), strict=True)
    ]  # fmt: skip


def _alternatives(
    packed: PackedPlan, layout: Layout, shapes: Shapes, names: list[str], candidates: Iterator[Row], first: int
) -> list[AlternativeRecord]:
    """The candidates behind the submitted one, whose requests are the `first` of `names`."""
    waits = packed.queue_depth > 0
    bars, cost_states = numbered(layout.barred), numbered(layout.cost_states)
    made = []
    for rank, row in enumerate(candidates, 1):
        graph, following, known, barred_as, needs_empty, lanes, score, *parts, _, selected_ns, _, state, _, _ = row
        barred = bars[barred_as]
        if needs_empty == 1 and waits and barred == "none":
            barred = "needs_empty_window"
        kind, label = _following(shapes, following)
        made.append(
            AlternativeRecord(
                rank,
                shapes[graph][0],
                "rate" if known else "work",
                score,
                _parts(known, parts, row[-2:]),
                packed.log_scale,
                label,
                kind,
                lanes,
                names[first : first + lanes],
                selected_ns,
                cost_states[state],
                barred,
            )
        )
        first += lanes
    if first != len(names):
        raise ValueError(f"{len(names)} slots where the candidates have {first} lanes")
    return made


def _following(shapes: Shapes, graph: int) -> tuple[str | None, str | None]:
    """Kind and label of the graph that a candidate was scored with, if any."""
    if graph < 0:
        return None, None
    shape, label = shapes[graph]
    return shape.kind, label


def _parts(known: int, parts: list[Any], reliefs: Row) -> PartsRecord:
    token, delivery, relief, terminal, wait, horizon_ms = parts
    return PartsRecord(token, delivery, relief, terminal, wait, horizon_ms if known else None, *reliefs)
