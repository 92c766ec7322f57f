"""What the plain planner decides beyond the oracle's reach: pages, solo chunking, probes, the queue, the record."""

from __future__ import annotations

import dataclasses

import pytest

from scheduler.plans import BarredBy, CostState, Reason
from scheduler.policy import PolicyConfig
from scheduler.reference.oracle import OracleRequest, OracleState
from scheduler.reference.planner import plan
from scheduler.shapes import GraphKind
from tests.scheduler.oracle_states import MORE, MS, NOW, decision_of, shape

WIDE = shape(GraphKind.SPECULATIVE, 1, 3, 4, speculation_enabled=True)
NARROW = shape(GraphKind.SPECULATIVE, 1, 0, 1, speculation_enabled=True)


def request(slot=0, stage="decode", remaining=0, survival=0.1, limit=MORE):
    return OracleRequest(
        request_id=f"r{slot}",
        slot=slot,
        stage=stage,
        remaining_prompt=remaining,
        token_memory=1.0,
        delivery_memory=1.0 if stage == "decode" else 0.0,
        age_ms=1.0 if stage == "decode" else None,
        last_served_tick=1,
        limit=limit,
        acceptance=(survival,) * 3,
        forecast=(survival,) * 3,
    )


def decision(shapes, durations_ms, requests, policy=None, **changes):
    durations = tuple(duration * MS for duration in durations_ms)
    return decision_of(OracleState(tuple(shapes), durations, tuple(requests), policy or PolicyConfig()), **changes)


def stale(made, position, observed_ns, attempted_ns=None):
    """The decision with one stale graph."""
    graphs = list(made.graphs)
    graphs[position] = dataclasses.replace(
        graphs[position], state=CostState.STALE, observed_ns=observed_ns, attempted_ns=attempted_ns
    )
    return dataclasses.replace(made, graphs=tuple(graphs))


@pytest.mark.parametrize(("free_pages", "submitted"), [(1, False), (2, True), (None, True)])
def test_a_candidate_that_needs_more_new_pages_than_are_free_is_barred(free_pages, submitted):
    made = decision([shape(GraphKind.DECODE, 2)], [4], [request(0), request(1)], free_pages=free_pages, page_tokens=512)
    outcome = plan(made)
    assert (outcome.plan is not None) is submitted
    assert outcome.candidates[0][6] == ("none" if submitted else "pages")


@pytest.mark.parametrize(("remaining", "capacity"), [(200, 128), (128, 128), (100, 128), (64, 64), (10, 64)])
def test_a_prompt_alone_runs_whole_largest_graphs_and_then_the_smallest_that_covers_the_rest(remaining, capacity):
    shapes = [shape(GraphKind.PREFILL, 1, c=c) for c in (64, 128)]
    policy = PolicyConfig(prefill_chunking="deterministic")
    made = decision(shapes, [1, 100], [request(stage="prefill", remaining=remaining)], policy)
    outcome = plan(made)
    assert outcome.plan.shape.prefill_capacity == capacity
    assert outcome.plan.reason is Reason.SOLO_PREFILL
    assert len(outcome.candidates) == outcome.plan.candidates == 1


def test_solo_chunking_leaves_an_unmeasured_graph_to_the_catalog():
    shapes = [shape(GraphKind.PREFILL, 1, c=c) for c in (64, 128)]
    policy = PolicyConfig(prefill_chunking="deterministic")
    found = plan(decision(shapes, [1, 0], [request(stage="prefill", remaining=200)], policy)).plan
    assert (found.shape.prefill_capacity, found.reason) == (128, Reason.DISCOVERY)


def test_full_timing_credit_runs_the_stale_alternative_that_was_tried_longest_ago():
    shapes = [shape(GraphKind.DECODE, 1), shape(GraphKind.DECODE, 2), shape(GraphKind.DECODE, 4)]
    requests = [request(slot) for slot in range(4)]
    made = decision(shapes, [40, 40, 4], requests, timing_full=True, timing_credit_ns=5 * MS)
    made = stale(stale(made, 0, observed_ns=10, attempted_ns=30), 1, observed_ns=20)
    found = plan(made).plan
    assert (found.shape, found.reason) == (shapes[1], Reason.TIMING_REFRESH)
    assert found.exploration_credit_ns == 5 * MS
    assert plan(dataclasses.replace(made, timing_full=False)).plan.reason is Reason.ORDINARY


@pytest.mark.parametrize(("limit", "reason"), [(MORE, Reason.ACCEPTANCE_LEARNING), (4, Reason.ORDINARY)])
def test_full_acceptance_credit_offers_more_drafts_while_output_is_left_to_use_the_observation(limit, reason):
    made = decision([NARROW, WIDE], [4, 6], [request(limit=limit)], acceptance_full=True, acceptance_credit_ns=7)
    found = plan(made).plan
    assert found.reason is reason
    assert found.shape == (WIDE if reason is Reason.ACCEPTANCE_LEARNING else NARROW)


def test_a_winner_that_needs_an_empty_window_waits_for_the_frame_in_flight():
    shapes = [shape(GraphKind.PREFILL, 1, c=64), shape(GraphKind.DECODE, 1)]
    requests = [request(0), request(1, "prefill", 64)]
    made = decision(shapes, [1, 100], requests)
    assert plan(made).plan.shape.kind is GraphKind.PREFILL
    queued = plan(dataclasses.replace(made, queue_depth=1))
    assert queued.plan is None
    assert len(queued.candidates) == 2
    made = decision(shapes, [100, 1], requests, queue_depth=1)
    (waiting,) = plan(made).plan.alternatives
    assert waiting.barred_by is BarredBy.NEEDS_EMPTY_WINDOW


def test_prices_and_ages_are_taken_at_the_queue_s_expected_end():
    made = decision([shape(GraphKind.DECODE, 1)], [4], [request()], start_ns=NOW + 3 * MS)
    (lane,) = plan(made).plan.lanes
    assert lane.age_ms == 4.0
