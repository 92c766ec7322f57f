"""Both write paths store the same: what a plain twin stores, and the same of whatever records a journal can hold."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_minutes import assert_minutes_equal_plans

from service.journal.reader import Batch, Position
from service.journal.records import Record, RunStarted, decoder, encoder
from service.recorder.sql_sink import SqlSink
from service.store.database import open_database, read_transaction, write_transaction
from service.store.queries import get_plan, list_plans, list_requests, list_runs
from service.store.rollups import device_percentiles
from service.store.tables import metadata, plan_lanes, plans, requests, trace_gaps
from tests.recorder.crashing import Crash, crash_at
from tests.recorder.plain_rows import PlainTables

ANY_FIXTURE = list(HealthCheck)

TEXTS = ("", "\0", "a\0b", "\\u0000", '"\\', "é𝄞\ufffe", "\x7f\x1b", "x" * 501, "𝄞" * 126, "y" * 100_000)
INTEGERS = (0, -1, 2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63))
FLOATS = (math.nan, math.inf, -math.inf, -0.0, 1e308, -1e308, 5e-324, 0.1)


def batch(records: list[Record], number: int, make) -> Batch:
    """Records as a reader gives them: what msgpack made of them."""
    read = decoder.decode(encoder.encode(records))
    run_id = "run-1"
    return Batch(read, Position(1, number, number), Position(1, number + 1, number + 1), run_id, make.WALL_NS,
                 make.MONOTONIC_NS)  # fmt: skip


def deliver(engine: sa.Engine, parts: list[list[Record]], make, **options) -> int:
    """Each part in a transaction of its own. Returns how many records were lost."""
    sink = SqlSink(engine, "0" * 32, **options)
    position = sink.resume()
    done = 0 if position is None else position.offset
    return sum(sink.deliver([batch(part, number, make)]).lost for number, part in enumerate(parts) if number >= done)


def empty(engine: sa.Engine) -> None:
    with write_transaction(engine) as connection:
        for table in metadata.tables.values():
            connection.execute(table.delete())


def stored(engine: sa.Engine, table: sa.Table, *key: str) -> dict:
    with read_transaction(engine) as connection:
        rows = [dict(row) for row in connection.execute(sa.select(table)).mappings()]
    return {tuple(row[name] for name in key): row for row in rows}


def everything(engine: sa.Engine) -> dict:
    """Every table by its key, and what the lists answer. Causes of refusals are the databases' own words."""
    found: dict = {}
    for table in metadata.sorted_tables:
        if table.name not in {"trace_gaps", "journal_offsets"}:
            names = [column.name for column in table.primary_key]
            found[table.name] = stored(engine, table, *names) if names else sorted(
                tuple(row.values()) for row in stored(engine, table, *table.columns.keys()).values()
            )  # fmt: skip
    gaps = stored(engine, trace_gaps, "id").values()
    found["gaps"] = [(gap["run_id"], gap["from_fence"], gap["to_fence"], gap["reason"].split(":")[0]) for gap in gaps]
    for answer in (list_plans, list_requests):
        found[answer.__name__] = answer(engine, limit=1000).items
    found["list_runs"] = list_runs(engine)
    found["one"] = [get_plan(engine, row["run_id"], row["fence"]) for row in found["list_plans"]]
    found["percentiles"] = device_percentiles(engine)
    return found


def journal(make, seed: int, fences: int = 8) -> Iterator[Record]:
    """A run's records: requests come and go, two plans are in flight, some ends arrive twice or belong to nothing."""
    random_ = random.Random(seed)
    yield make.started()
    yield make.policy()
    running: list[str] = []
    waiting: list[tuple[int, int]] = []
    for fence in range(1, fences + 1):
        now = 50 * fence
        if (len(running) < 4 and random_.random() < 0.8) or not running:
            running.append(f"request-{fence}")
            yield make.arrived(running[-1], now, prefix_key=random_.choice([None, "key"]))
            yield make.admitted(running[-1], now + 1)
        offered = random_.randrange(3)
        lanes = [msgspec.structs.replace(make.lane(name), offered_tokens=offered) for name in running]
        shape = random_.choice([make.SHAPE, make.PREFILL])
        yield msgspec.structs.replace(
            make.plan(fence, running, now + 2, lanes=lanes, margin=random_.choice([None, 0.5])), shape=shape
        )
        waiting.append((fence, len(running)))
        if len(waiting) == 2:
            yield from ends(make, random_, *waiting.pop(0), now)
        if random_.random() < 0.3:
            yield make.finished(running.pop(0), now + 45, now + 44)
    if random_.random() < 0.5:
        yield make.completed(fences + 5, 2)


def ends(make, random_: random.Random, fence: int, lanes: int, now: int) -> Iterator[Record]:
    outcome = random_.choice(["completed", "completed", "failed"])
    done = make.completed(fence, lanes + random_.choice([0, 0, 1]), now + 10, outcome)
    done = msgspec.structs.replace(done, lanes=random_.sample(done.lanes, len(done.lanes)))
    yield from [done] * random_.choice([1, 1, 2])
    some = random_.sample(range(lanes + 1), random_.randrange(lanes + 1))
    if some:
        yield make.OutputPublished(fence, make.at(now + 20), some)


