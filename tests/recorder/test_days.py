"""Plans on PostgreSQL lie on the day of their commit, with all that belongs to them, whatever happens at midnight."""

from __future__ import annotations

import contextlib
import datetime as dt

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from service.journal.reader import Batch, JournalReader
from service.journal.records import PlanCommitted, RunStarted
from service.recorder import copying
from service.recorder.days import RunDays, date_of
from service.recorder.sql_sink import SqlSink
from service.store.database import open_database, read_transaction, write_transaction
from service.store.errors import StoreError
from service.store.partitions import (
    PARTITIONED,
    add_day,
    days_with_partitions,
    drop_day,
    has_partition,
    lock_for_dropping,
    partition_name,
    start_of,
)
from service.store.tables import metadata, plan_lanes, plan_minutes, plans, requests
from tests.recorder.crashing import Crash, crash_at

TODAY = dt.date(2026, 3, 2)
YESTERDAY = TODAY - dt.timedelta(days=1)
MIDNIGHT_NS = int(start_of(TODAY).timestamp()) * 1_000_000_000


@pytest.fixture
def postgresql(postgresql_url, monkeypatch):
    """A store whose recorder takes TODAY for today and finds no partition of these days."""
    monkeypatch.setattr(copying.PostgresqlWriter.__init__, "__defaults__", (lambda: TODAY,))
    engine = open_database(postgresql_url)
    empty(engine)
    yield engine
    empty(engine)
    engine.dispose()


def empty(engine):
    """No rows, and nothing left of the partitions of both days."""
    with write_transaction(engine) as connection:
        lock_for_dropping(connection)
        for table in PARTITIONED:
            for day in (YESTERDAY, TODAY):
                connection.exec_driver_sql(f"DROP TABLE IF EXISTS {partition_name(table, day)}")
        for table in metadata.sorted_tables:
            connection.execute(table.delete())


def frames(make, fences: int = 6):
    """A run whose third plan is the last before midnight; it ends, and is handed over, on the day after it."""
    made = make.story(fences)
    (start, *_), *_ = made
    assert isinstance(start, RunStarted)
    commits = [record for frame in made for record in frame if isinstance(record, PlanCommitted)]
    third = next(record for record in commits if record.fence == 3)
    wall_ns = MIDNIGHT_NS - 1_000_000 - (third.committed_ns - make.MONOTONIC_NS)
    made[0][0] = msgspec.structs.replace(start, wall_ns=wall_ns)
    return made


def days(engine):
    """(fence, day) of every row of the three tables, each with its count; and which partition it is in."""
    with read_transaction(engine) as connection:
        return {
            table: sorted(
                tuple(row)
                for row in connection.exec_driver_sql(
                    f"SELECT fence, recorded_on, CAST(CAST(tableoid AS regclass) AS text), count(*) FROM {table}"
                    " GROUP BY 1, 2, 3"
                )
            )
            for table in PARTITIONED
        }


def expected_days(fences: int = 6, partitioned: bool = True):
    def of(table, rows):
        found = []
        for fence in range(1, fences + 1):
            day = YESTERDAY if fence <= 3 else TODAY
            found.append((fence, day, f"{table}_{day:%Y%m%d}" if partitioned else f"{table}_default", rows))
        return found

    return {"plans": of("plans", 1), "plan_lanes": of("plan_lanes", 2), "plan_alternatives": of("plan_alternatives", 2)}


@pytest.mark.postgresql
@pytest.mark.parametrize("batch", [1, 4, 100])
def test_a_plan_that_ends_on_the_next_day_stays_on_the_day_of_its_commit(postgresql, store, tmp_path, make, batch):
    make.write_frames(tmp_path, frames(make))
    for engine in (postgresql, store):
        assert make.drain(engine, tmp_path, batch) == 0
    assert days(postgresql) == expected_days()
    third = make.rows(postgresql, plans)[2]
    assert third["outcome"] == "completed"
    assert third["committed_at"] < start_of(TODAY) < third["completed_at"]
    assert third["deliveries"] == 2
    assert make.contents(postgresql) == make.contents(store)


@pytest.mark.postgresql
def test_a_recorder_that_is_killed_around_midnight_stores_every_plan_once(postgresql, store, tmp_path, make):
    make.write_frames(tmp_path, frames(make, 4))
    make.drain(store, tmp_path, 2)
    expected = make.contents(store)
    for first in range(0, 30, 4):
        for stop in (first, first + 1, 7):
            with contextlib.suppress(Crash):
                make.drain(postgresql, tmp_path, 2, step=crash_at(stop))
        make.drain(postgresql, tmp_path, 2)
        assert days(postgresql) == expected_days(4), first
        assert make.contents(postgresql) == expected, first
        empty(postgresql)


