"""Two frame slots: what may be queued, when a plan is stale, and what sidecars a completion needs."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler import (
    Allocation,
    CompletionRecord,
    ExecutionTiming,
    FinishReason,
    GraphKind,
    GraphShape,
    PolicyConfig,
    RequestSpec,
)
from scheduler.errors import InvalidCompletion, InvalidFence, InvalidRequest, StalePlan
from scheduler.plans import CostState
from tests.scheduler.conftest import decode, prefill

MS = 1_000_000
DEVICE = GraphShape(GraphKind.SPECULATIVE, 2, 3, 4, 6, speculation_enabled=True, allocation=Allocation.DEVICE)
NARROW = GraphShape(GraphKind.SPECULATIVE, 2, 0, 1, 2, speculation_enabled=True)


def decoding(harness, *shapes, names=("a", "b"), policy=None, **more):
    """A harness whose requests have all published their first token."""
    h = harness(policy, shapes=(prefill(64), *shapes), measured=True)
    for name in names:
        h.scheduler.admit(RequestSpec(name, 64, 200, 100_000, **more))
        h.step()
    assert h.scheduler.plan().shape.kind in (GraphKind.DECODE, GraphKind.SPECULATIVE)
    return h


def commit(h):
    plan = h.scheduler.plan()
    h.fence += 1
    h.scheduler.commit(plan, h.fence)
    return plan


def finish(h, fence, plan, ns=10 * MS, emit=1, **how):
    records = [CompletionRecord(lane.handle, 0, (7,) * emit, emit - 1) for lane in plan.lanes]
    return h.scheduler.complete(fence, records, ExecutionTiming((ns,), ns), **how)


def test_two_rounds_are_in_flight_and_no_third(harness):
    h = decoding(harness, decode(2))
    first = commit(h)
    second = commit(h)
    assert (first.queue_depth, second.queue_depth, h.scheduler.in_flight_frames) == (0, 1, 2)
    assert h.scheduler.plan() is None
    assert h.scheduler.in_flight is first
    with pytest.raises(StalePlan, match="are in flight"):
        h.scheduler.commit(second, h.fence + 1)


def test_frames_complete_in_the_order_of_their_fences(harness):
    h = decoding(harness, decode(2))
    first, second = commit(h), commit(h)
    with pytest.raises(InvalidFence, match="oldest"):
        finish(h, h.fence, second)
    assert [t.index for t in finish(h, h.fence - 1, first)] == [1, 1]
    assert [t.index for t in finish(h, h.fence, second)] == [2, 2]


def test_a_queued_round_is_planned_for_the_queues_expected_end(harness):
    h = decoding(harness, decode(2))
    first, second = commit(h), commit(h)
    assert [lane.age_ms for lane in second.lanes] == [0.0, 0.0], "its lanes are expected to deliver when it starts"
    ends = [frame.expected_end_ns for frame in h.scheduler._state.queue]
    assert ends == [h.now_ns + first.selected_cost_ns, h.now_ns + first.selected_cost_ns + second.selected_cost_ns]
    h.now_ns += 3 * MS
    h.scheduler.advance_to(h.now_ns)
    finish(h, h.fence - 1, first)
    assert h.scheduler._state.queue[0].expected_end_ns == h.now_ns + second.selected_cost_ns


def test_prefill_and_unknown_graphs_drain_the_queue(harness):
    h = harness(measured=True)
    h.admit("a", prompt=600)
    assert commit(h).shape.kind is GraphKind.PREFILL
    h.admit("b")
    assert h.scheduler.plan() is None
    unknown = harness(shapes=(prefill(64), decode(1)))
    unknown.admit("a")
    unknown.step()
    assert commit(unknown).cost_state is CostState.UNKNOWN
    assert unknown.scheduler.plan() is None


def test_an_overrun_frame_takes_nothing_behind_it(harness):
    h = decoding(harness, decode(2))
    plan = commit(h)
    h.scheduler.advance_to(h.now_ns + plan.selected_cost_ns)
    assert h.scheduler.plan() is not None
    h.scheduler.advance_to(h.now_ns + plan.selected_cost_ns + 1)
    assert h.scheduler.plan() is None


@pytest.mark.parametrize("needs", ["grammar", "host_stop", "host_fed"])
def test_a_request_that_needs_feedback_does_not_follow_itself(harness, needs):
    h = decoding(harness, decode(2), **{needs: True})
    plan = commit(h)
    assert h.scheduler.plan() is None
    h.complete(plan)
    assert h.scheduler.plan() is not None


def test_a_copy_offer_stands_until_its_requests_next_completion(harness):
    h = decoding(harness, NARROW, GraphShape(GraphKind.SPECULATIVE, 2, 3, 4, 8), proposal_sources=("copy",))
    assert h.scheduler.plan().shape == NARROW, "no drafts, no wider round"
    for name in ("a", "b"):
        h.scheduler.offer_proposals(h.scheduler.handle_of(name), "copy", 2)
    plan = commit(h)
    assert [(lane.query_length, lane.proposal_source) for lane in plan.lanes] == [(3, "copy")] * 2
    assert h.scheduler.plan() is None, "what follows depends on how much is accepted"
    finish(h, h.fence, plan, emit=3)
    assert h.scheduler.plan().shape == NARROW
    with pytest.raises(InvalidRequest):
        h.scheduler.offer_proposals(h.scheduler.handle_of("a"), "learned", 2)
    with pytest.raises(InvalidRequest):
        h.scheduler.offer_proposals(h.scheduler.handle_of("a"), "copy", -1)


def test_a_plan_is_stale_after_another_commit_or_a_change_of_its_request(harness):
    h = decoding(harness, decode(1), decode(2))
    plan = h.scheduler.plan()
    commit(h)
    with pytest.raises(StalePlan, match="another plan"):
        h.scheduler.commit(plan, h.fence + 1)
    queued = h.scheduler.plan()
    h.scheduler.offer_proposals(h.scheduler.handle_of("b"), "copy", 1)
    with pytest.raises(StalePlan, match="request b has changed"):
        h.scheduler.commit(queued, h.fence + 1)
    assert h.scheduler.in_flight_frames == 1


def test_a_plan_is_stale_when_its_estimate_has_aged_or_its_pages_are_gone(harness):
    h = decoding(harness, decode(2), policy=PolicyConfig(estimate_ttl_ns=20 * MS))
    h.scheduler.set_resources(100, 0)
    plan = h.scheduler.plan()
    h.scheduler.set_resources(0, 0)
    with pytest.raises(StalePlan, match="free pages"):
        h.scheduler.commit(plan, h.fence + 1)
    h.scheduler.set_resources(100, 0)
    h.scheduler.advance_to(h.now_ns + 60 * MS)
    with pytest.raises(StalePlan, match="no longer fresh"):
        h.scheduler.commit(plan, h.fence + 1)


def test_a_request_that_ended_keeps_its_slot_until_its_queued_lane_is_done(harness):
    h = decoding(harness, decode(2))
    first, second = commit(h), commit(h)
    reasons = (FinishReason.STOP, None)
    stop = [CompletionRecord(lane.handle, 0, (1,), finished=r) for lane, r in zip(first.lanes, reasons, strict=True)]
    ended = first.lanes[0].handle
    assert len(h.scheduler.complete(h.fence - 1, stop, ExecutionTiming((MS,), MS))) == 2
    assert h.scheduler.is_resident(ended)
    assert [t.handle for t in finish(h, h.fence, second)] == [first.lanes[1].handle]
    assert not h.scheduler.is_resident(ended)


def test_rounds_that_divide_their_own_rows_complete_with_their_confidence(harness):
    h = decoding(harness, DEVICE, NARROW)
    plan = commit(h)
    assert plan.shape == DEVICE
    with pytest.raises(InvalidCompletion, match="with its confidence"):
        finish(h, h.fence, plan)
    records = [CompletionRecord(lane.handle, 0, (7,)) for lane in plan.lanes]
    timing = ExecutionTiming((MS,), MS)
    good = np.full((2, 64, 3), 0.5, np.float32)
    outside = good.copy()
    outside[1, 0, 1] = 1.5
    for bad in (good[0], good[:, :8], outside, np.full_like(good, np.nan), "x"):
        with pytest.raises(InvalidCompletion):
            h.scheduler.complete_packed_round(h.fence, records, timing, bad)
    outside[1, 0, 1], outside[1, 9, 0] = 0.5, 1.5  # a slot that took no part
    assert len(h.scheduler.complete_packed_round(h.fence, records, timing, outside)) == 2


def test_survival_rows_may_leave_depths_out_but_not_lie(harness):
    h = decoding(harness, GraphShape(GraphKind.SPECULATIVE, 2, 3, 4, 8), NARROW)
    plan = commit(h)
    rows = np.full((64, 3), np.nan)
    rows[0, 0] = -0.1
    records = [CompletionRecord(lane.handle, 0, (7,)) for lane in plan.lanes]
    with pytest.raises(InvalidCompletion, match="survival"):
        h.scheduler.complete_with_survival(h.fence, records, ExecutionTiming((MS,), MS), rows)
    rows[0, 0] = 0.1
    assert len(h.scheduler.complete_with_survival(h.fence, records, ExecutionTiming((MS,), MS), rows)) == 2


@pytest.mark.parametrize(
    ("emitted", "accepted", "offered"),
    [(0, 0, None), (5, 4, None), (2, 2, 1), (3, 1, None), (1, 2, None), (2, 1, 4), (1, -1, None), (1, 0.0, None)],
)
def test_a_round_cannot_accept_more_than_it_offered_or_emit_what_it_did_not_accept(harness, emitted, accepted, offered):
    h = decoding(harness, GraphShape(GraphKind.SPECULATIVE, 1, 3, 4, 4), names=("a",))
    plan = commit(h)
    record = CompletionRecord(plan.lanes[0].handle, 0, (7,) * emitted, accepted, offered_tokens=offered)
    with pytest.raises(InvalidCompletion):
        h.scheduler.complete(h.fence, [record], ExecutionTiming((MS,), MS))
    assert len(finish(h, h.fence, plan, emit=4)) == 4
