"""Sweeps as people write them, and the curve that is drawn of them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.errors import RefusedInput
from dashboard.figures.sweep import Point, sweep_figure
from dashboard.pages.policy.measures import AXES
from dashboard.pages.policy.preview_form import read_axes, read_window
from dashboard.pages.policy.sweep_values import read_sweep, read_values, suggestion
from dashboard.pages.policy.sweep_view import sweep_part, trade_off
from scheduler.policy import COEFFICIENT_BY_NAME, COEFFICIENTS, PolicyConfig
from service.control.preview.messages import MOST_SWEEP_POINTS, Figures, PreviewRequest, Sweep, SweepAxis, SweepPoint
from tests.dashboard.preview_examples import result_with

AGE = COEFFICIENT_BY_NAME["decode_age_price"]
TTL = COEFFICIENT_BY_NAME["estimate_ttl_ns"]
MEMORY = COEFFICIENT_BY_NAME["newcomer_memory"]
RUNNING = PolicyConfig.balanced().as_dict()


@pytest.mark.parametrize(
    ("entry", "values"),
    [
        ("4, 8,16", (4.0, 8.0, 16.0)),
        ("8, 4, 8", (4.0, 8.0)),
        ("1..16", (1.0, 2.0, 4.0, 8.0, 16.0)),
        ("1..100/3", (1.0, 10.0, 100.0)),
        ("0..1/3", (0.0, 0.5, 1.0)),
        (".5..2/3", (0.5, 1.0, 2.0)),
    ],
)
def test_lists_and_ranges_are_read(entry: str, values: tuple[float, ...]) -> None:
    assert read_values(AGE, entry) == values


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("", "two values"),
        ("4", "two values"),
        ("4, x", "not 'x'"),
        ("-1, 2", "not -1"),
        ("5..2", "from a smaller"),
        ("1..2/99", "2 to 25"),
        ("x..2", "no range"),
        (",".join(map(str, range(40))), "at most 25"),
        ("1," * 300, "characters"),
    ],
)
def test_what_cannot_be_swept_says_why(entry: str, words: str) -> None:
    assert words in str(read_values(AGE, entry))


def test_names_are_swept_in_their_own_order() -> None:
    assert read_values(MEMORY, "phase, deprived") == ("deprived", "phase")
    assert read_values(TTL, "1000, 2000") == (1000, 2000)


@pytest.mark.parametrize("coefficient", COEFFICIENTS, ids=lambda c: c.name)
def test_every_coefficient_has_a_first_sweep_to_offer(coefficient) -> None:
    values = read_values(coefficient, suggestion(coefficient.default, coefficient))
    assert isinstance(values, tuple), values
    assert len(values) >= 2


@given(st.text(max_size=40))
def test_whatever_is_typed_gives_values_that_may_be_used_or_words(entry: str) -> None:
    found = read_values(AGE, entry)
    if isinstance(found, str):
        assert found
        return
    assert 2 <= len(found) <= MOST_SWEEP_POINTS
    assert list(found) == sorted(set(found))
    assert all(AGE.problem(value) is None for value in found)


def test_two_axes_are_at_most_25_combinations_and_two_different_coefficients() -> None:
    sweep, problems = read_sweep([(AGE, "1..16/5"), (MEMORY, "deprived, decode, phase, fair_share")])
    assert problems == {}
    assert sweep is not None
    assert [axis.coefficient for axis in sweep.axes] == ["decode_age_price", "newcomer_memory"]
    assert "30 combinations" in read_sweep([(AGE, "1..16/6"), (TTL, "1..16/5")])[1]["estimate_ttl_ns"]
    assert read_axes(["decode_age_price", "1,2", "decode_age_price", "3,4"]).problems[1] is not None
    assert read_axes([None, None, None, None]).sweep is None
    with pytest.raises(RefusedInput):
        read_axes(["nonsense", "1,2", None, None])


def test_a_window_is_minutes_up_to_a_time_or_to_the_newest_plan() -> None:
    assert read_window("2.5", "").minutes == 2.5
    until = read_window("10", "2026-11-30 14:05").until
    assert until is not None
    assert until.isoformat() == "2026-11-30T14:05:00+00:00"
    assert set(read_window("0", "yesterday").problems) == {"minutes", "until"}
    assert "minutes" in read_window("1e9", "").problems


AXES_SWEPT = (SweepAxis("decode_age_price", (0.1, 0.4)), SweepAxis("token_fairness", (8.0, 16.0)))


def swept() -> tuple[PreviewRequest, list[SweepPoint]]:
    draft = {**RUNNING, "decode_age_price": 0.4}
    points = [
        SweepPoint(
            values, Figures(ttft_ms=[(0.99, 100 * values[0] + values[1])], tokens_per_s=50.0), values == (0.4, 16.0)
        )
        for values in itertools.product(*(axis.values for axis in AXES_SWEPT))
    ]
    return PreviewRequest(draft=draft, running=RUNNING, sweep=Sweep(AXES_SWEPT)), points


def test_each_point_of_the_curve_carries_its_own_draft_and_both_policies_are_marked() -> None:
    request, points = swept()
    found = result_with(sweep=points, sweep_axes=AXES_SWEPT)
    figure = trade_off(request, found, "tokens_per_s", "ttft_p99_ms")
    curves, marks = figure["data"][:2], figure["data"][2:]
    assert [mark["name"] for mark in marks] == ["policy in force", "draft"]
    assert sum(len(curve["x"]) for curve in curves) == len(points)
    assert "decode_age_price:0.1,terminal_value:256" in curves[0]["customdata"][0][3]
    drafts = {fields[3] for curve in curves for fields in curve["customdata"]}
    assert len(drafts) == len(points)


def test_every_pair_of_axes_can_be_drawn_also_of_points_without_values() -> None:
    request, points = swept()
    found = result_with(sweep=[*points, SweepPoint((0.1, 8.0), Figures())], sweep_axes=AXES_SWEPT)
    for x, y in itertools.product(AXES, AXES):
        figure = trade_off(request, found, x, y)
        assert all(len(trace["x"]) == len(trace["y"]) == len(trace["customdata"]) for trace in figure["data"])
    assert len(sweep_part(request, found)) == 5


def test_names_in_the_curve_are_escaped() -> None:
    request, points = swept()
    found = result_with(sweep=points, sweep_axes=AXES_SWEPT)
    point = trade_off(request, found, "tokens_per_s", "ttft_p99_ms")["data"][0]
    assert "<" not in point["name"]
    odd = Point("<b>", "<i>", 1.0, 2.0, "x", "y", "")
    assert sweep_figure([], odd, odd, "<b>", "<i>")["layout"]["xaxis"]["title"]["text"] == "&lt;b&gt;"


def test_points_that_lie_on_one_another_share_a_label() -> None:
    points = [Point(str(at), "", 1.0 if at < 3 else 2.0, 5.0, "", "", "") for at in range(5)]
    curve = sweep_figure(points, points[0], points[1], "x", "y")["data"][0]
    assert curve["text"] == ["0, 1, 2", "", "", "3, 4", ""]
