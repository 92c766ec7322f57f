"""The figures of a result, against values worked out by hand."""

from __future__ import annotations

import json
from array import array

import pytest

from scheduler.simulation.metrics import Limits, jain, percentiles, summary, time_per_output_token_ms
from scheduler.simulation.results import Outcome, SimulationResult, Tally

MS = 1_000_000


def outcome(index: int, arrived: int, first: int, finished: int, output: int, **more) -> Outcome:
    times = {"arrived_ns": arrived * MS, "first_ns": first * MS, "finished_ns": finished * MS}
    return Outcome(index, more.pop("client", ""), more.pop("prompt_tokens", 100), output_tokens=output, **times, **more)


@pytest.fixture
def result() -> SimulationResult:
    return SimulationResult(
        outcomes=[
            outcome(0, 0, 100, 500, 5, largest_gap_ns=150 * MS, client="a", admitted_ns=0),
            outcome(1, 100, 400, 400, 1, cached_tokens=60, client="b", admitted_ns=120 * MS),
            outcome(2, 200, 1200, 2000, 3, largest_gap_ns=700 * MS, client="a", admitted_ns=300 * MS),
        ],
        gaps_ns=array("q", [150 * MS, 50 * MS, 100 * MS, 100 * MS, 100 * MS, 700 * MS]),
        refused=2,
        end_ns=2000 * MS,
        busy_ns=1500 * MS,
        plans=10,
        lanes=15,
        offered_tokens=8,
        accepted_tokens=2,
        kinds={"decode": Tally(6, 500 * MS), "prefill": Tally(4, 1000 * MS)},
        reasons={
            "ordinary": Tally(8, 1200 * MS),
            "discovery": Tally(1, 200 * MS),
            "timing_refresh": Tally(1, 100 * MS),
        },
        shapes={"decode:B4": Tally(6, 500 * MS)},
    )


def test_latencies_are_measured_from_arrival_and_between_outputs(result):
    found = summary(result)
    assert found["ttft_ms"] == {"p50": 300.0, "p90": 860.0, "p99": 986.0, "max": 1000.0}
    assert found["gap_ms"]["p50"] == 100.0
    assert found["gap_ms"]["max"] == 700.0
    assert found["time_per_output_token_ms"] == {"p50": 250.0, "p90": 370.0, "p99": 397.0, "max": 400.0}
    assert found["queue_ms"]["max"] == 100.0


def test_a_one_token_answer_has_no_time_per_output_token(result):
    assert time_per_output_token_ms(result.outcomes[1]) is None


def test_throughput_counts_tokens_per_second_from_first_arrival_to_last_output(result):
    assert summary(result)["throughput"] == {
        "requests_per_s": 1.5,
        "prompt_tokens_per_s": 150.0,
        "computed_prompt_tokens_per_s": 120.0,
        "output_tokens_per_s": 4.5,
    }
    assert summary(result)["busy_share"] == 0.75


@pytest.mark.parametrize(
    ("limits", "good"), [(Limits(), 3), (Limits(ttft_ms=300), 2), (Limits(gap_ms=149), 1), (Limits(999, 150), 2)]
)
def test_an_answer_is_good_when_it_keeps_every_given_limit(result, limits, good):
    found = summary(result, limits)["goodput"]
    assert found["requests_per_s"] == pytest.approx(good / 2)
    assert found["share"] == pytest.approx(good / 3)


def test_jain_is_one_for_equal_rates_and_one_over_n_for_a_single_winner():
    assert jain([3.0, 3.0, 3.0]) == 1.0
    assert jain([7.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain([]) is None


def test_fairness_is_over_service_rates_of_requests_and_of_clients(result):
    rates = [105 / 500, 41 / 300, 103 / 1800]
    found = summary(result)["fairness"]
    assert found["requests"] == pytest.approx(jain(rates))
    assert found["clients"] == pytest.approx(jain([(rates[0] + rates[2]) / 2, rates[1]]))


def test_exploration_is_its_share_of_device_time(result):
    assert summary(result)["exploration_share"] == pytest.approx(0.2)
    assert summary(result)["speculation"]["accepted_share"] == 0.25


def test_launches_are_listed_by_kind_with_their_time(result):
    assert summary(result)["launches"] == {
        "decode": {"launches": 6, "device_ms": 500.0},
        "prefill": {"launches": 4, "device_ms": 1000.0},
    }


def test_nothing_to_measure_gives_no_figure_and_still_valid_json():
    found = summary(SimulationResult(refused=3))
    assert percentiles([]) == {"p50": None, "p90": None, "p99": None, "max": None}
    assert found["ttft_ms"]["p99"] is None
    assert found["throughput"]["output_tokens_per_s"] is None
    json.dumps(found, allow_nan=False)
