"""Costs: the maps, the drift with its extremes, and predicted against observed durations."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
from typing import Any

import pytest
import sqlalchemy as sa
from factories import fill_store
from hypothesis import given
from hypothesis import strategies as st
from life_cases import AT
from plain_minutes import completed_plans, write_minutes

from dashboard.extremes import keep_extremes
from dashboard.figures.costs import BINS, drift_figure, errors_figure
from dashboard.heat import STEPS, heat_maps, shade
from dashboard.pages import costs as page_module
from dashboard.queries import costs as reads
from dashboard.queries.costs import read_costs, read_drift
from dashboard.span import Span
from service.store.catalog import graph_label
from service.store.engines import write_transaction
from service.store.tables import SHAPE_COLUMNS, plan_minutes, plans

SPAN = Span(AT - dt.timedelta(hours=1), AT + dt.timedelta(hours=1))


def filled(store: sa.Engine) -> tuple[str, list[dict[str, Any]]]:
    """The second run and its completed plans, oldest first."""
    made = fill_store(store, plans=120, requests=14)
    write_minutes(store)
    run = made.run_ids[1]
    return run, sorted((row for row in completed_plans(store) if row["run_id"] == run), key=lambda row: row["fence"])


def nearest_rank(values: list[float], tenths: int) -> float:
    return sorted(values)[math.ceil(len(values) * tenths / 10) - 1]


def test_ratios_are_those_of_a_plain_sort(any_store: sa.Engine) -> None:
    _, done = filled(any_store)
    found = read_costs(any_store, SPAN, None)
    by_graph: dict[str, list[float]] = {}
    for row in done:
        if row["cost_state"] != "unknown":
            by_graph.setdefault(graph_label(row), []).append(row["device_ms"] / row["selected_cost_ms"])
    assert found.compared == sum(map(len, by_graph.values()))
    assert found.completed == len(done)
    for row in found.catalog.rows:
        ratios = by_graph.get(row["shape"], [])
        assert row["compared"] == len(ratios)
        if ratios:
            assert row["median_ratio"] == pytest.approx(nearest_rank(ratios, 5))
            assert row["p90_ratio"] == pytest.approx(nearest_rank(ratios, 9))


def test_only_the_newest_plans_are_compared_where_there_are_many(
    any_store: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, done = filled(any_store)
    monkeypatch.setattr(reads, "MAX_COMPARED", 10)
    newest = [row for row in done if row["cost_state"] != "unknown"][-10:]
    found = read_costs(any_store, SPAN, None)
    assert found.compared == 10
    counts = {row["shape"]: row["compared"] for row in found.catalog.rows if row["compared"]}
    assert counts == {label: sum(graph_label(row) == label for row in newest) for label in map(graph_label, newest)}


def test_drift_is_every_observation_or_every_minute(any_store: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    run, done = filled(any_store)
    shape = {name: done[-1][name] for name in SHAPE_COLUMNS}
    own = [row for row in done if graph_label(row) == graph_label(shape)]
    single = read_drift(any_store, SPAN, run, shape)
    assert (single.by_minute, single.count) == (False, len(own))
    assert [row["most_ms"] for row in single.rows] == pytest.approx([row["device_ms"] for row in own])
    assert [row["estimate_ms"] for row in single.rows] == [
        None if row["cost_state"] == "unknown" else row["selected_cost_ms"] for row in own
    ]
    monkeypatch.setattr(reads, "MAX_OBSERVED", 3)
    minutes = read_drift(any_store, SPAN, run, shape)
    assert (minutes.by_minute, minutes.count) == (True, len(own))
    assert max(row["most_ms"] for row in minutes.rows) == max(row["device_ms"] for row in own)
    total = sum(row["mean_ms"] for row in minutes.rows) / len(minutes.rows)
    assert total == pytest.approx(sum(row["device_ms"] for row in own) / len(own), rel=0.2)


@given(st.lists(st.floats(0.1, 1e4), max_size=80), st.integers(1, 12))
def test_fewer_points_keep_the_extremes_and_the_order(values: list[float], bins: int) -> None:
    rows = [{"place": place, "least_ms": value, "most_ms": value} for place, value in enumerate(values)]
    kept = keep_extremes(rows, bins)
    assert len(kept) <= max(2 * bins, 0)
    places = [row["place"] for row in kept]
    assert places == sorted(set(places))
    if values:
        assert {min(values), max(values)} <= {row["most_ms"] for row in kept}


def test_a_hundred_thousand_observations_are_a_few_marks_with_the_outlier() -> None:
    rows = [
        {"at": AT + dt.timedelta(seconds=i), "least_ms": 5.0, "most_ms": 5.0, "mean_ms": 5.0, "estimate_ms": 5.0}
        for i in range(100_000)
    ]
    rows[77_777] |= {"least_ms": 5000.0, "most_ms": 5000.0}
    figure = drift_figure(rows, False)
    assert all(len(trace["x"]) <= 2 * BINS for trace in figure["data"])
    assert 5000.0 in figure["data"][0]["y"]


def row_of(kind: str, batch: int, ms: float | None, **values: Any) -> dict[str, Any]:
    shape = {"kind": kind, "batch_capacity": batch, "draft_depth": 0, "target_width": 1, "target_rows": batch}
    shape |= {"prefill_capacity": 0, "allocation": "none", "speculation_enabled": False, "prompt_rows": 1} | values
    return {**shape, "shape": graph_label(shape), "estimate_ms": ms, "cost_state": "fresh" if ms else "unknown"}


def test_each_graph_is_in_one_place_of_one_map() -> None:
    rows = [row_of("decode", batch, 4.0 + batch) for batch in (1, 2, 4)]
    rows += [row_of("prefill", 1, size / 10, prefill_capacity=size, target_rows=0) for size in (64, 256)]
    rows += [
        row_of("speculative", b, None, draft_depth=d, target_width=w)
        for b in (1, 2)
        for d, w in ((1, 2), (3, 2), (3, 4))
    ]
    rows += [row_of("speculative", 2, 9.0, draft_depth=3, target_width=4, target_rows=5, allocation="device")]
    maps = heat_maps(rows)
    titles = [one.title for one in maps]
    assert titles == ["Decode", "Prefill", "Speculative, draft depth 1", "Speculative, draft depth 3"]
    assert sum(len(cell) for one in maps for cell in one.cells.values()) == len(rows)
    assert [row["target_rows"] for row in maps[3].cells[2, 4]] == [2, 5]
    assert (maps[1].columns, maps[1].column_heading) == ([64, 256], "Prompt tokens")
    alone = [row for row in rows if row["kind"] != "speculative" or row["draft_depth"] == 1]
    assert [one.title for one in heat_maps(alone)][-1] == "Speculative"


@given(st.floats(0.01, 1e4), st.floats(0.01, 1e4), st.floats(0.01, 1e4))
def test_shades_rise_with_the_estimate(one: float, two: float, three: float) -> None:
    least, middle, most = sorted((one, two, three))
    steps = [shade(value, least, most) for value in (least, middle, most)]
    assert steps == sorted(steps)
    assert set(steps) <= set(range(1, STEPS + 1))
    if most > least:
        assert (steps[0], steps[-1]) == (1, STEPS)
    assert shade(None, least, most) == 0


class Room:
    """A ControlRoom's reads, made at once."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine

    async def read(self, query: Any) -> Any:
        return query(self.engine)


