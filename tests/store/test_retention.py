"""What retention deletes against a plain rule over all rows, on both databases."""

from __future__ import annotations

import datetime as dt
import itertools
import random

import pytest
import sqlalchemy as sa
from factories import fill_store
from factory_cookbook import filled_row
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.store import retention
from service.store.engines import open_database, read_transaction, write_transaction
from service.store.errors import StoreBusy
from service.store.retention import Limits, Pruner, consecutive, plans_to_delete, prune_step
from service.store.size import used_bytes
from service.store.tables import (
    decision_log,
    engine_runs,
    metadata,
    plan_alternatives,
    plan_lanes,
    plan_minutes,
    plans,
    policy_versions,
    requests,
    trace_gaps,
)

NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
DETAILS = (plans, plan_lanes, plan_alternatives)
NOTHING_LOST = Limits(0, 0)
ANY_FIXTURE = [HealthCheck.function_scoped_fixture]


def rows(engine, table):
    with read_transaction(engine) as connection:
        return [dict(row) for row in connection.execute(sa.select(table)).mappings()]


def keys(engine, table=plans):
    return {(row["run_id"], row["fence"]) for row in rows(engine, table)}


def days_ago(days):
    return NOW - dt.timedelta(days=days)


def add(engine, table, *values):
    with write_transaction(engine) as connection:
        connection.execute(table.insert(), [filled_row(table, one) for one in values])


def add_run(engine, run_id, ages, *, ended=True, in_flight=(), lanes=2):
    """A run with a plan for each age in days, from fence 1; each plan has lanes, an alternative and a row of log."""
    run = {"run_id": run_id, "started_at": days_ago(max(ages)), "ended_at": NOW if ended else None, "settings": {}}
    add(engine, engine_runs, run)
    keys_ = [{"run_id": run_id, "fence": fence} for fence in range(1, len(ages) + 1)]
    outcomes = ["in_flight" if key["fence"] in in_flight else "completed" for key in keys_]
    ends = zip(keys_, ages, outcomes, strict=True)
    add(engine, plans, *({**key, "committed_at": days_ago(age), "outcome": outcome} for key, age, outcome in ends))
    add(engine, plan_lanes, *({**key, "lane": lane, "request_id": "q"} for key in keys_ for lane in range(lanes)))
    add(engine, plan_alternatives, *({**key, "rank": 1, "request_ids": []} for key in keys_))


def prune(engine, limits, now=NOW, batch=7, most=1000):
    """Step until nothing is left to delete; returns the steps."""
    steps = []
    for _ in range(most):
        steps.append(prune_step(engine, limits, now, batch))
        if steps[-1].is_nothing:
            return steps
    raise AssertionError("it does not end")


def plain_keys(engine, limits, now):
    """The plans that stay, by the rule in words: those that are young, in flight, or the last of an open run."""
    all_plans = rows(engine, plans)
    open_runs = {run["run_id"] for run in rows(engine, engine_runs) if run["ended_at"] is None}
    newest = {run: max(p["fence"] for p in all_plans if p["run_id"] == run) for run in {p["run_id"] for p in all_plans}}
    return {
        (p["run_id"], p["fence"])
        for p in all_plans
        if p["outcome"] == "in_flight"
        or p["committed_at"] >= now - dt.timedelta(days=limits.days)
        or (p["run_id"] in open_runs and p["fence"] > newest[p["run_id"]] - retention.PLANS_KEPT)
    }


