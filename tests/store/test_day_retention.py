"""On PostgreSQL retention drops whole days, beside whoever reads and writes, and deletes plan by plan only the rest."""

from __future__ import annotations

import datetime as dt
import random

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sorted_days import sort_into_days

from service.recorder.retention import RETRY_S, Retention
from service.store import partitions, retention
from service.store.engines import open_database, read_transaction, write_transaction
from service.store.errors import StoreBusy
from service.store.partitions import (
    add_day,
    add_days_ahead,
    analyze_new_days,
    days_with_partitions,
    has_partition,
    partition_name,
)
from service.store.retention import Limits, Pruner, prune_step
from service.store.size import bytes_of_day, used_bytes
from service.store.tables import decision_log, metadata, plan_lanes, plans, requests
from tests.store.test_retention import (
    DETAILS,
    NOW,
    add,
    add_run,
    days_ago,
    keys,
    log_rows,
    plain_keys,
    prune,
    rows,
)

pytestmark = pytest.mark.postgresql


@pytest.fixture
def engine(postgresql_url):
    made = open_database(postgresql_url)
    empty(made)
    yield made
    empty(made)
    made.dispose()


def empty(engine):
    """No rows, and no partition of a day before NOW."""
    with write_transaction(engine) as connection:
        for table in metadata.tables.values():
            connection.execute(table.delete())
        partitions.lock_for_dropping(connection)
        for day in days_with_partitions(connection):
            if day <= NOW.date():
                assert partitions.drop_day(connection, day)


def days(engine):
    with read_transaction(engine) as connection:
        return [day for day in days_with_partitions(connection) if day < NOW.date()]


def day(ago):
    """The day that began so many days before NOW, which is midnight."""
    return (NOW - dt.timedelta(days=ago)).date()


@settings(max_examples=7, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32), days_kept=st.integers(1, 8), batch=st.integers(1, 40), kept=st.integers(0, 5),
    hour=st.integers(0, 23), sorted_=st.booleans(),
)  # fmt: skip
def test_plans_stay_or_go_by_the_rule_and_no_day_is_left_empty(engine, seed, days_kept, batch, kept, hour, sorted_):
    empty(engine)
    random_ = random.Random(seed)
    for number in range(2):
        ages = sorted((random_.uniform(0, 9) for _ in range(random_.randint(1, 20))), reverse=True)
        in_flight = {fence for fence in range(1, len(ages) + 1) if random_.random() < 0.1}
        add_run(engine, f"run-{number}", ages, ended=random_.random() < 0.5, in_flight=in_flight)
    if sorted_:
        sort_into_days(engine)
    now = NOW + dt.timedelta(hours=hour)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "PLANS_KEPT", kept)
        expected = plain_keys(engine, Limits(days_kept, 0), NOW)  # by whole days: as if it were midnight
        steps = prune(engine, Limits(days_kept, 0), now, batch)
    for table in DETAILS:
        assert keys(engine, table) == expected
    old = [day for day in days(engine) if day < (NOW - dt.timedelta(days=days_kept)).date()]
    with read_transaction(engine) as connection:
        for one in old:  # a day that is left holds a plan that stays
            assert connection.exec_driver_sql(f"SELECT count(*) FROM {partition_name('plans', one)}").scalar_one()
    assert all(step.plans <= batch for step in steps if step.dropped is None)


def test_a_day_goes_in_one_step_however_many_plans_it_holds(engine):
    add_run(engine, "r", [3.5] * 40 + [0.5] * 10)
    add(engine, decision_log, *log_rows("r", 1, 41, last=50))
    request = {"run_id": "r", "request_id": "q", "arrived_at": days_ago(3.5), "finished_at": days_ago(3.4)}
    add(engine, requests, request)
    sort_into_days(engine)
    assert days(engine) == [day(4), day(1)]
    first, *more = prune(engine, Limits(2, 0), batch=5)
    assert (first.plans, first.dropped) == (40, day(4))
    assert sum(step.plans for step in more) == 0
    assert days(engine) == [day(1)]
    assert rows(engine, requests) == []
    assert min(row["first_fence"] for row in rows(engine, decision_log)) == 41
    assert {fence for _, fence in keys(engine, plan_lanes)} == set(range(41, 51))


@pytest.mark.parametrize("limits", [Limits(1, 0), Limits(0, 1)])
def test_a_day_with_a_plan_that_stays_loses_the_others_one_by_one(engine, monkeypatch, limits):
    monkeypatch.setattr(retention, "used_bytes", lambda _: 10)
    add_run(engine, "r", [5.5] * 6, in_flight={2})
    sort_into_days(engine)
    steps = prune(engine, limits, batch=2)
    assert [step.plans for step in steps] == [2, 2, 1, 0]
    assert keys(engine) == {("r", 2)}
    assert days(engine) == [day(6)]


