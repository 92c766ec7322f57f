"""The stable views against what Python makes of the tables' rows, on both databases."""

from __future__ import annotations

import datetime as dt

import pytest
import sqlalchemy as sa
from factories import fill_store
from factory_cookbook import filled_row
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_minutes import write_minutes
from sorted_days import sort_into_days

from scheduler.shapes import Allocation, GraphKind, GraphShape
from service.store.buckets import DEVICE_BOUNDS_MS, DEVICE_BUCKETS
from service.store.engines import read_transaction, write_transaction
from service.store.tables import SHAPE_COLUMNS, plan_lanes, plan_minutes, plans, requests
from service.store.types import UtcDateTime

GRAPHS = [
    GraphShape(GraphKind.PREFILL, 1, prefill_capacity=256),
    GraphShape(GraphKind.DECODE, 8),
    GraphShape(GraphKind.SPECULATIVE, 4, 3, 4, 8, speculation_enabled=True, allocation=Allocation.DEVICE),
    GraphShape(GraphKind.MIXED, 4, 2, 3, 6, 32, speculation_enabled=True),
    GraphShape(GraphKind.MIXED, 4, 2, 3, 6, 32, speculation_enabled=True, prompt_rows=4),
    GraphShape(GraphKind.SNAPSHOT, 2),
]


@pytest.fixture
def filled(any_store):
    fill_store(any_store, plans=80, requests=6)
    with write_transaction(any_store) as connection:
        for number, graph in enumerate(GRAPHS):
            values = {name: getattr(graph, name) for name in SHAPE_COLUMNS}
            values |= {"kind": graph.kind.value, "allocation": graph.allocation.value}
            connection.execute(plans.update().where(plans.c.fence % len(GRAPHS) == number).values(**values))
    write_minutes(any_store)
    sort_into_days(any_store)
    return any_store


def rows(engine, table):
    with read_transaction(engine) as connection:
        return [dict(row) for row in connection.execute(sa.select(table)).mappings()]


def view(engine, name, *times):
    """The view's rows; `times` are its columns that hold times."""
    with read_transaction(engine) as connection:
        columns = [sa.Column(column["name"]) for column in sa.inspect(connection).get_columns(name)]
        typed = [sa.type_coerce(column, UtcDateTime) if column.name in times else column for column in columns]
        query = sa.select(*[one.label(column.name) for one, column in zip(typed, columns, strict=True)])
        return [dict(row) for row in connection.execute(query.select_from(sa.text(name))).mappings()]


def label(row):
    """GraphShape's own label of a row's shape columns."""
    values = {name: row[name] for name in SHAPE_COLUMNS}
    values |= {"kind": GraphKind(row["kind"]), "allocation": Allocation(row["allocation"])}
    values["speculation_enabled"] = bool(row["speculation_enabled"])
    return GraphShape(**values).label


def key(row):
    return (row["run_id"], row["fence"], row["lane"])


def test_the_label_is_that_of_the_graph(filled):
    found = view(filled, "plan_timeline")
    assert {row["shape"] for row in found} == {graph.label for graph in GRAPHS}
    for name in ("plan_timeline", "shape_minutes", "device_histogram"):
        assert all(row["shape"] == label(row) for row in view(filled, name)), name


def test_a_request_s_timeline_is_its_lanes_with_their_plans(filled):
    by_plan = {(plan["run_id"], plan["fence"]): plan for plan in rows(filled, plans)}
    by_request = {(one["run_id"], one["request_id"]): one for one in rows(filled, requests)}
    lanes = rows(filled, plan_lanes)
    found = view(filled, "request_timeline", "arrived_at", "committed_at")
    assert len(found) == len(lanes) > 80
    found = {key(row): row for row in found}
    for lane in lanes:
        plan = by_plan[lane["run_id"], lane["fence"]]
        request = by_request[lane["run_id"], lane["request_id"]]
        row = found[key(lane)]
        since = (plan["committed_at"] - request["arrived_at"]) / dt.timedelta(milliseconds=1)
        own = {"shape": label(plan), "since_arrival_ms": since, "arrived_at": request["arrived_at"]}
        assert row == {name: {**lane, **plan, **lane_only(lane), **own}[name] for name in row}


def lane_only(lane):
    """The names that plans have as well, and that are the lane's in the view."""
    return {name: lane[name] for name in ("prompt_tokens", "offered_tokens", "accepted_tokens", "terminal_value")}


def test_a_lane_whose_request_was_lost_stays(filled):
    with write_transaction(filled) as connection:
        connection.execute(requests.delete())
    found = view(filled, "request_timeline")
    assert len(found) == len(rows(filled, plan_lanes))
    assert {(row["arrived_at"], row["since_arrival_ms"]) for row in found} == {(None, None)}