@pytest.mark.postgresql
def test_the_same_plans_a_second_time_are_refused_on_whatever_day_they_come(postgresql, tmp_path, make):
    """Not by the offset but by their key: the day follows from the plan."""
    make.write_frames(tmp_path, frames(make, 4))
    make.drain(postgresql, tmp_path, close=False)
    with write_transaction(postgresql) as connection:
        connection.exec_driver_sql("DELETE FROM journal_offsets")
    reader = JournalReader(tmp_path)
    sink = SqlSink(postgresql, reader.journal_id)
    sink.resume()
    lost = 0
    while (item := reader.poll()) is not None:
        if isinstance(item, Batch) and any(isinstance(record, PlanCommitted) for record in item.records):
            lost += sink.deliver([item]).lost
    reader.close()
    assert lost == 4
    assert days(postgresql) == expected_days(4)


@pytest.mark.postgresql
def test_a_day_that_can_have_no_partition_costs_nothing_but_its_order(postgresql, store, tmp_path, make):
    """Somebody's row of the day lies in the default partition already, so that its partition cannot be made."""
    with write_transaction(postgresql) as connection:
        for day in (YESTERDAY, TODAY):
            connection.exec_driver_sql(
                "INSERT INTO plan_lanes SELECT 'other', 1, 0, 'q', 0, 'decode', 0, 0, 0, NULL, 0, 0, 0, 0, 0, 0, 0, 0,"
                f" 0, 0, false, NULL, '{day}'"
            )
            assert not add_day(connection, day)
    make.write_frames(tmp_path, frames(make))
    for engine in (postgresql, store):
        assert make.drain(engine, tmp_path, 2) == 0
    with write_transaction(postgresql) as connection:
        connection.execute(plan_lanes.delete().where(plan_lanes.c.run_id == "other"))
    assert days(postgresql) == expected_days(partitioned=False)
    assert make.contents(postgresql) == make.contents(store)


@pytest.mark.postgresql
def test_a_clock_that_went_wrong_gets_no_partition(postgresql, tmp_path, make):
    made = frames(make, 3)
    year_ns = 366 * 86_400_000_000_000
    made[0][0] = msgspec.structs.replace(made[0][0], wall_ns=made[0][0].wall_ns - 2 * year_ns)
    make.write_frames(tmp_path, made)
    with read_transaction(postgresql) as connection:
        before = days_with_partitions(connection)
    make.drain(postgresql, tmp_path)
    with read_transaction(postgresql) as connection:
        assert days_with_partitions(connection) == before
    assert {place for _, _, place, _ in days(postgresql)["plans"]} == {"plans_default"}


@pytest.mark.postgresql
def test_a_partition_made_in_a_batch_that_is_undone_is_made_again(postgresql, tmp_path, make):
    make.write_frames(tmp_path, frames(make, 3))

    def crash(name):
        if name == "offset":
            raise Crash

    reader = JournalReader(tmp_path)
    sink = SqlSink(postgresql, reader.journal_id, step=crash)
    reader.position = sink.resume()
    items = make.batches(tmp_path)
    reader.close()
    with pytest.raises(Crash):
        sink.deliver(items)
    with read_transaction(postgresql) as connection:
        assert not has_partition(connection, YESTERDAY)
    sink._step = lambda _name: None
    sink.deliver(items)
    assert {place for _, _, place, _ in days(postgresql)["plans"]} == {f"plans_{YESTERDAY:%Y%m%d}"}


@pytest.mark.postgresql
@pytest.mark.parametrize("how", ["dropped", "detached"])
def test_a_partition_that_goes_while_it_is_written_to_costs_one_attempt(postgresql, tmp_path, make, how):
    """Retention drops a day that is far behind, or an operator takes it away; what follows is stored all the same."""
    make.write_frames(tmp_path, frames(make, 6)[:8])  # three plans before midnight, and what belongs to them
    reader = JournalReader(tmp_path)
    sink = SqlSink(postgresql, reader.journal_id)
    reader.position = sink.resume()
    reader.close()
    items = make.batches(tmp_path)
    for item in items[:6]:  # the start, the requests, and two plans: the partition was looked for twice
        sink.deliver([item])
    name = partition_name("plans", YESTERDAY)
    with write_transaction(postgresql) as connection:
        if how == "dropped":
            lock_for_dropping(connection)
            assert drop_day(connection, YESTERDAY)
        else:
            connection.exec_driver_sql(f"ALTER TABLE plans DETACH PARTITION {name}; DROP TABLE {name}")
    with pytest.raises(StoreError):
        sink.deliver(items[6:])
    assert sink.deliver(items[6:]).lost == 0
    assert [row["fence"] for row in make.rows(postgresql, plans)] == [3]