def in_plans(monkeypatch, a_plan=100):
    """Sizes are counted in plans, so that expectations are exact."""

    def of_day(connection, one):
        return a_plan * connection.exec_driver_sql(f"SELECT count(*) FROM {partition_name('plans', one)}").scalar_one()

    count = sa.select(sa.func.count()).select_from(plans)
    monkeypatch.setattr(retention, "used_bytes", lambda connection: a_plan * connection.execute(count).scalar_one())
    monkeypatch.setattr(retention, "bytes_of_day", of_day)


def test_by_size_days_go_that_must_go_whole_and_the_next_one_in_part(engine, monkeypatch):
    in_plans(monkeypatch)
    add_run(engine, "r", [5.5] * 10 + [4.5] * 10 + [3.5] * 10 + [0.5] * 5)
    request = {"run_id": "r", "arrived_at": days_ago(5), "finished_at": days_ago(5)}
    add(engine, requests, *({**request, "request_id": f"q{number}"} for number in range(12)))
    sort_into_days(engine)
    pruner, steps = Pruner(engine, Limits(0, 1200)), []
    pruner._batch = 4
    while not steps or not steps[-1].is_nothing:
        steps.append(pruner.step(NOW))
        pruner._batch = 4
    assert [step.dropped for step in steps if step.dropped] == [day(6), day(5)]
    assert keys(engine) == {("r", fence) for fence in range(25, 36)}  # 15 are left by days, four less by one step
    assert days(engine) == [day(4), day(1)]
    assert rows(engine, requests) == []


def test_the_days_that_the_recorder_writes_to_are_not_dropped_however_small_the_limit(engine, monkeypatch):
    in_plans(monkeypatch)
    add_run(engine, "r", [1.5] * 3 + [0.5] * 3)
    sort_into_days(engine)
    steps = prune(engine, Limits(0, 1), now=NOW - dt.timedelta(hours=1), batch=2)
    assert all(step.dropped is None for step in steps)
    assert keys(engine) == set()
    assert days(engine) == [day(2), day(1)]


def test_a_reader_puts_dropping_off_and_the_writer_goes_on(engine):
    """Another connection's transaction has read the tables; retention gives up at once and comes back."""
    add_run(engine, "r", [5.5] * 3 + [0.5])
    sort_into_days(engine)
    one = Retention(engine, Limits(2, 0), _Never(), lambda: NOW)
    with engine.connect() as reader:
        reader.exec_driver_sql("SELECT count(*) FROM plans")
        with pytest.raises(StoreBusy):
            prune_step(engine, Limits(2, 0), NOW, 10)
        assert one.turn() == RETRY_S
        add_run(engine, "writer", [0.4])
    assert days(engine) == [day(6), day(1)]
    assert len(keys(engine)) == 5
    assert one.turn() != RETRY_S
    assert days(engine) == [day(1)]
    assert keys(engine) == {("r", 4), ("writer", 1)}


def test_a_writer_in_the_middle_of_its_transaction_is_waited_for_and_then_left(engine):
    add_run(engine, "r", [5.5] * 3)
    sort_into_days(engine)
    with engine.connect() as writer, writer.begin():
        writer.exec_driver_sql("INSERT INTO plan_alternatives SELECT * FROM plan_alternatives WHERE false")
        with pytest.raises(StoreBusy):
            prune_step(engine, Limits(2, 0), NOW, 10)
    assert len(keys(engine)) == 3
    assert prune_step(engine, Limits(2, 0), NOW, 10).dropped == day(6)


class _Never:
    """A stop that nobody asks for."""

    def wait(self, _seconds):
        raise AssertionError("the tests call turn() themselves")


def test_a_view_on_a_partition_keeps_it_and_its_plans_go_one_by_one(engine):
    add_run(engine, "r", [5.5] * 3)
    sort_into_days(engine)
    with write_transaction(engine) as connection:
        connection.exec_driver_sql(f"CREATE VIEW mine AS SELECT fence FROM {partition_name('plans', day(6))}")
    try:
        assert [step.plans for step in prune(engine, Limits(2, 0), batch=2)] == [2, 1, 0]
        assert days(engine) == [day(6)]
    finally:
        with write_transaction(engine) as connection:
            connection.exec_driver_sql("DROP VIEW mine")


