"""The large store of measurements: what it holds fits together on both databases."""

from __future__ import annotations

import collections
import datetime as dt
import itertools
from typing import Any

import pytest
import sqlalchemy as sa
from plain_minutes import assert_minutes_equal_plans

from scheduler.ledgers import ACCEPTANCE_DENOMINATOR, CAP_NS, TIMING_DENOMINATOR
from scheduler.shapes import Allocation, GraphKind, GraphShape
from service.load.million import OUTLIER_MS, Made, fill_store
from service.store.engines import open_database, read_transaction
from service.store.queries import get_plan
from service.store.tables import (
    SHAPE_COLUMNS,
    engine_runs,
    plan_lanes,
    plans,
    policy_applications,
    requests,
    trace_gaps,
)

PLANS = 3200
NOW = dt.datetime(2026, 3, 1, 0, 2, tzinfo=dt.UTC)
"""Shortly after midnight, so that the store holds plans of two days."""


@pytest.fixture(scope="module")
def made_sqlite(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Made]:
    url = str(tmp_path_factory.mktemp("million") / "helios.db")
    return url, fill_store(url, NOW, PLANS)


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def made(request: pytest.FixtureRequest) -> tuple[sa.Engine, Made]:
    if request.param == "sqlite":
        url, found = request.getfixturevalue("made_sqlite")
    else:
        url = request.getfixturevalue("module_postgresql_url")
        found = fill_store(url, NOW, PLANS)
    engine = open_database(url)
    yield engine, found
    engine.dispose()


def rows(engine: sa.Engine, table: sa.Table) -> list[dict[str, Any]]:
    with read_transaction(engine) as connection:
        return [dict(row) for row in connection.execute(sa.select(table)).mappings()]


def test_it_holds_what_it_says(made: tuple[sa.Engine, Made]) -> None:
    engine, found = made
    stored = rows(engine, plans)
    assert len(stored) == found.plans == PLANS
    assert len(rows(engine, requests)) == found.requests
    assert {row["run_id"] for row in stored} == set(found.run_ids)
    longest = max(stored, key=lambda row: row["device_ms"] or 0)
    assert (longest["run_id"], longest["fence"]) == found.outlier
    assert longest["device_ms"] > OUTLIER_MS
    assert sum((row["device_ms"] or 0) > 1000 for row in stored) == 1
    assert {row["committed_at"].date() for row in stored} == {NOW.date(), NOW.date() - dt.timedelta(days=1)}
    newest = max(stored, key=lambda row: row["committed_at"])
    assert (newest["run_id"], newest["fence"], newest["outcome"]) == (*found.newest, "in_flight")
    assert dt.timedelta() < NOW - newest["committed_at"] < dt.timedelta(seconds=1)
    assert len(rows(engine, trace_gaps)) == 1
    assert {row["kind"] for row in stored} == {"prefill", "decode", "speculative", "mixed"}
    assert len({row["reason"] for row in stored}) == 4
    detail = get_plan(engine, *found.newest)
    assert detail is not None
    assert detail.alternatives


def test_the_roll_up_is_that_of_its_plans(made: tuple[sa.Engine, Made]) -> None:
    assert_minutes_equal_plans(made[0])


def test_plans_of_a_run_follow_each_other_and_never_overlap(made: tuple[sa.Engine, Made]) -> None:
    engine, found = made
    stored = sorted(rows(engine, plans), key=lambda row: (row["run_id"], row["fence"]))
    for run in found.run_ids:
        own = [row for row in stored if row["run_id"] == run]
        assert [row["fence"] for row in own] == list(range(1, len(own) + 1))
        for before, row in itertools.pairwise(own):
            assert before["completed_ns"] <= row["committed_ns"]
            assert before["policy_version"] <= row["policy_version"]
        for row in own[:-1]:
            assert row["completed_ns"] - row["started_ns"] == pytest.approx(row["device_ms"] * 1e6, abs=2000)


def test_every_graph_is_one_that_the_scheduler_could_run(made: tuple[sa.Engine, Made]) -> None:
    for row in rows(made[0], plans):
        shape = {name: row[name] for name in SHAPE_COLUMNS}
        kind = GraphKind(shape["kind"])
        GraphShape(**shape | {"kind": kind, "allocation": Allocation(shape["allocation"])})
        assert row["active_rows"] <= row["batch_capacity"]
        assert kind is not GraphKind.MIXED or row["active_rows"] >= 2


def test_probes_are_paid_for_as_the_ledgers_allow(made: tuple[sa.Engine, Made]) -> None:
    engine, found = made
    stored = sorted(rows(engine, plans), key=lambda row: row["fence"])
    full_ms = CAP_NS / 1e6
    for ledger, reason, denominator in (
        ("timing", "timing_refresh", TIMING_DENOMINATOR),
        ("acceptance", "acceptance_learning", ACCEPTANCE_DENOMINATOR),
    ):
        credit, spent, ordinary = (f"{ledger}_{name}_ms" for name in ("credit", "spent", "ordinary"))
        for run in found.run_ids:
            own = [row for row in stored if row["run_id"] == run]
            charges = [after[spent] - before[spent] for before, after in itertools.pairwise(own)]
            assert [charge > 0 for charge in charges] == [row["reason"] == reason for row in own[:-1]]
            assert all(row[spent] <= row[ordinary] / denominator + max(charges) + 1e-6 for row in own)
            assert all(row[credit] <= full_ms + 1e-6 for row in own)
            probes = [row[credit] for row in own if row["reason"] == reason]
            assert probes == pytest.approx([full_ms] * len(probes))
            assert probes


def test_lanes_belong_to_their_plans_and_requests(made: tuple[sa.Engine, Made]) -> None:
    engine, _ = made
    by_plan, made_tokens = collections.Counter(), collections.Counter()
    plan_tokens: collections.Counter[tuple[str, int]] = collections.Counter()
    for lane in rows(engine, plan_lanes):
        key = (lane["run_id"], lane["fence"])
        by_plan[key] += 1
        plan_tokens[key] += lane["committed_tokens"]
        made_tokens[lane["run_id"], lane["request_id"]] += lane["committed_tokens"]
    for row in rows(engine, plans):
        key = (row["run_id"], row["fence"])
        assert (by_plan[key], plan_tokens[key]) == (row["active_rows"], row["output_tokens"])
    for row in rows(engine, requests):
        assert made_tokens[row["run_id"], row["request_id"]] == row["output_tokens"]


def test_requests_pass_through_their_phases_in_order(made: tuple[sa.Engine, Made]) -> None:
    engine, found = made
    waiting = 0
    for row in rows(engine, requests):
        if row["admitted_at"] is None:
            waiting += 1
            continue
        times = [row[name] for name in ("arrived_at", "admitted_at", "first_output_at", "finished_at")]
        known = [at for at in times if at is not None]
        assert known == sorted(known)
        assert row["finished_at"] is not None or row["run_id"] == found.run_ids[1]
    assert waiting == 3


def test_versions_come_into_force_where_plans_say(made: tuple[sa.Engine, Made]) -> None:
    engine, _ = made
    firsts: dict[tuple[str, int], int] = {}
    for row in sorted(rows(engine, plans), key=lambda row: row["fence"]):
        firsts.setdefault((row["run_id"], row["policy_version"]), row["fence"])
    applied = {(row["run_id"], row["version"]): row["fence"] + 1 for row in rows(engine, policy_applications)}
    assert applied == firsts
    ends = {row["run_id"]: row["ended_at"] is None for row in rows(engine, engine_runs)}
    assert sorted(ends.values()) == [False, True]
