"""Frames: plans that are not this scheduler's, fences that do not rise, and graphs that never return."""

from __future__ import annotations

import pytest

from scheduler import Catalog, ExecutionTiming, GraphKind, RequestHandle, RequestScheduler, RequestSpec, layout
from scheduler.errors import DuplicateRequest, InvalidCompletion, InvalidFence, SlotsFull, StalePlan
from scheduler.plans import PLAN_FIELDS, ScheduledPlan
from tests.scheduler.conftest import decode, prefill
from tests.scheduler.hostile import GOOD, NO_COUNTS, STATE, answers, commit, decoding, flying, record, refused

HOUR_NS = 3_600_000_000_000


def by_hand(plan, **changes):
    """A plan with the same fields, made without plan()."""
    return ScheduledPlan(**({name: getattr(plan, name) for name in PLAN_FIELDS} | changes))


def test_a_fence_is_a_whole_number_that_rises_and_fits_a_device():
    h = decoding()
    plan = h.scheduler.plan()
    for fence in (h.fence, h.fence - 1, 0, *NO_COUNTS):
        refused(h.scheduler, InvalidFence, h.scheduler.commit, plan, fence, says="whole number above")
    h.scheduler.commit(plan, 2**63 - 1)
    second = h.scheduler.plan()
    for fence in (2**63 - 1, 2**63, 1):
        refused(h.scheduler, InvalidFence, h.scheduler.commit, second, fence)


@pytest.mark.parametrize("plan", [None, 5, "plan", {}, (), ScheduledPlan, object()])
def test_what_is_no_plan_is_not_committed(plan):
    h = decoding()
    refused(h.scheduler, StalePlan, h.scheduler.commit, plan, h.fence + 1, says="plan again")


def test_a_plan_made_by_hand_is_not_committed():
    h = decoding()
    plan = h.scheduler.plan()
    for changes in ({}, {"lanes": ()}, {"shape": prefill(64)}, {"tick": 10**9}):
        refused(h.scheduler, StalePlan, h.scheduler.commit, by_hand(plan, **changes), h.fence + 1)
    h.scheduler.commit(plan, h.fence + 1)


def test_a_plan_over_another_catalog_or_more_slots_is_not_committed():
    """Its graph, or its lanes' slots, would be places that this scheduler does not have."""
    h = decoding(decode(2), slots=2)
    for other in (
        decoding(decode(1), decode(2)),
        decoding(decode(4), decode(2)),
        decoding(decode(2), names=("a", "b", "c")),
    ):
        other.scheduler._state.tick = h.scheduler._state.tick
        for name in ("a", "b"):
            if other.scheduler.resident_count > 2:
                other.scheduler.cancel(other.scheduler.handle_of(name))
        refused(h.scheduler, StalePlan, h.scheduler.commit, other.scheduler.plan(), h.fence + 1, says="plan again")
    assert h.step() is not None


def test_a_plan_is_committed_once():
    h = decoding()
    plan = commit(h)
    refused(h.scheduler, StalePlan, h.scheduler.commit, plan, h.fence + 1, says="another plan")
    h.scheduler.complete(h.fence, answers(plan), GOOD)
    refused(h.scheduler, StalePlan, h.scheduler.commit, plan, h.fence + 1)


def hung(*shapes, slots=3, **more):
    """A round in flight that was to return hours ago."""
    h, plan = flying(*shapes, slots=slots, **more)
    h.now_ns += 10 * HOUR_NS
    h.scheduler.advance_to(h.now_ns)
    return h, plan


def test_behind_a_graph_that_never_returns_nothing_is_planned_and_nobody_preempted():
    h, plan = hung(decode(2), STATE[3])
    h.scheduler.set_resources(0, 0)
    for _ in range(3):
        before = h.scheduler.checkpoint()
        assert h.scheduler.plan() is None
        assert h.scheduler.preemption_victim() is None
        assert h.scheduler.checkpoint() == before
        h.now_ns += HOUR_NS
        h.scheduler.advance_to(h.now_ns)
    assert h.scheduler.in_flight is plan