def test_a_partition_is_made_while_others_write_and_not_while_one_reads_the_default(engine):
    with engine.connect() as other, other.begin():
        other.exec_driver_sql("LOCK TABLE ONLY plans, ONLY plan_lanes, ONLY plan_alternatives IN ROW EXCLUSIVE MODE")
        with write_transaction(engine) as connection:
            assert add_day(connection, day(3))
    with engine.connect() as other:
        other.exec_driver_sql("SELECT count(*) FROM plans_default")
        with write_transaction(engine) as connection:
            assert not add_day(connection, day(2))
            assert connection.exec_driver_sql("SHOW lock_timeout").scalar_one() == "10s"
            assert not has_partition(connection, day(2))
        assert not add_days_ahead(engine, day(2), 1)
    assert add_days_ahead(engine, day(2), 1)
    assert {day(2), day(1)} <= set(days(engine))
    with write_transaction(engine) as connection:
        assert add_day(connection, day(2)), "which is there"
        assert connection.exec_driver_sql("SHOW lock_timeout").scalar_one() == "10s"


def test_the_recorder_makes_days_ahead_once_a_day_and_again_while_it_cannot(engine, monkeypatch, caplog):
    clock = [NOW - dt.timedelta(days=20)]
    asked = []

    def make_days(_engine, today):
        asked.append((today, clock[0].second))
        return len(asked) > 1

    monkeypatch.setattr("service.recorder.retention.add_days_ahead", make_days)
    one = Retention(engine, Limits(0, 0), _Never(), lambda: clock[0])
    for _ in range(15):
        one.turn()
        clock[0] += dt.timedelta(seconds=2)
    clock[0] += dt.timedelta(days=1)
    one.turn()
    assert asked == [(day(20), 0), (day(20), 10), (day(19), 30)]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_day_s_share_of_the_size_is_that_of_its_rows(engine):
    with write_transaction(engine) as connection:
        connection.exec_driver_sql(f"TRUNCATE {', '.join(metadata.tables)}")
    add_run(engine, "r", [5.5] * 300 + [0.5] * 900, lanes=8)
    sort_into_days(engine)
    with write_transaction(engine) as connection:
        for table in DETAILS:
            connection.exec_driver_sql(f"ANALYZE {table.name}")
        connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
    with read_transaction(engine) as connection:
        used, first, second = used_bytes(connection), bytes_of_day(connection, day(6)), bytes_of_day(connection, day(1))
    assert 0.2 * used < first < 0.3 * used
    assert 0.9 * used < first + second <= used


def test_plans_of_a_day_are_counted_by_their_fences(engine):
    add_run(engine, "a", [5.5] * 7)
    add_run(engine, "b", [5.4] * 2 + [0.5] * 3)
    sort_into_days(engine)
    with read_transaction(engine) as connection:
        assert [partitions.count_plans(connection, day(ago)) for ago in (6, 1)] == [9, 3]


def explained(engine, query):
    with read_transaction(engine) as connection:
        text = str(query.compile(engine, compile_kwargs={"literal_binds": True}))
        return "\n".join(connection.exec_driver_sql("EXPLAIN " + text).scalars())


def test_a_question_about_a_time_reads_the_days_that_it_is_about(engine):
    """By committed_at alone, of which the partitions say what they hold; rows without a day are looked at always."""
    add_run(engine, "r", [5.5, 4.5, 3.5, 2.5, 0.5])
    sort_into_days(engine)
    between = sa.select(plans.c.fence).where(plans.c.committed_at >= days_ago(4), plans.c.committed_at < days_ago(3))
    plan = explained(engine, between)
    assert partition_name("plans", day(4)) in plan
    assert not any(partition_name("plans", day(ago)) in plan for ago in (6, 5, 3, 1))
    with read_transaction(engine) as connection:
        assert connection.execute(between).scalars().all() == [3]


def test_a_new_day_gets_statistics_as_soon_as_it_has_rows(engine):
    with write_transaction(engine) as connection:
        assert add_day(connection, day(4))
    name = partition_name("plans", day(4))
    with write_transaction(engine) as connection:
        connection.exec_driver_sql(f"ALTER TABLE {name} SET (autovacuum_enabled = off)")

    def known_rows():
        with read_transaction(engine) as connection:
            return connection.exec_driver_sql("SELECT reltuples FROM pg_class WHERE relname = %s", (name,)).scalar_one()

    analyze_new_days(engine)
    assert known_rows() == -1
    add_run(engine, "r", [3.5] * 7)
    sort_into_days(engine)
    analyze_new_days(engine)
    assert known_rows() == 7