@settings(max_examples=15, suppress_health_check=ANY_FIXTURE)
@given(seed=st.integers(0, 2**32), days=st.integers(1, 12), batch=st.integers(1, 40), kept=st.integers(0, 5))
def test_whole_plans_stay_or_go_by_the_rule_however_steps_are_cut(any_store, seed, days, batch, kept):
    random_ = random.Random(seed)
    with write_transaction(any_store) as connection:
        for table in metadata.tables.values():
            connection.execute(table.delete())
    for number in range(3):
        ages = sorted((random_.uniform(0, 12) for _ in range(random_.randint(1, 20))), reverse=True)
        in_flight = {fence for fence in range(1, len(ages) + 1) if random_.random() < 0.15}
        add_run(any_store, f"run-{number}", ages, ended=random_.random() < 0.5, in_flight=in_flight)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "PLANS_KEPT", kept)
        limits = Limits(days, 0)
        expected, before = plain_keys(any_store, limits, NOW), keys(any_store)
        steps = prune(any_store, limits, batch=batch)
    for table in DETAILS:
        assert keys(any_store, table) == expected
    assert len(rows(any_store, plan_lanes)) == 2 * len(expected)
    assert sum(step.plans for step in steps) == len(before) - len(expected)
    assert all(step.plans <= batch for step in steps)


def test_a_step_that_is_cut_off_deletes_nothing(any_store, monkeypatch):
    add_run(any_store, "run-1", [9, 8, 7])
    monkeypatch.setattr(retention, "_delete_log", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prune_step(any_store, Limits(1, 0), NOW, 2)
    for table in DETAILS:
        assert len(keys(any_store, table)) == 3


def test_requests_go_when_they_have_ended_and_are_old(any_store):
    ends = {"old": (9, 8), "long": (9, 1), "running": (9, None), "young": (1, 1)}
    add(
        any_store,
        requests,
        *(
            {"run_id": "r", "request_id": name, "arrived_at": days_ago(came), "finished_at": went and days_ago(went)}
            for name, (came, went) in ends.items()
        ),
    )
    prune(any_store, Limits(5, 0))
    assert {row["request_id"] for row in rows(any_store, requests)} == {"long", "running", "young"}


def test_minutes_stay_twelve_times_as_long_and_runs_policy_and_gaps_for_good(any_store):
    fill_store(any_store, plans=20, requests=3)
    add(any_store, plan_minutes, *({"run_id": "r", "minute": days_ago(age)} for age in (61, 59, 1)))
    kept = {table: rows(any_store, table) for table in (engine_runs, policy_versions, trace_gaps)}
    with write_transaction(any_store) as connection:
        connection.execute(engine_runs.update().values(ended_at=NOW))
        connection.execute(plans.update().values(outcome="completed"))
    prune(any_store, Limits(5, 0), now=NOW)
    assert keys(any_store) == set()
    assert {row["minute"] for row in rows(any_store, plan_minutes)} == {days_ago(59), days_ago(1)}
    assert {table: len(rows(any_store, table)) for table in kept} == {
        table: len(found) for table, found in kept.items()
    }


def log_rows(run_id, *checkpoints, last):
    """A run's decision log: one row of calls for each plan, and a checkpoint before each of these fences."""
    call, found = 0, []
    for fence in range(1, last + 1):
        if fence in checkpoints:
            found.append({"first_call": call, "first_fence": fence, "last_fence": fence - 1, "is_checkpoint": True})
            call += 1
        found.append({"first_call": call, "first_fence": fence, "last_fence": fence, "is_checkpoint": False})
        call += 1
    return [{"run_id": run_id, "calls": 1, "blob": b"x", **row} for row in found]


@pytest.mark.parametrize(("old", "first"), [(0, 1), (1, 1), (3, 1), (4, 5), (5, 5), (7, 5), (9, 10), (10, 10)])
def test_the_log_keeps_the_checkpoint_that_the_oldest_plan_is_re_executed_from(any_store, old, first):
    """Checkpoints lie before plans 1, 5 and 10 of twelve; the first `old` plans go."""
    add_run(any_store, "r", [9.0] * old + [1.0] * (12 - old), ended=False)
    add(any_store, decision_log, *log_rows("r", 1, 5, 10, last=12))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "PLANS_KEPT", 0)
        prune(any_store, Limits(5, 0), batch=3)
    left = sorted(rows(any_store, decision_log), key=lambda row: row["first_call"])
    assert (left[0]["is_checkpoint"], left[0]["first_fence"]) == (True, first)
    assert [row["first_call"] for row in left] == list(range(left[0]["first_call"], 15))