def test_requests_of_a_graph_that_never_returns_can_be_cancelled_and_keep_their_slots():
    h, plan = hung()
    slots = {lane.handle.slot for lane in plan.lanes}
    for lane in plan.lanes:
        h.scheduler.cancel(lane.handle)
        assert h.scheduler.is_resident(lane.handle)
        refused(h.scheduler, DuplicateRequest, h.scheduler.admit, RequestSpec(lane.request_id, 64, 8, 99))
    assert h.admit("c").slot not in slots
    refused(h.scheduler, SlotsFull, h.scheduler.admit, RequestSpec("d", 64, 8, 99))
    assert h.scheduler.plan() is None
    assert (h.scheduler.resident_count, h.scheduler.in_flight_frames) == (3, 1)


def test_a_graph_that_returns_after_all_frees_the_slots_of_its_cancelled_requests_and_emits_nothing():
    h, plan = hung()
    h.scheduler.cancel(plan.lanes[0].handle)
    tokens = h.scheduler.complete(h.fence, answers(plan), ExecutionTiming((HOUR_NS,), HOUR_NS))
    assert [token.handle for token in tokens] == [plan.lanes[1].handle]
    again = h.admit("new")
    assert again == RequestHandle(plan.lanes[0].handle.slot, plan.lanes[0].handle.generation + 1)
    assert h.scheduler.plan() is not None


def test_more_than_an_hour_is_no_duration_but_a_graph_given_up_completes_without_one():
    h, plan = hung()
    failed = [record(lane, emitted_tokens=(), error="the device hangs") for lane in plan.lanes]
    complete = h.scheduler.complete
    for timing in (ExecutionTiming((10 * HOUR_NS,), 0), ExecutionTiming((), 10 * HOUR_NS)):
        refused(h.scheduler, InvalidCompletion, complete, h.fence, failed, timing, says="one hour")
    estimates = h.scheduler.catalog.export()
    assert complete(h.fence, failed, ExecutionTiming((), HOUR_NS)) == []
    assert h.scheduler.catalog.export() == estimates
    assert (h.scheduler.resident_count, h.scheduler.in_flight) == (0, None)
    h.admit("next")
    assert h.step() is not None


def test_the_second_frame_waits_for_the_first_for_ever():
    h, first = flying()
    second = commit(h)
    h.scheduler.advance_to(h.now_ns + 10 * HOUR_NS)
    assert h.scheduler.plan() is None
    refused(h.scheduler, InvalidFence, h.scheduler.complete, h.fence, answers(second), GOOD)
    for lane in first.lanes:
        h.scheduler.cancel(lane.handle)
    assert h.scheduler.complete(h.fence - 1, answers(first), GOOD) == []
    assert h.scheduler.resident_count == 2, "their second lanes are still in flight"
    assert h.scheduler.complete(h.fence, answers(second), GOOD) == []
    assert h.scheduler.resident_count == 0


@pytest.mark.parametrize("kind", [GraphKind.PREFILL, GraphKind.INIT])
def test_a_prompt_or_state_graph_that_never_returns_blocks_like_a_round(harness, kind):
    h = harness(shapes=(prefill(64), decode(1), *(STATE[:1] if kind is GraphKind.INIT else ())), measured=True)
    handle = h.admit("a")
    assert commit(h).shape.kind is kind
    h.scheduler.advance_to(10 * HOUR_NS)
    h.admit("b")
    assert h.scheduler.plan() is None
    h.scheduler.cancel(handle)
    assert h.scheduler.is_resident(handle)
    assert h.scheduler.plan() is None


def test_a_hung_scheduler_is_restored_hung():
    h, plan = hung()
    h.scheduler.cancel(plan.lanes[0].handle)
    twin = RequestScheduler.restore(h.scheduler.checkpoint(), Catalog(h.scheduler.catalog.shapes))
    assert twin.plan() is None
    assert twin.in_flight == plan
    timing = ExecutionTiming((HOUR_NS,), HOUR_NS)
    for scheduler in (h.scheduler, twin):
        assert len(scheduler.complete(h.fence, answers(plan), timing)) == 1
    assert twin.checkpoint() == h.scheduler.checkpoint()


def test_a_preempted_request_of_a_hung_graph_retires_only_when_that_returns():
    h, plan = hung(decode(2), STATE[3])
    handle = plan.lanes[0].handle
    h.scheduler.preempt(handle)
    assert h.scheduler.plan() is None
    h.scheduler.complete(h.fence, answers(plan), GOOD)
    assert h.scheduler._state.slots[handle.slot]["stage"] == layout.TERMINAL
