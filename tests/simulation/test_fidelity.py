"""The simulated machine under vLLM's rule, beside a real run of vLLM on the same GPU and the same requests."""

from __future__ import annotations

import pathlib

import pytest

from scheduler.simulation.baselines.fidelity import (
    Errors,
    MeasuredAnswer,
    compare_run,
    parse_measured_run,
    relative_errors,
)
from scheduler.simulation.baselines.naming import named_baseline, step_costs
from scheduler.simulation.durations import TrueDurations
from scheduler.simulation.errors import InvalidTable, SimulationError
from scheduler.simulation.machine import MachineSettings, simulate
from scheduler.simulation.measured import parse_catalog
from scheduler.simulation.results import Outcome
from scheduler.simulation.workload import parse_arrivals

DATA = pathlib.Path(__file__).parent / "data"
RUN = "vllm_run_rtxpro6000_llama-3.1-8b_tp1.csv"
CATALOG = "rtxpro6000__llama-3.1-8b__ordinary.allctx.csv"
SEQUENCES = 128
HEADER = "time_s,prompt_tokens,output_tokens,queue_ms,ttft_ms,tpot_ms,e2e_ms"


def _errors_against_the_real_run(budget: int) -> dict[str, Errors]:
    run = (DATA / RUN).read_text()
    baseline = named_baseline(f"budget:{budget}")
    assert baseline is not None
    graphs = baseline.graphs(parse_catalog((DATA / CATALOG).read_text(), CATALOG))
    result = simulate(
        baseline.batcher(graphs, SEQUENCES),
        parse_arrivals(run, RUN),
        TrueDurations(step_costs(graphs, unpadded=True, by_context=True)),
        MachineSettings(request_slots=SEQUENCES, queue_depth=1),
    )
    return compare_run(parse_measured_run(run, RUN), result.outcomes)


def test_the_simulated_run_is_close_to_the_real_one() -> None:
    errors = _errors_against_the_real_run(2048)
    assert errors["tpot_ms"].median < 0.08
    assert errors["e2e_ms"].median < 0.10
    assert errors["ttft_ms"].median < 0.20


def test_errors_are_relative_to_the_real_values_and_their_bias_keeps_its_sign() -> None:
    errors = relative_errors([10.0, 20.0, 40.0], [11.0, 18.0, 40.0])
    assert errors.median == pytest.approx(0.1)
    assert errors.p90 == pytest.approx(0.1)
    assert errors.bias == pytest.approx(0.0)
    assert (errors.real_p50, errors.simulated_p50) == (20.0, 18.0)


@pytest.mark.parametrize(("real", "simulated"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([-1.0], [1.0])])
def test_errors_need_pairs_with_real_values_above_zero(real: list[float], simulated: list[float]) -> None:
    with pytest.raises(SimulationError):
        relative_errors(real, simulated)


def _outcome(index: int, first_ms: int, last_ms: int, tokens: int) -> Outcome:
    return Outcome(
        index, "", 5, 0, output_tokens=tokens, first_ns=first_ms * 1_000_000, finished_ns=last_ms * 1_000_000
    )


def test_each_answer_is_compared_with_the_outcome_of_its_own_number() -> None:
    answers = [MeasuredAnswer(0, 10, 5, 20), MeasuredAnswer(0, 100, 1, 100)]
    errors = compare_run(answers, [_outcome(1, 100, 100, 1), _outcome(0, 10, 20, 3)])
    assert {name: value.median for name, value in errors.items()} == {"ttft_ms": 0.0, "tpot_ms": 0.0, "e2e_ms": 0.0}


def test_a_request_that_was_not_simulated_is_no_small_error_but_a_refusal() -> None:
    with pytest.raises(SimulationError, match="1 of 2 requests"):
        compare_run([MeasuredAnswer(0, 10, 5, 20)] * 2, [_outcome(0, 10, 20, 3)])


def test_a_real_run_is_numbered_in_order_of_arrival_as_its_workload_is() -> None:
    text = "\n".join([HEADER, "2.0,5,5,0,30,1,40", "1.0,7,5,0,20,1,40"])
    assert [answer.ttft_ms for answer in parse_measured_run(text, "run.csv")] == [20, 30]
    assert [arrival.prompt_tokens for arrival in parse_arrivals(text, "run.csv").arrivals] == [7, 5]


def test_a_run_without_its_columns_is_refused_by_name() -> None:
    with pytest.raises(InvalidTable, match="lacks the columns queue_ms, tpot_ms"):
        parse_measured_run("time_s,prompt_tokens,output_tokens,ttft_ms,e2e_ms\n0,1,1,1,1", "run.csv")
