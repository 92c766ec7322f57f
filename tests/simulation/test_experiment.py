"""Whole simulations: the scheduler and the baselines on one machine, deterministic, conserving tokens."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from scheduler.catalog import Catalog
from scheduler.errors import InvalidPolicy
from scheduler.policy import PolicyConfig
from scheduler.records import CompletionRecord, ExecutionTiming, RequestSpec
from scheduler.scheduler import RequestScheduler
from scheduler.shapes import Allocation
from scheduler.simulation.acceptance import Survival
from scheduler.simulation.batcher import PlanColumns
from scheduler.simulation.durations import Disturbance
from scheduler.simulation.errors import SimulationError
from scheduler.simulation.experiment import Experiment, deepest_drafts, policy_by_name, policy_from_document
from scheduler.simulation.machine import MachineSettings
from scheduler.simulation.measured import parse_catalog, scheduler_shapes
from scheduler.simulation.metrics import summary
from tests.simulation.workloads import of_counts

CURVE = Survival((0.8, 0.5, 0.4), "test")
SLOTS = MachineSettings(request_slots=4)
PLAIN = "\n".join(
    ["kind,B,D,W,P,prefill_capacity,duration_ms"]
    + [f"prefill,1,0,0,{c},{c},{2 + c / 64}" for c in (64, 256)]
    + [f"decode,{b},0,1,{b},0,{5 + b / 10}" for b in (1, 2, 4)]
)


@pytest.fixture
def workload():
    generator = np.random.default_rng(11)
    times = np.cumsum(generator.exponential(0.05, 40))
    return of_counts([(float(t), int(generator.integers(10, 700)), int(generator.integers(1, 30))) for t in times])


@pytest.fixture
def plain():
    return parse_catalog(PLAIN, "plain.csv")


def run(policy: str, workload, table, **options):
    experiment = Experiment(policy_by_name(policy), **{"machine": SLOTS, **options})
    return experiment.run(workload, table).result


@pytest.mark.parametrize("policy", ["balanced", "throughput", "budget:64", "prefill_first:128"])
def test_every_policy_serves_every_request_to_its_last_token(policy, workload, plain):
    result = run(policy, workload, plain)
    served = {(o.index, o.prompt_tokens, o.output_tokens) for o in result.outcomes}
    assert served == {(a.index, a.prompt_tokens, a.output_tokens) for a in workload.arrivals}
    assert len(result.gaps_ns) == sum(a.output_tokens - 1 for a in workload.arrivals)


@pytest.mark.parametrize("policy", ["balanced", "budget:64"])
def test_the_device_is_never_busy_twice_and_times_are_in_order(policy, workload, plain):
    result = run(policy, workload, plain)
    assert result.busy_ns <= result.end_ns
    assert sum(tally.device_ns for tally in result.kinds.values()) == result.busy_ns
    assert all(o.arrived_ns <= o.admitted_ns < o.first_ns <= o.finished_ns <= result.end_ns for o in result.outcomes)


def test_the_same_inputs_and_seed_give_the_same_bytes_and_another_seed_others(workload, plain):
    def text(seed: int) -> str:
        return json.dumps(summary(run("balanced", workload, plain, disturbance=Disturbance(noise=0.1), seed=seed)))

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_a_cold_start_discovers_what_a_measured_one_knows(workload, plain):
    cold, measured = (run("balanced", workload, plain, measured=known) for known in (False, True))
    assert "discovery" not in measured.reasons
    assert cold.reasons["discovery"].launches >= 2


@pytest.mark.parametrize("policy", ["balanced", "budget:64"])
def test_exact_sizes_take_less_device_time_than_padded_ones(policy, plain):
    three = of_counts([(0, 64, 5)] * 3)  # three decoders in graphs for four
    exact, padded = (run(policy, three, plain, unpadded=unpadded) for unpadded in (True, False))
    assert exact.busy_ns < padded.busy_ns
    assert exact.plans == padded.plans


def test_fixed_speculation_accepts_what_the_curve_says(workload, catalog_csv):
    table = parse_catalog(catalog_csv, "c.csv")
    result = run("fixed:4", workload, table, survival=CURVE)
    assert result.accepted_tokens / result.offered_tokens == pytest.approx(1.7 / 3, abs=0.06)
    assert len(result.gaps_ns) < sum(a.output_tokens - 1 for a in workload.arrivals)


@pytest.mark.parametrize("allocation", [Allocation.HOST, Allocation.DEVICE])
def test_the_scheduler_speculates_and_serves_every_answer_whole(allocation, workload, catalog_csv):
    table = parse_catalog(catalog_csv + "speculative,4,3,4,10,0,7.5\n", "c.csv")
    options = {"survival": CURVE, "draft_tokens": 3, "allocation": allocation, "confidence_spread": 0.5}
    result = run("balanced", workload, table, **options)
    assert {(o.index, o.output_tokens) for o in result.outcomes} == {
        (a.index, a.output_tokens) for a in workload.arrivals
    }
    assert result.offered_tokens > result.accepted_tokens > 0
    assert set(result.kinds) <= {"prefill", "speculative", "mixed"}


def test_two_frame_slots_hide_host_time_from_the_scheduler_too(workload, plain):
    deep, shallow = (
        run("balanced", workload, plain, machine=MachineSettings(request_slots=4, queue_depth=depth))
        for depth in (2, 1)
    )
    assert np.median(deep.gaps_ns) < np.median(shallow.gaps_ns)


def test_speculation_without_an_acceptance_curve_is_refused():
    with pytest.raises(SimulationError, match="needs an acceptance file"):
        Experiment(PolicyConfig(), draft_tokens=3)
    with pytest.raises(SimulationError, match="needs an acceptance file"):
        Experiment(policy_by_name("fixed:4"))


def test_a_wrong_capture_that_is_not_loaded_is_named(workload, plain):
    with pytest.raises(SimulationError, match="'decode:B9' is not loaded; a graph is decode:B4"):
        run("balanced", workload, plain, disturbance=Disturbance(wrong_capture="decode:B9"))


def test_a_wrong_capture_misleads_the_first_measurement(workload, plain):
    wrong = Disturbance(wrong_capture="prefill:B1:C256", wrong_samples=1)
    assert run("balanced", workload, plain, disturbance=wrong).busy_ns != run("balanced", workload, plain).busy_ns


def test_the_columns_of_a_schedulers_plan_say_what_its_lanes_say(catalog_csv):
    graphs = scheduler_shapes(parse_catalog(catalog_csv, "c.csv"), 4, 3)
    catalog = Catalog(graphs.shapes)
    for shape, curve in graphs.curves.items():
        catalog.observe(shape, round(curve.reference_ms * 1e6), 0)
    batcher = RequestScheduler(catalog, PolicyConfig(), 4)
    handles = [batcher.admit(RequestSpec(str(i), 40 + 600 * i, 50, 4096)) for i in range(3)]
    kinds = set()
    for fence in range(1, 9):
        plan = batcher.plan()
        columns = PlanColumns(plan)
        lanes = [(lane.handle.slot, lane.query_length, lane.prompt_tokens) for lane in plan.lanes]
        assert list(zip(columns.slots, columns.rows, columns.prompt_tokens, strict=True)) == lanes
        kinds.add(plan.shape.kind)
        batcher.commit(plan, fence)
        batcher.advance_to(fence * 10_000_000)
        records = [
            CompletionRecord(handles[lane.handle.slot], lane.prompt_tokens, (0,) * min(1, lane.ceiling))
            for lane in plan.lanes
        ]
        batcher.complete(fence, records, ExecutionTiming((9_000_000,), 9_000_000))
    assert len(kinds) > 1


def test_policies_are_found_by_name_and_in_documents():
    assert policy_by_name("throughput") == PolicyConfig.throughput()
    assert policy_by_name("budget:512").budget == 512
    assert policy_by_name("quick") is None
    assert policy_from_document({"terminal_value": 5}) == PolicyConfig(terminal_value=5)
    shown = {"version": 3, "preset": "throughput", "coefficients": {"token_fairness": 2}}
    assert policy_from_document(shown) == PolicyConfig.throughput().merged({"token_fairness": 2})
    assert policy_from_document({"preset": "throughput"}) == PolicyConfig.throughput()
    assert policy_from_document({"preset": "budget:9"}) == PolicyConfig(token_budget=9), "the preset, not the baseline"


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "JSON object of coefficients"),
        ({"preset": "fast"}, "the preset is 'fast'; it must be one of .*, or budget:N"),
        ({"preset": "budget:0"}, "or budget:N"),
        ({"preset": ["balanced"]}, "the preset is"),
        ({"coefficients": 3}, "no JSON object"),
    ],
)
def test_a_document_that_is_no_policy_is_refused(document, words):
    with pytest.raises(SimulationError, match=words):
        policy_from_document(document)


def test_a_document_with_an_unknown_coefficient_is_refused():
    with pytest.raises(InvalidPolicy, match="no such coefficient"):
        policy_from_document({"speed": 3})


def test_the_deepest_draft_is_the_catalogs(catalog_csv, plain):
    assert (deepest_drafts(parse_catalog(catalog_csv, "c.csv")), deepest_drafts(plain)) == (3, 0)


def test_the_depth_of_a_tree_is_no_depth_of_a_chain():
    rounds = ["speculative,1,3,4,4,0,7", "speculative,1,7,16,16,0,9"]
    assert deepest_drafts(parse_catalog("\n".join([PLAIN, *rounds]), "c.csv")) == 3


@pytest.mark.parametrize("policy", ["balanced", "interactive", "budget:256"])
def test_clients_that_leave_take_nothing_with_them(workload, catalog_csv, policy):
    """Everyone is over at the end, and who stayed gets every token; the same patience gives the same run."""
    table = parse_catalog(catalog_csv, "test")
    patience_ns = np.random.default_rng(5).integers(0, 3_000_000_000, len(workload.arrivals))
    arrivals = tuple(
        dataclasses.replace(arrival, patience_ns=int(patience)) if arrival.index % 2 else arrival
        for arrival, patience in zip(workload.arrivals, patience_ns, strict=True)
    )
    leaving = dataclasses.replace(workload, arrivals=arrivals)
    experiment = Experiment(policy_by_name(policy), SLOTS)
    first, again = (experiment.run(leaving, table).result for _ in range(2))
    stayed = {arrival.index: arrival.output_tokens for arrival in arrivals if arrival.patience_ns is None}
    assert 0 < first.left < len(arrivals) / 2
    assert first.over == len(arrivals)
    assert {o.index: o.output_tokens for o in first.outcomes if o.index in stayed} == stayed
    assert summary(first) == summary(again)
