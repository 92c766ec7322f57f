"""Graph durations and ledgers as the store gives them: from a scheduler's own checkpoint, and without one."""

from __future__ import annotations

import datetime as dt
import itertools
import zlib

import pytest
import sqlalchemy as sa
from factories import fill_store
from plain_minutes import write_minutes

from scheduler import Catalog, PolicyConfig, RequestScheduler
from scheduler.shapes import GraphKind, GraphShape
from service.store.catalog import CHECKPOINT, ROLL_UP, graph_label, read_catalog
from service.store.engines import read_transaction, write_transaction
from service.store.errors import InvalidFilter
from service.store.ledgers import LEDGER_COLUMNS, ledger_points, list_episodes, list_ledgers
from service.store.tables import SHAPE_COLUMNS, decision_log, engine_runs, plan_minutes, plans

MS = 1_000_000
SHAPES = (
    GraphShape(GraphKind.PREFILL, 1, prefill_capacity=64),
    GraphShape(GraphKind.PREFILL, 1, prefill_capacity=256),
    GraphShape(GraphKind.DECODE, 1),
)


def scheduler_at(now_ns: int) -> RequestScheduler:
    """A scheduler that has measured its small prefill graph once, taking 7 ms."""
    made = RequestScheduler(Catalog(SHAPES), PolicyConfig.balanced())
    made.catalog.observe(SHAPES[0], 7 * MS, now_ns + 7 * MS)
    made.advance_to(now_ns + 7 * MS)
    return made


def put_checkpoint(store: sa.Engine, run_id: str, state: bytes, last_fence: int = 1) -> None:
    row = {"run_id": run_id, "first_call": last_fence, "calls": 1, "first_fence": last_fence, "last_fence": last_fence}
    with write_transaction(store) as connection:
        connection.execute(decision_log.insert(), {**row, "is_checkpoint": True, "blob": zlib.compress(state)})


def test_estimates_are_the_schedulers_own(any_store: sa.Engine) -> None:
    filled = fill_store(any_store, plans=40, requests=6)
    run = filled.run_ids[1]
    with read_transaction(any_store) as connection:
        start = connection.execute(sa.select(engine_runs).where(engine_runs.c.run_id == run)).mappings().one()
    made = scheduler_at(start["started_monotonic_ns"] + 1000 * MS)
    put_checkpoint(any_store, run, made.checkpoint())
    found = read_catalog(any_store)
    assert (found.run_id, found.source) == (run, CHECKPOINT)
    assert [row["shape"] for row in found.rows] == [shape.label for shape in SHAPES]
    states = {row["shape"]: (row["estimate_ms"], row["cost_state"], row["samples"]) for row in found.rows}
    assert states["prefill:B1:C64"] == (7.0, "fresh", 1)
    assert states["prefill:B1:C256"] == states["decode:B1"] == (None, "unknown", 0)
    assert found.rows[0]["completed_at"] == start["started_at"] + dt.timedelta(milliseconds=1007)
    assert found.as_of == start["started_at"] + dt.timedelta(milliseconds=1007)
    assert [row["shape"] for row in read_catalog(any_store, kind="decode").rows] == ["decode:B1"]


def test_what_cannot_be_read_leaves_the_roll_up(any_store: sa.Engine) -> None:
    filled = fill_store(any_store, plans=60, requests=8)
    write_minutes(any_store)
    put_checkpoint(any_store, filled.run_ids[1], b"of another version")
    found = read_catalog(any_store)
    assert found.source == ROLL_UP
    with read_transaction(any_store) as connection:
        rows = connection.execute(
            sa.select(plans).where(plans.c.run_id == filled.run_ids[1], plans.c.outcome == "completed")
        ).mappings()
        done = [dict(row) for row in rows]
    assert {row["shape"] for row in found.rows} == {graph_label(row) for row in done}
    for row in found.rows:
        own = [plan for plan in done if graph_label(plan) == row["shape"]]
        assert row["plans"] == len(own)
        assert row["device_ms_sum"] == pytest.approx(sum(plan["device_ms"] for plan in own))
        assert row["device_ms_max"] == max(plan["device_ms"] for plan in own)
        known = [plan for plan in own if plan["reason"] != "discovery"]
        ratio = sum(p["device_ms"] for p in known) / sum(p["selected_cost_ms"] for p in known) if known else None
        assert row["cost_ratio"] == pytest.approx(ratio)
        assert row["estimate_ms"] > 0
        assert row["cost_state"] in ("fresh", "stale")


