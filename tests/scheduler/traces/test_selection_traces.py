"""Specification S13's synthetic catalogs: what the selector does in each named situation."""

from __future__ import annotations

import pytest

from scheduler import CostState, GraphKind, GraphShape, PolicyConfig, Reason
from tests.scheduler.traces.device import MS, Trace, decode, prefill, round_of, state_graph, synthetic_ms

CAPACITIES = (64, 128, 256, 512, 1024, 2048, 4096)
PREFILLS = tuple(map(prefill, CAPACITIES))
DECODES = tuple(map(decode, (1, 2, 4, 8, 16)))
ROUNDS = tuple(round_of(batch, depth) for batch in (1, 2, 4, 8, 16) for depth in (0, 3, 7))


@pytest.mark.parametrize("count", [1, 2, 16])
def test_long_prefills_take_full_graphs_while_nobody_decodes(count):
    trace = Trace((*PREFILLS, *DECODES))
    for i in range(count):
        trace.admit(f"r{i}", prompt=16_384, output=1)
    plans = trace.run_until_idle()
    assert [plan.shape.prefill_capacity for plan in plans] == [4096] * (4 * count)


def test_a_fitting_tail_takes_its_own_graph():
    trace = Trace((*PREFILLS, *DECODES))
    trace.admit("a", prompt=4096 + 256, output=1)
    assert [plan.shape.prefill_capacity for plan in trace.run_until_idle()] == [4096, 256]


def test_a_tail_is_padded_where_one_larger_graph_is_cheaper_than_two():
    trace = Trace((prefill(64), prefill(128), decode(1)), ms=lambda s: 3.0 if s.prefill_capacity == 64 else 3.5)
    trace.admit("a", prompt=100, output=1)
    assert [plan.shape.prefill_capacity for plan in trace.run_until_idle()] == [128]


def test_a_large_graph_earns_only_the_tail_that_it_processes():
    trace = Trace((*PREFILLS, *DECODES))
    trace.admit("a", prompt=64, output=1)
    plan = trace.step()
    assert plan.shape.prefill_capacity == 64
    assert plan.lanes[0].prompt_tokens == 64


def widths(plans, last=20):
    """Depths of the last ordinary rounds but one: probes explore, and the last round has its output limit."""
    rounds = [p for p in plans if p.shape.kind is GraphKind.SPECULATIVE and p.reason is Reason.ORDINARY]
    return [plan.shape.draft_depth for plan in rounds][-last - 1 : -1]


def test_high_acceptance_leads_to_deep_rounds_and_low_acceptance_to_width_one():
    deep = Trace((*PREFILLS, *ROUNDS), accepted=7)
    shallow = Trace((*PREFILLS, *ROUNDS), accepted=0)
    for trace in (deep, shallow):
        trace.admit("a", output=500)
        trace.run_until_idle()
    assert set(widths(deep.plans)) == {7}
    assert set(widths(shallow.plans)) == {0}


def test_lanes_of_unlike_acceptance_share_a_round_and_keep_their_own_forecasts():
    trace = Trace((*PREFILLS, *ROUNDS), accepted=lambda name, _: 7 if name == "good" else 0)
    trace.admit("good", output=400)
    trace.admit("bad", output=400)
    while not (trace.tokens["good"] > 250 and trace.tokens["bad"] > 20):
        trace.step()
    plan = next(p for p in reversed(trace.plans) if len(p.lanes) == 2 and p.shape.draft_depth == 7)
    expected = {lane.request_id: lane.expected_tokens for lane in plan.lanes}
    assert expected["good"] > 6
    assert expected["bad"] < 2


def test_redundant_padding_never_runs_however_fast_it_was_measured():
    trace = Trace((*PREFILLS, decode(2), decode(8)), ms=lambda s: 1.0 if s.batch_capacity == 8 else 9.0)
    trace.admit("a", output=30)
    trace.admit("b", output=30)
    plans = trace.run_until_idle()
    assert {plan.shape.batch_capacity for plan in plans if plan.shape.kind is GraphKind.DECODE} == {2}


def test_three_of_four_rows_compete_with_two_of_two():
    for quad_ms, best in ((10.0, 4), (40.0, 2)):
        trace = Trace((*PREFILLS, decode(2), decode(4)), ms=lambda s, q=quad_ms: q if s.batch_capacity == 4 else 9.0)
        for i in range(3):
            trace.admit(f"r{i}", output=50)
        while not all(trace.visible.values()):
            trace.step()
        assert trace.step().shape.batch_capacity == best


def test_a_long_decode_pair_advances_in_step():
    trace = Trace((*PREFILLS, *DECODES))
    trace.admit("a", output=600)
    trace.admit("b", output=600)
    plans = trace.run_until_idle()
    assert abs(trace.tokens["a"] - trace.tokens["b"]) == 0
    assert sum(len(plan.lanes) == 2 for plan in plans) > 590