def test_a_run_s_log_goes_with_its_last_plan_unless_the_run_goes_on(any_store, monkeypatch):
    monkeypatch.setattr(retention, "PLANS_KEPT", 0)
    for run_id, ended in (("over", True), ("open", False)):
        add_run(any_store, run_id, [9.0] * 6, ended=ended)
        add(any_store, decision_log, *log_rows(run_id, 1, 5, last=6))
    prune(any_store, Limits(5, 0))
    assert {row["run_id"] for row in rows(any_store, decision_log)} == {"open"}
    assert min(row["first_fence"] for row in rows(any_store, decision_log)) == 5


def test_the_oldest_plans_go_until_the_rows_fit(any_store, monkeypatch):
    """The size is counted in plans here, so that the expectation is exact."""
    monkeypatch.setattr(retention, "used_bytes", lambda connection: 100 * len(_fences(connection)))
    add_run(any_store, "r", [2 - fence / 100 for fence in range(1, 41)])
    add(any_store, requests, {"run_id": "r", "request_id": "q", "arrived_at": days_ago(3), "finished_at": days_ago(3)})
    assert plans_to_delete(any_store, Limits(0, 1500), NOW) == 25
    steps = prune(any_store, Limits(0, 1500), batch=5)
    assert keys(any_store) == {("r", fence) for fence in range(26, 41)}
    assert [step.used_bytes for step in steps] == [4000, 3500, 3000, 2500, 2000, 1500]
    assert rows(any_store, requests) == []


def test_a_long_log_of_plans_that_are_gone_goes_too_once_the_rows_fit(any_store, monkeypatch):
    """More rows of the log than the few that go with each batch of plans, and no limit of age."""
    monkeypatch.setattr(retention, "used_bytes", lambda connection: 100 * len(_fences(connection)))
    for run_id, age in (("first", 3.0), ("second", 1.0)):
        add_run(any_store, run_id, [age] * 60)
        add(any_store, decision_log, *log_rows(run_id, 1, 30, last=60))
    prune(any_store, Limits(0, 6000), batch=60)
    assert {run for run, _ in keys(any_store)} == {"second"}
    assert [row["run_id"] for row in rows(any_store, decision_log)] == ["second"] * 62


def _fences(connection):
    return connection.execute(sa.select(plans.c.fence)).scalars().all()


def test_a_limit_that_only_protected_plans_exceed_deletes_nothing_of_them(any_store, monkeypatch):
    monkeypatch.setattr(retention, "used_bytes", lambda connection: 2)
    add_run(any_store, "open", [3, 2, 1], ended=False)
    add_run(any_store, "over", [3, 2, 1], in_flight={2})
    prune(any_store, Limits(0, 1))
    assert keys(any_store) == {("open", 1), ("open", 2), ("open", 3), ("over", 2)}


def test_without_limits_nothing_goes(any_store):
    add_run(any_store, "r", [4000, 1])
    assert prune(any_store, NOTHING_LOST)[0].is_nothing
    assert len(keys(any_store)) == 2


@pytest.mark.postgresql
def test_one_process_deletes_at_a_time(postgresql_url):
    engine = open_database(postgresql_url)
    try:
        add_run(engine, "r", [9, 8])
        with engine.connect() as other, other.begin():
            other.exec_driver_sql(f"SELECT pg_advisory_xact_lock({retention._ADVISORY_LOCK})")
            assert prune_step(engine, Limits(1, 0), NOW, 10).is_nothing
        assert prune_step(engine, Limits(1, 0), NOW, 10).plans == 2
    finally:
        engine.dispose()


@pytest.mark.postgresql
def test_a_row_that_somebody_holds_is_waited_for_half_a_second_and_left(postgresql_url):
    engine = open_database(postgresql_url)
    try:
        add_run(engine, "r", [9, 8])
        with engine.connect() as other, other.begin():
            other.exec_driver_sql("SELECT * FROM plans FOR UPDATE")
            with pytest.raises(StoreBusy):
                prune_step(engine, Limits(1, 0), NOW, 10)
        assert len(keys(engine, plan_lanes)) == 2
        assert prune_step(engine, Limits(1, 0), NOW, 10).plans == 2
    finally:
        engine.dispose()