@pytest.mark.postgresql
def test_rows_go_straight_into_their_partition_once_it_is_known(postgresql, tmp_path, make, monkeypatch):
    copies = []
    send = copying._send
    monkeypatch.setattr(copying, "_send", lambda one, copy, rows: (copies.append(copy), send(one, copy, rows)))
    make.write_frames(tmp_path, frames(make, 6))
    make.drain(postgresql, tmp_path, 1)
    into = [copy.text.split()[1] for copy in copies if copy.text.startswith("COPY plans")]
    day, next_day = partition_name("plans", YESTERDAY), partition_name("plans", TODAY)
    assert into == ["plans", day, day, "plans", next_day, next_day]
    of_plans = [copy for copy in copies if copy.text.startswith("COPY plans")]
    assert ["recorded_on" in copy.columns for copy in of_plans] == [name == "plans" for name in into]


@pytest.mark.postgresql
def test_an_end_reads_the_partitions_of_its_day_alone(postgresql, tmp_path, make, monkeypatch):
    """The statements that the writer sends, as the server plans them."""
    statements = []
    made = frames(make, 6)
    make.write_frames(tmp_path, made)

    @sa.event.listens_for(postgresql, "before_cursor_execute")
    def note(_connection, _cursor, statement, parameters, *_):
        statements.append((statement, parameters))

    make.drain(postgresql, tmp_path, 1, close=False)
    ends = [one for one in statements if one[0].startswith("WITH moved") and " plans SET" in one[0]]
    lookups = [one for one in statements if one[0].startswith("SELECT fence") and "IN (" in one[0]]
    assert ends
    assert lookups
    # The plan that a new recorder's first batch holds may be asked for everywhere.
    for statement, parameters in [*ends[4:], *lookups[4:]]:
        assert "recorded_on BETWEEN DATE" in statement
        if not parameters:
            continue
        with read_transaction(postgresql) as connection:
            plan = "\n".join(connection.exec_driver_sql("EXPLAIN " + statement, parameters).scalars())
        assert "20260302" in plan or "20260301" in plan
        assert "default" not in plan


@given(
    plans_=st.lists(st.tuples(st.integers(1, 60), st.integers(9000, 9005)), min_size=1, max_size=40),
    cuts=st.lists(st.integers(1, 6), min_size=1, max_size=12),
    asked=st.lists(st.integers(1, 60), min_size=1, max_size=6),
)
def test_the_days_of_known_plans_are_never_left_out(plans_, cuts, asked):
    """Against a dictionary of every plan. Fences rise; their days need not."""
    day_of = dict(plans_)
    fences = sorted(day_of)
    known, first_call = RunDays(), True
    noted = []
    for size in cuts * len(fences):
        some, fences = fences[:size], fences[size:]
        if not some:
            break
        known.note("run", some, [day_of[fence] for fence in some])
        noted.extend(some)
        if first_call:
            assert known.between("run", some) is None, "an earlier recorder may have stored such a plan"
        first_call = False
    found = known.between("run", asked)
    if found is not None:
        assert all(found[0] <= day_of[fence] <= found[1] for fence in asked if fence in noted)
        text = known.condition("run", asked)
        assert text == f" AND recorded_on BETWEEN DATE '{date_of(found[0])}' AND DATE '{date_of(found[1])}'"
    assert known.between("another", asked) is None
    assert known.condition("another", asked) == ""


def test_the_days_of_the_newest_plans_are_known_exactly():
    known = RunDays()
    known.note("run", [1, 2], [9000, 9000])
    known.note("run", [3, 4], [9000, 9001])
    assert known.between("run", [3]) == (9000, 9000)
    assert known.between("run", [4, 5]) == (9001, 9001)
    assert known.between("run", [3, 4]) == (9000, 9001)
    assert known.between("run", [2, 3]) is None
    assert known.between("run", [5]) is None
    known.note("next", [1], [9002])
    assert known.between("run", [4]) is None


def test_a_batch_over_midnight_counts_its_plans_by_minute(any_store, tmp_path, make):
    make.write_frames(tmp_path, frames(make))
    make.drain(any_store, tmp_path, 100)
    minutes = {row["minute"]: row["plans"] for row in make.rows(any_store, plan_minutes)}
    assert minutes == {start_of(TODAY) - dt.timedelta(minutes=1): 2, start_of(TODAY): 4}
    assert [row["output_tokens"] for row in make.rows(any_store, requests)] == [6, 6]