def test_under_contention_prompts_and_streams_both_advance():
    trace = Trace((*PREFILLS, *DECODES), queue=2)
    for i in range(4):
        trace.admit(f"stream{i}", output=3000)
    while not all(trace.visible.values()):
        trace.step()
    for i in range(4):
        trace.admit(f"prompt{i}", prompt=8192, output=4)
    while not all(trace.tokens[f"prompt{i}"] == 4 for i in range(4)):
        trace.step()
    assert min(trace.tokens[f"stream{i}"] for i in range(4)) > 3
    assert max(gap for i in range(4) for gap in trace.gaps_ms(f"stream{i}")) < 1000


def test_a_stale_graph_stays_in_use_and_is_measured_anew():
    trace = Trace((*PREFILLS, *DECODES))
    trace.admit("a", output=40)
    trace.step()
    trace.now_ns += 31_000 * MS
    trace.scheduler.advance_to(trace.now_ns)
    plan = trace.step()
    assert (plan.cost_state, plan.reason) == (CostState.STALE, Reason.ORDINARY)
    assert trace.step().cost_state is CostState.FRESH


def test_the_first_sample_of_a_stale_graph_replaces_its_estimate():
    slow = {"factor": 1.0}
    trace = Trace((*PREFILLS, *DECODES), ms=lambda s: synthetic_ms(s) * slow["factor"])
    trace.admit("a", output=40)
    trace.step()
    trace.now_ns += 31_000 * MS
    slow["factor"] = 3.0
    trace.scheduler.advance_to(trace.now_ns)
    shape = trace.step().shape
    assert trace.scheduler.catalog.estimate(shape, trace.now_ns).duration_ns == round(synthetic_ms(shape) * 3 * MS)


def test_an_older_output_gap_raises_the_value_of_serving_its_stream():
    trace = Trace((*PREFILLS, *DECODES))
    trace.admit("a", output=40)
    trace.step()
    young = trace.scheduler.plan()
    trace.now_ns += 500 * MS
    trace.scheduler.advance_to(trace.now_ns)
    old = trace.scheduler.plan()
    assert old.lanes[0].value > young.lanes[0].value
    assert old.lanes[0].age_ms == pytest.approx(young.lanes[0].age_ms + 500)


def joined(snapshot_ms):
    """One stream decodes while another waits behind its prompt-end snapshot: what runs next?"""
    shapes = (*PREFILLS, *DECODES, state_graph(GraphKind.SNAPSHOT))
    trace = Trace(shapes, ms=lambda s: snapshot_ms if s.kind is GraphKind.SNAPSHOT else synthetic_ms(s))
    trace.scheduler.set_resources(1 << 20, 8)
    trace.admit("a", output=2000)
    while trace.tokens["a"] < 20:
        trace.step()
    trace.admit("b", output=2000)
    while not trace.visible["b"]:
        trace.step()
    return trace


def test_a_cheap_snapshot_is_taken_to_share_the_decode_batch_and_a_dear_one_waits():
    cheap, dear = joined(0.5), joined(400.0)
    first = cheap.step()
    assert first.shape.kind is GraphKind.SNAPSHOT
    assert first.following is not None
    assert first.following.batch_capacity == 2
    assert dear.step().shape.kind is GraphKind.DECODE


def test_with_no_preferences_at_all_a_request_can_wait_for_ever():
    """The preset gives the guarantee, not the machinery."""
    nothing = PolicyConfig(token_fairness=0, delivery_fairness=0, decode_age_price=0, terminal_age_price=0)
    trace = Trace((prefill(64), decode(1)), policy=nothing, ms=lambda s: 2.0 if s.prefill_capacity else 1.0)
    trace.admit("stream", output=5000)
    trace.step()
    trace.admit("waits", prompt=1000, output=1)
    for _ in range(2000):
        trace.step()
    assert trace.tokens["stream"] >= 2000
    assert trace.tokens["waits"] == 0


def test_a_mixed_graph_serves_a_prompt_and_the_streams_together():
    mixed = tuple(GraphShape(GraphKind.MIXED, batch, prefill_capacity=c) for batch in (2, 4) for c in (64, 128, 256))

    def dear_alone(shape):
        return 30.0 if shape.kind is GraphKind.PREFILL else synthetic_ms(shape)

    trace = Trace((*PREFILLS, *DECODES, *mixed), ms=dear_alone)
    for i in range(3):
        trace.admit(f"s{i}", output=400)
    while not all(trace.visible.values()):
        trace.step()
    trace.admit("prompt", prompt=200, output=5)
    while not trace.visible["prompt"]:
        trace.step()
    served = [p for p in trace.plans if p.shape.kind is GraphKind.MIXED]
    assert served
    assert {lane.role.value for lane in served[-1].lanes} == {"decode", "prefill"}
