"""True durations: context, noise, drift, a wrong capture, exact sizes, host costs."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.records import RequestHandle
from scheduler.shapes import GraphKind, GraphShape
from scheduler.simulation.durations import Disturbance, HostCosts, PaddedCost, TrueDurations
from scheduler.simulation.errors import SimulationError
from scheduler.simulation.measured import ContextCurve, parse_catalog
from scheduler.simulation.unpadded import UnpaddedCost

DECODE = GraphShape(GraphKind.DECODE, 4)
CURVES = {DECODE: ContextCurve({1024: 5.0, 2048: 7.0})}


class Step:
    def __init__(self, shape: GraphShape, *prompt_tokens: int) -> None:
        self.shape = shape
        self.lanes = [Share(slot, tokens) for slot, tokens in enumerate(prompt_tokens)]


class Share:
    def __init__(self, slot: int, prompt_tokens: int) -> None:
        self.handle = RequestHandle(slot, 1)
        self.prompt_tokens = prompt_tokens
        self.query_length = prompt_tokens or 1


def many(durations: TrueDurations, count: int, step_ns: int = 0) -> list[tuple[int, int]]:
    return [durations.duration_ns(Step(DECODE), 0.0, i * step_ns) for i in range(count)]


def test_a_padded_graph_takes_its_time_at_the_reference_context():
    assert TrueDurations(PaddedCost(CURVES)).duration_ns(Step(DECODE), 9e9, 0) == (5_000_000, 5_000_000)


def test_a_shape_that_is_equal_but_not_the_same_object_is_found():
    assert PaddedCost(CURVES).step_ms(Step(GraphShape(GraphKind.DECODE, 4)), 0.0) == 5.0


def test_durations_follow_the_context_when_asked_to():
    cost = PaddedCost(CURVES, by_context=True)
    assert cost.needs_context
    assert cost.step_ms(Step(DECODE), 1536.0) == 6.0


def test_noise_keeps_the_median_and_is_the_same_for_a_seed():
    noisy = [true for true, _ in many(TrueDurations(PaddedCost(CURVES), Disturbance(noise=0.2), seed=3), 4000)]
    again = [true for true, _ in many(TrueDurations(PaddedCost(CURVES), Disturbance(noise=0.2), seed=3), 4000)]
    other = [true for true, _ in many(TrueDurations(PaddedCost(CURVES), Disturbance(noise=0.2), seed=4), 4000)]
    assert noisy == again != other
    assert np.median(noisy) == pytest.approx(5e6, rel=0.02)
    assert np.std(np.log(noisy)) == pytest.approx(0.2, rel=0.05)


def test_drift_stays_within_its_amplitude_and_returns_after_its_period():
    durations = TrueDurations(PaddedCost(CURVES), Disturbance(drift=0.1, drift_period_s=100.0))
    found = [true for true, _ in many(durations, 101, step_ns=1_000_000_000)]
    assert min(found) == pytest.approx(4.5e6, rel=1e-3)
    assert max(found) == pytest.approx(5.5e6, rel=1e-3)
    assert found[0] == found[100]


def test_a_wrong_capture_reads_too_long_for_its_first_samples_while_execution_is_as_it_is():
    wrong = Disturbance(wrong_capture="decode:B4", wrong_samples=2)
    durations = TrueDurations(PaddedCost(CURVES), wrong)
    assert many(durations, 3) == [(5_000_000, 8_000_000), (5_000_000, 8_000_000), (5_000_000, 5_000_000)]


def test_another_graph_does_not_use_up_the_wrong_samples():
    durations = TrueDurations(PaddedCost(CURVES), Disturbance(wrong_capture="prefill:B1:C64"))
    assert many(durations, 1) == [(5_000_000, 5_000_000)]


def test_an_exact_size_costs_less_than_the_graph_that_holds_it(catalog_csv):
    cost = UnpaddedCost(parse_catalog(catalog_csv, "c.csv"))
    assert cost.step_ms(Step(DECODE, 0, 0, 0), 0.0) == pytest.approx(5.3)
    prefill = GraphShape(GraphKind.PREFILL, 1, prefill_capacity=256)
    assert cost.step_ms(Step(prefill, 160), 0.0) == pytest.approx(4.5)
    mixed = GraphShape(GraphKind.MIXED, 4, prefill_capacity=256)
    assert cost.step_ms(Step(mixed, 0, 0, 0, 128), 0.0) == pytest.approx(6.3 + 2.0)


def test_exact_sizes_take_the_graphs_of_the_width_that_runs(catalog_csv):
    cost = UnpaddedCost(parse_catalog(catalog_csv, "c.csv"))
    chain = GraphShape(GraphKind.SPECULATIVE, 4, 3, 4)
    assert cost.step_ms(Step(chain, 0, 0, 0), 0.0) == pytest.approx(5.5 + 3)


def test_a_step_with_drafts_has_the_host_cost_of_one():
    host = HostCosts()
    assert (host.step_ns(0), host.step_ns(5)) == (250_000, 1_600_000)
    assert HostCosts(step_ms=1.0).step_ns(0) == 1_000_000


@pytest.mark.parametrize("field", ["noise", "drift", "drift_period_s", "wrong_factor", "wrong_samples"])
def test_a_negative_disturbance_is_refused(field):
    with pytest.raises(SimulationError):
        Disturbance(**{field: -1})


def test_a_negative_host_cost_is_refused():
    with pytest.raises(SimulationError, match="step_ms is -1"):
        HostCosts(step_ms=-1)