@given(fences=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 12)), unique=True))
def test_ranges_hold_exactly_their_keys(fences):
    ranges = consecutive(fences)
    assert sorted((run, fence) for run, first, last in ranges for fence in range(first, last + 1)) == sorted(fences)
    assert all((run, last + 1) != (other, first) for (run, _, last), (other, first, _) in itertools.pairwise(ranges))


def fill_large(engine, count=3000):
    """Into files that hold nothing else: the tests before left dead rows in PostgreSQL's."""
    if engine.dialect.name == "postgresql":
        with write_transaction(engine) as connection:
            connection.exec_driver_sql(f"TRUNCATE {', '.join(metadata.tables)}")
    add_run(engine, "r", [1.0] * count, lanes=8)


def test_the_size_of_the_rows_is_that_of_the_files_when_nothing_was_deleted(any_store, store_url):
    fill_large(any_store)
    with write_transaction(any_store) as connection:
        found, real = measured(connection)
    assert 0.8 * real < found < 1.2 * real


def test_deleting_half_gives_half_back(any_store):
    fill_large(any_store)
    with write_transaction(any_store) as connection:
        before, _ = measured(connection)
        for table in DETAILS:
            connection.execute(table.delete().where(table.c.fence <= 1500))
    with write_transaction(any_store) as connection:
        after, _ = measured(connection)
    assert 0.4 * before < after < 0.65 * before


def measured(connection):
    """used_bytes, and what the database itself says of its files."""
    if connection.dialect.name == "sqlite":
        pages, size = (
            connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("page_count", "page_size")
        )
        return used_bytes(connection), pages * size
    for table in DETAILS:
        connection.exec_driver_sql(f"ANALYZE {table.name}")
    connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
    names = ", ".join(f"'{name}'" for name in metadata.tables)
    total = (
        "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class AS c LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid"
        f" JOIN unnest(ARRAY[{names}]) AS name ON CAST(name AS regclass) IN (c.oid, i.inhparent)"
    )
    return used_bytes(connection), int(connection.exec_driver_sql(total).scalar_one())


def test_a_limit_on_the_rows_size_is_kept_and_not_undercut(any_store):
    """The real sizes, in steps as the recorder makes them."""
    fill_large(any_store)
    with write_transaction(any_store) as connection:
        before, _ = measured(connection)
    prune(any_store, Limits(0, before // 2), batch=100)
    assert 0.3 * 3000 < len(keys(any_store)) < 0.65 * 3000
    with write_transaction(any_store) as connection:
        after, _ = measured(connection)
    assert 0.4 * before < after < 0.65 * before


def test_batches_grow_and_shrink_towards_the_time_of_a_step(store, monkeypatch):
    batches = []
    held = iter((0.001, 0.001, retention.STEP_S, 0.5, 0.5, 0.5, 0.001))

    def step(_engine, _limits, _now, batch, *_):
        batches.append(batch)
        return retention.Pruned(plans=1, held_s=next(held))

    monkeypatch.setattr(retention, "prune_step", step)
    pruner = Pruner(store, Limits(1, 0))
    for took in (0.001, 0.001, retention.STEP_S, 0.5, 0.5, 0.5, 0.001):
        pruner.step(NOW)
        assert pruner.pause_s == pytest.approx(retention.PAUSE_FACTOR * took)
    assert batches == [100, 200, 400, 400, 100, 50, 50]


def test_the_wait_for_the_lock_is_not_counted_as_holding_it(store):
    """Seconds pass by one at each look; two looks are made, both behind the lock."""
    looks = iter(range(10))
    assert prune_step(store, Limits(1, 0), NOW, 10, lambda: float(next(looks))).held_s == 1
    assert next(looks) == 2