def cut(records: list[Record], places: list[int]) -> list[list[Record]]:
    edges = [0, *sorted({place % len(records) for place in places} - {0}), len(records)]
    return [records[start:end] for start, end in itertools.pairwise(edges)]


@settings(max_examples=40, deadline=None, suppress_health_check=ANY_FIXTURE)
@given(seed=st.integers(0, 2**32), places=st.lists(st.integers(0, 99), max_size=8))
def test_rows_are_those_of_the_plain_twin_however_records_are_cut(make, any_store, seed, places):
    empty(any_store)
    records = list(journal(make, seed))
    assert deliver(any_store, cut(records, places), make) == 0
    twin = PlainTables(make)
    for record in records:
        twin.apply(record)
    for table, key, expected in (
        (requests, ("request_id",), {(name,): row for name, row in twin.requests.items()}),
        (plans, ("fence",), {(fence,): row for fence, row in twin.plans.items()}),
        (plan_lanes, ("fence", "lane"), twin.lanes),
    ):
        found = stored(any_store, table, *key)
        assert found.keys() == expected.keys()
        for place, row in expected.items():
            assert {name: found[place][name] for name in row} == row, (table.name, place)
    assert_minutes_equal_plans(any_store)


def spoil(value: object, number: int, optional: bool = False) -> object:
    """A value that its column may not be able to hold, of a type that its field can."""
    if isinstance(value, bool) or value is None:
        return value
    pool = TEXTS if isinstance(value, str) else INTEGERS if isinstance(value, int) else FLOATS
    return pool[number % len(pool)]


def spoiled(record: msgspec.Struct, draws: Iterator[int]) -> msgspec.Struct:
    """The record with one value changed, somewhere in it."""
    names = [name for name in record.__struct_fields__ if getattr(record, name) not in (None, [], {})]
    name = names[next(draws) % len(names)]
    value = getattr(record, name)
    if isinstance(value, msgspec.Struct):
        value = spoiled(value, draws)
    elif isinstance(value, list):
        place = next(draws) % len(value)
        item = value[place]
        changed = spoiled(item, draws) if isinstance(item, msgspec.Struct) else spoil(item, next(draws))
        value = [*value[:place], changed, *value[place + 1 :]]
    elif isinstance(value, dict):
        value = {**value, TEXTS[next(draws) % len(TEXTS)]: TEXTS[next(draws) % len(TEXTS)]}
    else:
        value = spoil(value, next(draws))
    return msgspec.structs.replace(record, **{name: value})


SPOILS = st.lists(st.tuples(st.integers(0, 99), st.lists(st.integers(0, 99), min_size=8, max_size=8)), max_size=6)


def spoil_some(records: list[Record], spoils: list[tuple[int, list[int]]]) -> list[Record]:
    records = list(records)
    for place, draws in spoils:
        record = records[place % len(records)]
        changed = spoiled(record, iter(draws))
        records = [changed if other is record else other for other in records]  # an end that arrives again is the same
    return records


@pytest.mark.postgresql
@settings(max_examples=25, deadline=None, suppress_health_check=ANY_FIXTURE)
@given(seed=st.integers(0, 2**32), places=st.lists(st.integers(0, 99), max_size=4), spoils=SPOILS)
def test_both_databases_answer_the_same_whatever_the_records_hold(make, store, postgresql_url, seed, places, spoils):
    records = spoil_some(list(journal(make, seed)), spoils)
    answers, lost = [], []
    for engine in (store, open_database(postgresql_url)):
        empty(engine)
        lost.append(deliver(engine, cut(records, places), make))
        answers.append(everything(engine))
        assert_minutes_equal_plans(engine)
    engine.dispose()
    assert lost[0] == lost[1] == len(answers[0]["gaps"])
    for name, answer in answers[0].items():
        assert answers[1][name] == answer, name


@settings(max_examples=25, deadline=None, suppress_health_check=ANY_FIXTURE)
@given(
    seed=st.integers(0, 2**32), places=st.lists(st.integers(0, 99), max_size=4), spoils=SPOILS,
    crashes=st.lists(st.integers(0, 60), min_size=1, max_size=5),
)  # fmt: skip
def test_a_crash_while_bad_records_are_set_aside_changes_nothing(make, any_store, seed, places, spoils, crashes):
    parts = cut(spoil_some(list(journal(make, seed)), spoils), places)
    empty(any_store)
    lost = deliver(any_store, parts, make)
    whole = everything(any_store)
    empty(any_store)
    for stop in crashes:
        try:
            deliver(any_store, parts, make, step=crash_at(stop))
        except Crash:
            continue
    deliver(any_store, parts, make)
    again = everything(any_store)
    assert again == whole
    assert len(again["gaps"]) == lost


def test_a_run_whose_start_cannot_be_stored_still_has_a_row(any_store, make):
    bad = msgspec.structs.replace(make.started(), catalog_digest="a\0b", wall_ns=2**64 - 1)
    assert isinstance(bad, RunStarted)
    assert deliver(any_store, [[bad, make.plan(1, ["a"])], [make.ended(reason="failed: \0")]], make) == 1
    (run,) = list_runs(any_store)
    assert (run["host"], run["end_reason"]) == ("unknown", "failed: \ufffd")
    assert len(list_plans(any_store).items) == 1