def shown(store: sa.Engine, search: str) -> str:
    return str(asyncio.run(page_module.page(Room(store), search)))  # type: ignore[arg-type]


def test_the_page_says_what_it_knows_and_from_where(any_store: sa.Engine) -> None:
    run, done = filled(any_store)
    search = f"?since={SPAN.since:%Y-%m-%dT%H:%M:%SZ}&until={SPAN.until:%Y-%m-%dT%H:%M:%SZ}"
    text = shown(any_store, search)
    assert "No checkpoint of the scheduler is stored" in text
    assert all(graph_label(row) in text for row in done)
    wanted = graph_label(done[0])
    assert f"How {wanted} went" in shown(any_store, f"{search}&graph={wanted}")
    assert f"How {wanted} went" in shown(any_store, f"{search}&graph={wanted}&run={run}")
    assert "so no graph has a cost yet" in shown(any_store, "?run=nobody")


def test_a_run_without_plans_and_an_empty_store_say_what_to_do(any_store: sa.Engine) -> None:
    assert "No engine had run" in shown(any_store, "")
    filled(any_store)
    with write_transaction(any_store) as connection:
        connection.execute(plans.delete())
        connection.execute(plan_minutes.delete())
    assert "This run has completed no plan yet" in shown(any_store, "")


def test_a_graphs_name_is_inert() -> None:
    row = row_of("decode", 1, 2.0) | {"shape": "<b>x</b>", "median_ratio": 1.1, "p90_ratio": 1.2, "device_ms_sum": 1.0}
    assert "<b>" not in str(errors_figure([row]))