def test_a_span_limits_the_sums_and_an_earlier_one_finds_the_run_of_its_time(any_store: sa.Engine) -> None:
    filled = fill_store(any_store, plans=60, requests=8)
    write_minutes(any_store)
    with read_transaction(any_store) as connection:
        second = connection.execute(sa.select(sa.func.max(engine_runs.c.started_at))).scalar_one()
    assert read_catalog(any_store, until=second).run_id == filled.run_ids[0]
    assert read_catalog(any_store, run=filled.run_ids[0]).run_id == filled.run_ids[0]
    far = filled.last_at + dt.timedelta(hours=2)
    assert {row["plans"] for row in read_catalog(any_store, since=far).rows} == {0}
    assert read_catalog(any_store, run="nobody").rows == []
    for wrong in ({"kind": "cooking"}, {"since": "yesterday"}, {"run": ""}):
        with pytest.raises(InvalidFilter):
            read_catalog(any_store, **wrong)


def test_an_earlier_moment_of_a_run_has_the_plan_before_it(any_store: sa.Engine) -> None:
    filled = fill_store(any_store, plans=60, requests=8)
    write_minutes(any_store)
    with read_transaction(any_store) as connection:
        own = sa.select(plans.c.committed_at).where(plans.c.run_id == filled.run_ids[1])
        times = sorted(connection.execute(own).scalars())
    at = times[len(times) // 2]
    assert read_catalog(any_store, run=filled.run_ids[1], until=at).as_of == times[len(times) // 2 - 1]


def test_a_run_without_plans_is_not_looked_for_among_all_plans(store: sa.Engine) -> None:
    filled = fill_store(store, plans=60, requests=8)
    later = filled.last_at + dt.timedelta(minutes=1)
    with write_transaction(store) as connection:
        row = dict(connection.execute(sa.select(engine_runs).limit(1)).mappings().one())
        connection.execute(engine_runs.insert(), {**row, "run_id": "newest", "started_at": later, "ended_at": None})
    asked: list[str] = []

    @sa.event.listens_for(store, "before_cursor_execute")
    def note(_c: object, _cursor: object, statement: str, _values: object, _x: object, _many: object) -> None:
        asked.append(" ".join(statement.split()))

    assert read_catalog(store, until=later + dt.timedelta(hours=1)).run_id == "newest"
    sa.event.remove(store, "before_cursor_execute", note)
    of_plans = [statement for statement in asked if "FROM plans" in statement]
    assert of_plans
    assert [statement for statement in of_plans if "plans.run_id = ?" not in statement] == []


def test_an_empty_store_has_no_catalog(any_store: sa.Engine) -> None:
    found = read_catalog(any_store)
    assert (found.run_id, found.rows, found.source) == (None, [], "")
    assert list_ledgers(any_store) == []


def probes(store: sa.Engine) -> list[dict]:
    """Turns plans of the second run into probes whose ledgers say what they cost; returns them, oldest first."""
    filled = fill_store(store, plans=80, requests=8)
    run, made, spent = filled.run_ids[1], [], {"timing": 0.0, "acceptance": 0.0}
    with write_transaction(store) as connection:
        for fence in range(1, 64):
            reason = {10: "timing_refresh", 20: "acceptance_learning", 30: "timing_refresh", 45: "timing_refresh"}.get(
                fence
            )
            values = {"timing_spent_ms": spent["timing"], "acceptance_spent_ms": spent["acceptance"]}
            if reason is not None:
                values |= {"reason": reason, "exploration_credit_ms": 5.0}
                ledger = "timing" if reason == "timing_refresh" else "acceptance"
                made.append({"fence": fence, "ledger": ledger, "charged_ms": 2.5 + fence / 10})
                spent[ledger] += made[-1]["charged_ms"]
            connection.execute(plans.update().where(plans.c.run_id == run, plans.c.fence == fence).values(**values))
        later = plans.c.fence >= 64
        last = {"timing_spent_ms": spent["timing"], "acceptance_spent_ms": spent["acceptance"]}
        connection.execute(plans.update().where(plans.c.run_id == run, later).values(**last))
    write_minutes(store)
    return made


def test_each_probe_is_charged_what_its_ledger_spent_until_the_next(any_store: sa.Engine) -> None:
    made = probes(any_store)
    with read_transaction(any_store) as connection:
        since, until = (
            connection.execute(sa.select(of(plans.c.committed_at))).scalar_one() for of in (sa.func.min, sa.func.max)
        )
        until += dt.timedelta(minutes=5)
        found = list_episodes(connection, since, until)
        assert [(row["fence"], row["ledger"]) for row in found] == [(row["fence"], row["ledger"]) for row in made[::-1]]
        assert [row["charged_ms"] for row in found] == pytest.approx([row["charged_ms"] for row in made[::-1]])
        assert [row["fence"] for row in list_episodes(connection, since, until, limit=2)] == [45, 30]
        third = next(row for row in found if row["fence"] == 30)
        earlier = list_episodes(connection, since, third["committed_at"])
        assert [row["fence"] for row in earlier] == [20, 10]
        assert earlier[1]["charged_ms"] == pytest.approx(made[0]["charged_ms"])


def test_ledgers_are_those_of_the_last_plan_of_each_minute(any_store: sa.Engine) -> None:
    probes(any_store)
    rows = list_ledgers(any_store)
    assert set(rows[0]) == {"minute", "run_id", "fence", "committed_at", *LEDGER_COLUMNS}
    with read_transaction(any_store) as connection:
        everything = [dict(row) for row in connection.execute(sa.select(plans)).mappings()]
        minutes = set(connection.execute(sa.select(plan_minutes.c.minute, plan_minutes.c.run_id)).all())
    assert {(row["minute"], row["run_id"]) for row in rows} <= minutes
    for row in rows:
        end = row["minute"] + dt.timedelta(minutes=1)
        own = [plan for plan in everything if plan["run_id"] == row["run_id"] and plan["committed_at"] < end]
        last = max(own, key=lambda plan: plan["fence"])
        assert {name: row[name] for name in LEDGER_COLUMNS} == {name: last[name] for name in LEDGER_COLUMNS}
    assert [row["minute"] for row in rows] == sorted((row["minute"] for row in rows), reverse=True)
    assert list_ledgers(any_store, limit=1) == rows[:1]
    assert list_ledgers(any_store, run="nobody") == []


def test_points_are_the_last_plans_of_their_intervals(any_store: sa.Engine) -> None:
    filled = fill_store(any_store, plans=60, requests=8)
    times = [filled.first_at + dt.timedelta(milliseconds=50 * step) for step in range(40)]
    with read_transaction(any_store) as connection:
        found = ledger_points(connection, times)
        every = connection.execute(sa.select(plans.c.run_id, plans.c.fence, plans.c.committed_at)).all()
    wanted = []
    for start, end in itertools.pairwise(times):
        inside = [plan for plan in every if start <= plan.committed_at < end]
        if inside:
            last = max(inside, key=lambda plan: (plan.committed_at, plan.run_id, plan.fence))
            wanted.append((last.run_id, last.fence))
    assert [(row["run_id"], row["fence"]) for row in found] == wanted
    assert set(SHAPE_COLUMNS).isdisjoint(found[0])
