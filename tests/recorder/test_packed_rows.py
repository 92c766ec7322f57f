"""The rows of packed plans are those of the plain records, whatever the plans hold."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.journal.errors import UnknownLayout
from service.journal.packed import LAYOUTS, decode_packed, decode_records, unpack_plan
from service.journal.reader import Batch, Gap, JournalReader, Position
from service.journal.records import (
    LaneOutcome,
    PackedPlan,
    PlanCommitted,
    PlanCompleted,
    Record,
    encoder,
)
from service.recorder.clock import RunClock
from service.recorder.gauges import record_ns
from service.recorder.packed_rows import KNOWN_VALUES, PackedRows
from service.recorder.plan_ends import PlanEnds
from service.recorder.rows import RowBuilder
from service.recorder.sql_sink import SqlSink
from service.recorder.values import postgresql_values, sqlite_values
from service.store import tables
from service.store.database import write_transaction
from service.store.tables import plans, trace_gaps
from tests.recorder.packed_plans import MS, SPOILS, packed_plan, plan_ends, unpacked, with_number, written_rows
from tests.recorder.test_write_paths import cut, everything

NAMES = ["request-1", "é𝄞", "\\u0000", "d"]
ANY_FIXTURE = list(HealthCheck)
VALUES = [pytest.param(sqlite_values(), id="sqlite"), pytest.param(postgresql_values(), id="postgresql")]


def work(random_: random.Random, fences: int) -> list[Record]:
    """Plans of changing requests, each with its end somewhere behind it, as a journal gives them back."""
    records: list[Record] = []
    for fence in range(1, fences + 1):
        requests = random_.sample(NAMES, random_.randrange(1, len(NAMES) + 1)) if random_.random() < 0.5 else NAMES
        at_ns = fence * 20 * MS
        records.append(packed_plan(random_, fence, requests, at_ns, random_.choice(list(LAYOUTS))))
        records += plan_ends(random_, fence, len(requests), at_ns)
    return decode_packed(encoder.encode(records))


def rows_both_ways(records: list[Record], values, make) -> tuple[dict | None, dict | None]:
    """What is written of packed plans, and of the plain records."""
    try:
        plain = written_rows(unpacked(records), values, make.WALL_NS)
    except UnknownLayout:
        plain = None
    return written_rows(records, values, make.WALL_NS), plain


@pytest.mark.parametrize("values", VALUES)
@settings(max_examples=40, deadline=None, suppress_health_check=ANY_FIXTURE)
@given(seed=st.integers(0, 2**32), fences=st.integers(1, 6), packed=st.integers(0, 63))
def test_rows_of_packed_plans_are_those_of_the_plain_records(make, values, seed, fences, packed):
    records = work(random.Random(seed), fences)
    written, plain = rows_both_ways(records, values, make)
    assert written == plain is not None
    mixed = [
        record if not isinstance(record, PackedPlan) or packed >> record.fence & 1 else unpacked([record])[0]
        for record in records
    ]
    written = written_rows(mixed, values, make.WALL_NS)
    assert written is not None
    for name in plain.keys() - {"minutes"}:  # its sums have another order
        assert written[name] == plain[name]


@pytest.mark.parametrize("values", VALUES)
def test_whatever_is_wrong_with_a_plan_both_ways_refuse_or_store_it_alike(make, values):
    refused = set()
    for seed, (name, spoil) in itertools.product(range(3), SPOILS.items()):
        random_ = random.Random(seed)
        records = work(random_, 3)
        at = [index for index, record in enumerate(records) if isinstance(record, PackedPlan)][seed]
        records[at] = spoil(records[at], random_)
        written, plain = rows_both_ways(records, values, make)
        assert written == plain, (name, seed)
        refused |= {name} if plain is None else set()
    assert refused >= {
        "a ledger", "cut lanes", "role -1", "source -2", "graph 5", "a name with NUL", "scale nan", "one name less",
        "no candidates", "broken shapes", "many prompt rows", "barred 6", "candidate decode_late_relief",
    }  # fmt: skip


@pytest.mark.parametrize("values", VALUES)
def test_outcomes_that_look_like_those_of_the_next_plan_stay_with_their_own(make, values):
    records: list[Record] = []
    for fence, numbers in ((1, [0, 1, 0]), (2, [1])):
        records.append(packed_plan(random.Random(fence), fence, ["a", "b"], fence * MS))
        outcomes = [LaneOutcome(number, 10 * fence, fence, place) for place, number in enumerate(numbers)]
        records.append(PlanCompleted(fence, fence * MS, fence * MS, "completed", MS, MS, 0, MS, outcomes))
    written, plain = rows_both_ways(records, values, make)
    assert written == plain is not None


@settings(max_examples=6, deadline=None, suppress_health_check=ANY_FIXTURE)
@given(
    seed=st.integers(0, 2**32),
    places=st.lists(st.integers(0, 99), max_size=4),
    bad=st.sampled_from(["", "a ledger", "a long name"]),
)
def test_a_store_holds_the_same_of_both(make, any_store, seed, places, bad):
    random_ = random.Random(seed)
    records = [make.started(), *(make.arrived(name) for name in NAMES), *work(random_, 5)]
    if bad:
        at = next(index for index, record in enumerate(records) if isinstance(record, PackedPlan))
        records[at] = SPOILS[bad](records[at], random_)
    answers = []
    for read in (records, unpacked(records)):
        with write_transaction(any_store) as connection:
            for table in tables.metadata.tables.values():
                connection.execute(table.delete())
        sink = SqlSink(any_store, "0" * 32)
        sink.resume()
        for number, part in enumerate(cut(read, places)):
            place = Position(1, number, number)
            sink.deliver([Batch(part, place, place, "run-1", make.WALL_NS, make.MONOTONIC_NS)])
        answers.append(everything(any_store))
    assert len(answers[0]["gaps"]) == bool(bad)
    for name, answer in answers[1].items():
        assert answers[0][name] == answer, name


def test_a_plan_of_the_first_layout_has_one_prompt_row_and_no_reliefs():
    """Its shapes were written without prompt rows, its candidates without the two reliefs."""
    packed = packed_plan(random.Random(1), 1, ["a", "b"], MS, layout=1)
    shapes = msgspec.msgpack.decode(packed.shapes)
    before = msgspec.Raw(encoder.encode([[place, label, shape[:8]] for place, label, shape in shapes]))
    plan = unpack_plan(msgspec.structs.replace(packed, shapes=before))
    assert plan.alternatives
    for scored in (plan, *plan.alternatives):
        assert (scored.parts.prompt_wait_relief, scored.parts.decode_late_relief) == (0.0, 0.0)
        assert scored.shape.prompt_rows == 1


def test_a_plan_of_the_second_layout_has_its_reliefs_bars_and_reason():
    packed = packed_plan(random.Random(3), 1, ["a", "b"], MS, layout=2)
    table = LAYOUTS[2].candidate
    rows = [packed.candidates[at : at + table.row_bytes] for at in range(0, len(packed.candidates), table.row_bytes)]
    for column, value in (("prompt_wait_relief", 1.5), ("decode_late_relief", -2.5), ("graph", 9), ("barred", 5)):
        rows = [with_number(row, table, random.Random(0), column, value) for row in rows]
    data = b"".join(rows)
    plan = unpack_plan(msgspec.structs.replace(packed, candidates=data, reason=5))
    assert plan.reason == "token_budget"
    assert plan.alternatives
    for scored in (plan, *plan.alternatives):
        assert (scored.parts.prompt_wait_relief, scored.parts.decode_late_relief) == (1.5, -2.5)
        assert scored.shape.prompt_rows == 4
    assert {other.barred_by for other in plan.alternatives} == {"token_budget"}


def test_columns_are_every_column_of_the_table_in_its_order(make):
    build = RowBuilder("run-1", RunClock(make.WALL_NS, 0), sqlite_values())
    random_ = random.Random(1)
    rows = PackedRows(build, [packed_plan(random_, 1, ["a", "b"], MS), packed_plan(random_, 2, ["b"], 2 * MS)])
    ends = PlanEnds(build, rows.lanes, [None, None], [(), ()])
    for name, columns in rows.tables(ends).items():
        assert list(columns) == tables.metadata.tables[name].columns.keys(), name
    assert {
        column.name for table in (plans, tables.plan_lanes, tables.plan_alternatives) for column in table.columns
    } > KNOWN_VALUES


def test_a_reader_that_leaves_plans_packed_knows_the_same_fences(tmp_path, make):
    random_ = random.Random(2)
    frames = [[make.started()], *([packed_plan(random_, fence, NAMES, fence * MS)] for fence in range(1, 5))]
    writer = make.JournalWriter(tmp_path, run_id="run-1", segment_bytes=64 << 10)
    for fence, frame in enumerate(frames):
        writer.append(frame, fence)
    writer.close()
    path = tmp_path / "segment-00000001.hj"
    data = bytearray(path.read_bytes())
    data[data.index(encoder.encode(frames[3])) + 40] ^= 1
    path.write_bytes(data)
    found = []
    for decode, kind in ((decode_packed, PackedPlan), (decode_records, PlanCommitted)):
        reader = JournalReader(tmp_path, decode=decode)
        items = []
        while (item := reader.poll()) is not None:
            items.append(item)
        reader.close()
        plans_read = [record for item in items if isinstance(item, Batch) for record in item.records[-1:]][1:]
        assert {type(record) for record in plans_read} == {kind}
        found.append(
            (
                [(record.fence, record_ns(record)) for record in plans_read],
                [item for item in items if isinstance(item, Gap)],
            )
        )
    assert found[0] == found[1]
    assert [fence for fence, _ in found[0][0]] == [1, 2, 4]
    (gap,) = found[0][1]
    assert (gap.from_fence, gap.to_fence) == (3, 3)


def test_a_plan_of_another_version_is_a_gap_that_says_so(any_store, tmp_path, make):
    plan = msgspec.structs.replace(packed_plan(random.Random(3), 2, ["a"], MS), layout=7)
    make.write_frames(tmp_path, [[make.started()], [make.plan(1, ["a"])], [plan], [make.plan(3, ["a"], 9)]])
    assert make.drain(any_store, tmp_path) == 1
    (gap,) = make.rows(any_store, trace_gaps)
    assert "has layout 7" in gap["reason"]
    assert [row["fence"] for row in make.rows(any_store, plans)] == [1, 3]
