"""Timeline figures: rows in, plain dict out."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from typing import Any

import pytest

from dashboard.figures.timeline import MAX_MARKS, length_ms, start_ms, timeline_figure

Rows = Callable[..., dict[str, Any]]
NOW_MS = dt.datetime(2026, 3, 1, 12, 1, tzinfo=dt.UTC).timestamp() * 1e3


def test_a_bar_reaches_from_the_start_on_the_device_to_the_end(plan_row: Rows) -> None:
    row = plan_row(fence=3)
    figure = timeline_figure([row], NOW_MS)
    (trace,) = figure["data"]
    assert trace["base"] == [row["committed_at"].timestamp() * 1e3 + 1.0]
    assert trace["x"] == [10.0]
    assert trace["ids"] == ["run-1/3"]


def test_kinds_have_rows_and_colours_of_their_own_in_one_order(plan_row: Rows) -> None:
    rows = [plan_row(1), plan_row(2, kind="prefill", prefill_capacity=64), plan_row(3, kind="new_kind")]
    figure = timeline_figure(rows, NOW_MS)
    assert [trace["name"] for trace in figure["data"]] == ["prefill", "decode", "new kind"]
    assert figure["layout"]["yaxis"]["categoryarray"] == ["new kind", "decode", "prefill"]
    assert len({trace["marker"]["color"] for trace in figure["data"]}) == 3


@pytest.mark.parametrize(
    ("outcome", "shape", "opacity"),
    [("completed", "", 1.0), ("in_flight", "", 0.4), ("lost", "/", 1.0), ("abandoned", "/", 1.0), ("failed", "/", 1.0)],
)
def test_open_bars_are_faint_and_bars_without_an_end_are_hatched(
    plan_row: Rows, outcome: str, shape: str, opacity: float
) -> None:
    figure = timeline_figure([plan_row(outcome=outcome)], NOW_MS)
    assert figure["data"][0]["marker"]["pattern"]["shape"] == [shape]
    assert figure["data"][0]["marker"]["opacity"] == [opacity]


def test_a_running_plan_grows_until_now_but_never_squeezes_the_others(plan_row: Rows) -> None:
    row = plan_row(outcome="in_flight", started_ns=None, completed_ns=None, device_ms=None)
    assert length_ms(row, start_ms(row) + 300) == pytest.approx(300)
    assert length_ms(row, start_ms(row) + 60_000) == 1000.0
    assert length_ms(row, start_ms(row) - 5) == 0.0
    assert length_ms({**row, "selected_cost_ms": 900.0}, start_ms(row) + 60_000) == 3600.0


def test_a_lost_plan_is_as_long_as_it_was_predicted(plan_row: Rows) -> None:
    assert length_ms(plan_row(outcome="lost", completed_ns=None), NOW_MS) == 9.0


def test_every_point_array_has_one_entry_per_id(plan_row: Rows) -> None:
    figure = timeline_figure([plan_row(fence) for fence in range(1, 8)], NOW_MS)

    def arrays(value: object) -> list[list[Any]]:
        if isinstance(value, list):
            return [value]
        return [a for child in value.values() for a in arrays(child)] if isinstance(value, dict) else []

    assert {len(array) for array in arrays(figure["data"][0])} == {7}


def test_the_hover_says_shape_reason_cost_score_and_requests(plan_row: Rows) -> None:
    (fields,) = timeline_figure([plan_row()], NOW_MS)["data"][0]["customdata"]
    text = " | ".join(fields)
    for words in (
        "decode ×4",
        "plan 1 · completed",
        "9.00 ms",
        "10.0 ms (11 % longer)",
        "3.10 per ms",
        "ordinary",
        "a, b",
    ):
        assert words in text
    unknown = plan_row(cost_state="unknown", selected_cost_ms=0.0)
    assert "never measured" in timeline_figure([unknown], NOW_MS)["data"][0]["customdata"][0]


def test_names_from_outside_are_escaped(plan_row: Rows) -> None:
    row = plan_row(request_ids=["<a href='x'>b</a>"], reason="<b>x</b>", outcome="<i>y</i>", kind="<u>")
    fields = timeline_figure([row], NOW_MS)["data"][0]["customdata"][0]
    assert not any("<" in field for field in fields)


def test_the_time_axis_is_hidden_until_there_are_plans(plan_row: Rows) -> None:
    assert timeline_figure([], NOW_MS)["layout"]["xaxis"]["visible"] is False
    assert timeline_figure([plan_row()], NOW_MS)["layout"]["xaxis"]["visible"] is True


def test_there_are_at_most_five_thousand_marks_and_they_are_the_newest(plan_row: Rows) -> None:
    rows = [plan_row(fence) for fence in range(1, MAX_MARKS + 11)]
    figure = timeline_figure(rows, NOW_MS)
    assert sum(len(trace["ids"]) for trace in figure["data"]) == MAX_MARKS
    assert figure["data"][0]["ids"][-1] == f"run-1/{MAX_MARKS + 10}"


def test_a_figure_is_plain_json(plan_row: Rows) -> None:
    for rows in ([], [plan_row()]):
        figure = timeline_figure(rows, NOW_MS)
        assert json.loads(json.dumps(figure, allow_nan=False)) == figure