DAY = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(microseconds=st.integers(-(10**12), 10**12), offset=st.integers(0, 10**12))
def test_the_time_since_arrival_is_exact_to_the_microsecond(any_store, microseconds, offset):
    arrived = DAY + dt.timedelta(microseconds=offset)
    with write_transaction(any_store) as connection:
        for table in (requests, plans, plan_lanes):
            connection.execute(table.delete())
        request = filled_row(requests, {"run_id": "r", "request_id": "q", "arrived_at": arrived})
        at = arrived + dt.timedelta(microseconds=microseconds)
        connection.execute(requests.insert(), request)
        connection.execute(plans.insert(), filled_row(plans, {"run_id": "r", "fence": 1, "committed_at": at}))
        lane = {"run_id": "r", "fence": 1, "lane": 0, "request_id": "q"}
        connection.execute(plan_lanes.insert(), filled_row(plan_lanes, lane))
    (row,) = view(any_store, "request_timeline")
    assert row["since_arrival_ms"] == microseconds / 1000


def test_an_observation_is_a_completed_plan_s_sample_beside_its_estimate(filled):
    with write_transaction(filled) as connection:
        unknown = {"cost_state": "unknown", "selected_cost_ms": 0}
        connection.execute(plans.update().where(plans.c.fence % 3 == 0).values(**unknown))
        connection.execute(plans.update().where(plans.c.fence % 7 == 0).values(exposed_delivery_ms=0.25))
        connection.execute(plans.update().where(plans.c.fence % 11 == 0).values(outcome="failed"))
    expected = {}
    for plan in rows(filled, plans):
        if plan["outcome"] == "completed":
            sample = {"sample_ms": plan["device_ms"] - plan["exposed_delivery_ms"], "shape": label(plan)}
            estimate = None if plan["cost_state"] == "unknown" else plan["selected_cost_ms"]
            expected[plan["run_id"], plan["fence"]] = plan | sample | {"estimate_ms": estimate}
    found = view(filled, "graph_observations", "committed_at", "completed_at")
    assert len(found) == len(expected) > 40
    for row in found:
        assert row == {name: expected[row["run_id"], row["fence"]][name] for name in row}
    assert {row["estimate_ms"] is None for row in found} == {True, False}


def test_minutes_by_shape_are_the_sums_over_reasons(filled):
    groups = {}
    for row in rows(filled, plan_minutes):
        group = (row["minute"], row["run_id"], *(row[name] for name in SHAPE_COLUMNS))
        groups.setdefault(group, []).append(row)
    found = view(filled, "shape_minutes", "minute")
    assert len(found) == len(groups)
    assert any(len(group) > 1 for group in groups.values())
    for row in found:
        group = groups[row["minute"], row["run_id"], *(row[name] for name in SHAPE_COLUMNS)]
        plans_, device = (sum(one[name] for one in group) for name in ("plans", "device_ms_sum"))
        known = [one for one in group if one["reason"] != "discovery"]
        cost, spent = (sum(one[name] for one in known) for name in ("selected_cost_ms_sum", "device_ms_sum"))
        assert (row["plans"], row["output_tokens"]) == (plans_, sum(one["output_tokens"] for one in group))
        assert row["device_ms_max"] == max(one["device_ms_max"] for one in group)
        assert row["device_ms_mean"] == pytest.approx(device / plans_)
        assert row["cost_ratio"] == (pytest.approx(spent / cost) if cost else None)


def test_the_histogram_has_the_buckets_that_counted_something(filled):
    expected = set()
    for row in rows(filled, plan_minutes):
        group = (row["minute"], row["run_id"], row["reason"], *(row[name] for name in SHAPE_COLUMNS))
        for number, (name, bound) in enumerate(zip(DEVICE_BUCKETS, (*DEVICE_BOUNDS_MS, None), strict=True), 1):
            if row[name]:
                expected.add((*group, number, bound, row["device_ms_max"], row[name]))
    names = ("minute", "run_id", "reason", *SHAPE_COLUMNS, "bucket", "device_to_ms", "device_ms_max", "plans")
    found = [tuple(row[name] for name in names) for row in view(filled, "device_histogram", "minute")]
    assert len(found) == len(expected)
    assert set(found) == expected


def test_a_device_time_above_all_bounds_is_in_the_last_bucket(filled):
    with write_transaction(filled) as connection:
        one = dict.fromkeys(DEVICE_BUCKETS, 0) | {"device_over": 3}
        connection.execute(plan_minutes.update().values(**one))
    found = {(row["bucket"], row["device_to_ms"], row["plans"]) for row in view(filled, "device_histogram")}
    assert found == {(len(DEVICE_BUCKETS), None, 3)}
