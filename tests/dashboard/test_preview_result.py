"""What a preview says: differences in words, the simulator's error, distributions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.figures.preview import log_ticks, quantile_figure, tick_words
from dashboard.pages.policy.measures import MEASURE_BY_KEY, MEASURES, difference, error_words, in_words, verdict
from dashboard.pages.policy.preview_result import preview_result, trust_words
from scheduler.policy import PolicyConfig
from service.control.preview.messages import FigureError, Figures, PreviewRequest, PreviewStatus, Sampled
from tests.dashboard.preview_examples import AT, figures, result_with

RUNNING = PolicyConfig.balanced().as_dict()
TTFT, RATE = MEASURE_BY_KEY["ttft_p99_ms"], MEASURE_BY_KEY["tokens_per_s"]
amounts = st.floats(min_value=1e-3, max_value=1e6)


@pytest.mark.parametrize(
    ("before", "after", "words", "judged"),
    [
        (100.0, 82.0, "−18 %", "better"),
        (100.0, 104.0, "+4 %", "worse"),
        (100.0, 100.4, "no difference", ""),
        (100.0, 100.8, "+0.8 %", "worse"),
        (0.0, 0.0, "no difference", ""),
        (0.0, 5.0, "from 0 to 5.00 ms", "worse"),
        (None, 5.0, "–", ""),
    ],
)
def test_differences_are_said_in_words(before: float | None, after: float | None, words: str, judged: str) -> None:
    assert difference(TTFT, before, after) == words
    assert verdict(TTFT, before, after) == judged


def test_shares_differ_by_points() -> None:
    exploration = MEASURE_BY_KEY["exploration_share"]
    assert difference(exploration, 0.02, 0.035) == "+1.5 points"
    assert verdict(exploration, 0.02, 0.035) == ""


@given(amounts, amounts)
def test_what_is_better_one_way_is_worse_the_other_way(before: float, after: float) -> None:
    opposite = {"better": "worse", "worse": "better", "": ""}
    one, other = verdict(RATE, before, after), verdict(RATE, after, before)
    if one and other:  # near the least difference that is told, one of the two may be none
        assert one == opposite[other]
    assert (one == "better") <= (after > before)


def test_the_headline_names_the_four_figures_that_people_ask_for() -> None:
    found = in_words(figures(100.0), figures(82.0, 49.0))
    assert found == "first token p50 −18 %, first token p99 −18 %, throughput −2 %, no difference in inter-token p99"
    assert in_words(Figures(), Figures()) == ""


def test_the_simulators_error_stands_beside_the_figures_in_words() -> None:
    found = result_with()
    assert trust_words(found).endswith("from what really happened: p50 first token 4 % above.")
    assert error_words(FigureError(name="tokens_per_s", recorded=1, simulated=1, ratio=0.9)) == "throughput 10 % below"
    assert error_words(FigureError(name="tokens_per_s", recorded=None, simulated=1, ratio=None)) is None
    assert "Too little was recorded" in trust_words(result_with(simulator_error=[]))


def shown(**changes: Any) -> str:
    request = PreviewRequest(draft={**RUNNING, "decode_age_price": 0.2}, running=RUNNING, running_version=2)
    status = PreviewStatus(
        id="p1", state="done", progress=1.0, message="", request=request, made_at=AT, by="<b>olga</b>",
        result=result_with(**changes),
    )  # fmt: skip
    return json.dumps([part.to_plotly_json() for part in preview_result(status)], default=lambda c: c.to_plotly_json())


def test_a_sampled_window_and_another_policy_are_said_in_plain_sight() -> None:
    words = "Three pieces were replayed, 30 % of the time."
    text = shown(sampled=Sampled(0.3, 3, words), recorded_under_running=False, notes=["Costs were guessed."])
    assert words in text
    assert "not by the policy in force" in text
    assert "Costs were guessed." in text
    assert "not by the policy in force" not in shown()


def test_every_measure_stands_in_the_table_and_names_stay_text() -> None:
    text = shown()
    known = [m for m in MEASURES if m.read(figures()) is not None]
    assert len(known) == len(MEASURES) - 1  # one group of requests only
    assert all(measure.words in text for measure in known)
    assert "<b>olga</b>" in text
    assert "dangerously" not in text


def test_the_headline_names_differences_that_the_simulators_error_swallows() -> None:
    assert "own error" not in shown()
    error = FigureError(name="ttft_p50_ms", recorded=100.0, simulated=140.0, ratio=1.4)
    assert "Smaller than the simulator's own error: first token p50." in shown(simulator_error=[error])


def test_a_preview_of_nothing_shows_words_and_no_empty_chart() -> None:
    empty = Figures()
    text = shown(recorded=empty, running=empty, draft=empty, simulator_error=[])
    assert text.count("No value was recorded.") == 3
    assert "Nothing can be compared" in text


@given(st.lists(st.floats(min_value=0, max_value=1e9), min_size=1, max_size=7))
def test_curves_keep_every_value_and_ticks_span_them(values: list[float]) -> None:
    curve = [(0.1 * at, value) for at, value in enumerate(values)]
    figure = quantile_figure([("draft", curve), ("policy in force", [])], "time")
    (trace,) = figure["data"]
    assert len(trace["y"]) == len(values)
    assert all(drawn > 0 for drawn in trace["y"])
    low, high = figure["layout"]["yaxis"]["range"]
    assert low < high
    assert len(figure["layout"]["yaxis"]["tickvals"]) <= 12


def test_ticks_are_round_numbers_in_units_that_people_know() -> None:
    assert log_ticks(40, 900) == [50, 100, 200, 500, 1000]
    assert [tick_words(value) for value in (0.02, 0.5, 5, 200, 2000)] == ["20 µs", "500 µs", "5 ms", "200 ms", "2 s"]
