"""Packed plans made of random numbers, ways to spoil them, and the rows that staging makes of records."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from service.journal.packed import LAYOUT, LAYOUTS, Table, unpack_plan
from service.journal.records import (
    LaneOutcome,
    OutputPublished,
    PackedPlan,
    PlanCompleted,
    Record,
    ShapeRecord,
    encoder,
)
from service.recorder.clock import RunClock
from service.recorder.errors import blames_record
from service.recorder.rows import RowBuilder
from service.recorder.staging import Staging, StagingChecks
from service.recorder.values import Values

MS = 1_000_000
GRAPHS = [
    (0, "decode:B8", ShapeRecord("decode", 8, 0, 1, 8, 0, False, "none")),
    (3, "speculative:B4", ShapeRecord("speculative", 4, 3, 4, 9, 0, True, "device")),
    (7, "prefill:C64", ShapeRecord("prefill", 1, 0, 1, 0, 64, False, "none")),
    (9, "mixed:B8:R4", ShapeRecord("mixed", 8, 0, 1, 8, 64, False, "none", 4)),
]


def pack(table: Table, rows: Sequence[dict[str, Any]]) -> bytes:
    """Rows of a table; columns that a row does not name are 0."""
    names = [name.removesuffix("*") for name in table.columns]
    code = struct.Struct("<" + "".join("d" if name.endswith("*") else "q" for name in table.columns))
    return b"".join(code.pack(*[row.get(name, 0) for name in names]) for row in rows)


def packed_plan(
    random_: random.Random, fence: int, requests: list[str], at_ns: int, layout: int = LAYOUT
) -> PackedPlan:
    """A plan for these requests with up to four runners-up, whatever its numbers are, in one of the layouts."""
    written = LAYOUTS[layout]
    number = lambda: random_.choice([0.0, -0.0, 1.5, -2.25, 1e-300, 1e300])  # noqa: E731 - used a dozen times
    slots = {name: slot for slot, name in enumerate(requests)}
    cohorts = [requests, *(random_.sample(requests, random_.randrange(len(requests) + 1)) for _ in range(4))]
    cohorts = cohorts[: random_.randrange(1, 6)]
    candidates = [
        {
            **{name: number() for name in CANDIDATE_FLOATS},
            "graph": random_.choice(GRAPHS)[0], "following": random_.choice([-1, 0, 3, 7]),
            "known": random_.randrange(2), "needs_empty": random_.randrange(2),
            "barred": random_.randrange(len(written.barred)), "lanes": len(cohort),
            "logical_rows": random_.randrange(100), "cost_state": random_.randrange(3),
            "selected_ns": random_.choice([0, 20 * MS, 20 * MS + 1]), "observed_ns": random_.choice([-1, at_ns - 5]),
            "horizon_ms": random_.choice([21.5, math.nan, math.inf]),
        }
        for cohort in cohorts
    ]  # fmt: skip
    named = [slots[name] for cohort in cohorts for name in cohort]
    lanes = [
        {
            "slot": slots[name], "generation": random_.randrange(9), "rows": random_.randrange(9),
            "ceiling": random_.randrange(9), "prompt_tokens": random_.randrange(99),
            "source": random_.randrange(-1, 2), "expected_tokens": number(),
        }
        for name in random_.sample(requests, len(requests))
    ]  # fmt: skip
    details = [{**{name: number() for name in DETAIL_FLOATS}, "role": random_.randrange(7)} for _ in requests]
    return PackedPlan(
        layout, fence, at_ns, at_ns - MS, 55_500, random_.randrange(len(written.reasons)), fence % 2,
        random_.randrange(3), 1, number(),
        random_.choice([None, 0.5, math.nan, -math.inf]), 6, len(requests), random_.randrange(10**9),
        tuple(number() for _ in range(7)), msgspec.Raw(encoder.encode(GRAPHS)), list(requests),
        struct.pack(f"<{len(named)}q", *named), pack(written.lane, lanes), pack(written.detail, details),
        pack(written.candidate, candidates),
    )  # fmt: skip


NEWEST = LAYOUTS[max(LAYOUTS)]
CANDIDATE_FLOATS = [name.removesuffix("*") for name in NEWEST.candidate.columns if name.endswith("*")]
DETAIL_FLOATS = [name.removesuffix("*") for name in NEWEST.detail.columns if name.endswith("*")]


def plan_ends(random_: random.Random, fence: int, lanes: int, at_ns: int) -> list[Record]:
    """What follows a plan: no end or one, in any order and of any lanes; no publication or two."""
    records: list[Record] = []
    outcomes = [LaneOutcome(lane, *(random_.randrange(4) for _ in range(5))) for lane in range(lanes)]
    if random_.random() < 0.3:
        outcomes = random_.sample([*outcomes, LaneOutcome(lanes, 1, 1, 1, 1, 1)], random_.randrange(lanes + 2))
    if random_.random() < 0.8:
        outcome = random_.choice(["completed", "completed", "failed"])
        done = PlanCompleted(fence, at_ns + 1, at_ns + 9 * MS, outcome, 7 * MS + 1, 8 * MS, 0, 7 * MS, outcomes)
        records += [done] * random_.choice([1, 1, 2])
    for ms in range(random_.randrange(3)):
        some = random_.sample(range(lanes + 1), random_.randrange(lanes + 2))
        records.append(OutputPublished(fence, at_ns + (10 + ms) * MS, random_.choice([some, list(range(lanes))])))
    return records


def with_number(data: bytes, table: Table, random_: random.Random, column: str, value: float) -> bytes:
    """The rows with one number of a column changed, if they have it."""
    names = [name.removesuffix("*") for name in table.columns]
    if column not in names:
        return data
    row = random_.randrange(len(data) // table.row_bytes)
    start = row * table.row_bytes + 8 * names.index(column)
    code = "<d" if f"{column}*" in table.columns else "<q"
    return data[:start] + struct.pack(code, value) + data[start + 8 :]


def _in_table(field: str, column: str, value: float) -> Callable[[PackedPlan, random.Random], PackedPlan]:
    def spoil(plan: PackedPlan, random_: random.Random) -> PackedPlan:
        table = getattr(LAYOUTS[plan.layout], field.removesuffix("s"))
        data = getattr(plan, field)
        changed = with_number(data, table, random_, column, value) if data else data
        return msgspec.structs.replace(plan, **{field: changed})

    return spoil


def _field(name: str, value: Any) -> Callable[[PackedPlan, random.Random], PackedPlan]:
    def spoil(plan: PackedPlan, _random: random.Random) -> PackedPlan:
        return msgspec.structs.replace(plan, **{name: value(plan) if callable(value) else value})

    return spoil


def _graphs(**changes: Any) -> msgspec.Raw:
    place, label, shape = GRAPHS[0]
    label = changes.pop("label", label)
    return msgspec.Raw(encoder.encode([(place, label, msgspec.structs.replace(shape, **changes)), *GRAPHS[1:]]))


TABLES = ("lanes", "details", "slots")
SPOILS: dict[str, Callable[[PackedPlan, random.Random], PackedPlan]] = {
    **{f"lane {value}": _in_table("lanes", "expected_tokens", value) for value in (math.nan, math.inf)},
    **{f"detail {name}": _in_table("details", name, math.nan) for name in DETAIL_FLOATS},
    **{f"candidate {name}": _in_table("candidates", name, -math.inf) for name in CANDIDATE_FLOATS},
    **{f"role {value}": _in_table("details", "role", value) for value in (-1, 7)},
    **{f"source {value}": _in_table("lanes", "source", value) for value in (-2, 2)},
    **{f"slot {value}": _in_table("lanes", "slot", value) for value in (0, 99)},
    **{f"generation {value}": _in_table("lanes", "generation", value) for value in (-(2**63), 2**63 - 1)},
    **{f"graph {value}": _in_table("candidates", "graph", value) for value in (-1, 5)},
    **{f"following {value}": _in_table("candidates", "following", value) for value in (-9, 5)},
    **{f"barred {value}": _in_table("candidates", "barred", value) for value in (-1, 6)},
    **{f"cost state {value}": _in_table("candidates", "cost_state", value) for value in (-1, 3)},
    **{f"candidate's lanes {value}": _in_table("candidates", "lanes", value) for value in (-1, 0, 9)},
    **{f"reason {value}": _field("reason", value) for value in (-1, 6)},
    **{f"scale {value}": _field("log_scale", value) for value in (math.nan, math.inf)},
    **{f"priced {value}": _field("priced", value) for value in (-1, 2**31, 2**63)},
    **{f"time {value}": _field("committed_ns", value) for value in (-1, 2**63 - 1)},
    **{f"planned {value}": _field("planned_ns", value) for value in (-(2**63), 2**63)},
    **{f"cut {name}": _field(name, lambda p, name=name: getattr(p, name)[:-8]) for name in TABLES},
    "cut candidates": _field("candidates", lambda plan: plan.candidates[:-8]),
    "no candidates": _field("candidates", b""),
    "one lane less": _field("lanes", lambda plan: plan.lanes[NEWEST.lane.row_bytes :]),
    "one name less": _field("request_ids", lambda plan: plan.request_ids[:-1]),
    "a ledger": _field("ledgers", (0.0, 0.0, 0.0, math.nan, 0.0, 0.0, 0.0)),
    "a name with NUL": _field("request_ids", lambda plan: ["a\0b", *plan.request_ids[1:]]),
    "a long name": _field("request_ids", lambda plan: ["x" * 501, *plan.request_ids[1:]]),
    "no shapes": _field("shapes", msgspec.Raw(encoder.encode([]))),
    "broken shapes": _field("shapes", msgspec.Raw(b"\xc1")),
    "a label with NUL": _field("shapes", _graphs(label="a\0b")),
    "a long kind": _field("shapes", _graphs(kind="k" * 501)),
    "a wide shape": _field("shapes", _graphs(batch_capacity=2**31)),
    "many prompt rows": _field("shapes", _graphs(prompt_rows=2**31)),
}  # fmt: skip


class NotingWriter:
    """A StoreWriter that keeps what it is given."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.written: dict[str, list[Any]] = {}

    def prepare(self, connection: object) -> None:
        pass

    def insert(self, _connection: object, table: str, rows: Sequence[Any]) -> None:
        self.written[table] = sorted(rows, key=repr)

    def change(self, _connection: object, name: str, rows: Sequence[Any]) -> None:
        self.written[f"change {name}"] = sorted(rows, key=repr)

    def add_minutes(self, _connection: object, rows: Sequence[Any]) -> None:
        self.written["minutes"] = sorted(rows, key=repr)


def written_rows(records: Sequence[Record], values: Values, wall_ns: int) -> dict[str, str] | None:
    """Every row that staging writes of these records, to the bit and type; None when one of them is at fault."""
    writer = NotingWriter(values)
    try:
        staging = Staging(RowBuilder("run-1", RunClock(wall_ns, 0), values), records)
        staging.write(None, writer, StagingChecks(values.null))  # type: ignore[arg-type]  # no end comes late
    except Exception as error:
        if not blames_record(error):
            raise
        return None
    return {name: repr(rows) for name, rows in writer.written.items()}


def unpacked(records: Sequence[Record]) -> list[Record]:
    """The records with plain plans in place of packed ones. Raises UnknownLayout."""
    return [unpack_plan(record) if isinstance(record, PackedPlan) else record for record in records]
