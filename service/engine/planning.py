"""Step 3: plan and commit. The frame that comes out is submitted after the journal's write."""

from __future__ import annotations

from gpu.device import Frame, FrameLane
from scheduler.plans import PlanLane, Role, ScheduledPlan
from service.engine.core import FRAME_SLOTS, Core, InFlight
from service.engine.drafts import COPY, settle_offers
from service.engine.preemption import make_room


def plan_and_commit(core: Core) -> Frame | None:
    """The next frame, committed and noted for the journal; None when nothing can or may start.

    Policy changes are applied before this call or after it, so a plan has exactly one version.
    """
    room = len(core.in_flight) < FRAME_SLOTS and core.refused is None
    room = room and not (core.in_flight and core.copy_trials.holds)
    if core.stopping or not room or not core.scheduler.resident_count:
        return None
    began_ns = core.clock()
    plan = _next_plan(core)
    planned_ns = core.clock()
    if plan is None:
        return None
    fence = core.last_fence + 1
    core.scheduler.commit(plan, fence)
    core.last_fence = fence
    committed_ns = max(core.now_ns, planned_ns)
    frame_slot = 1 - core.in_flight[0].slot if core.in_flight else 0
    if core.traced:
        core.records.append(
            core.plan_records.record(plan, fence, frame_slot, committed_ns, planned_ns - began_ns, core.policy_version)
        )
    requests = tuple([core.request_of(lane) for lane in plan.lanes])
    for request in requests:  # None: it has ended, and its terminal snapshot is taken
        if request is not None and request.first_commit_ns is None:
            core.table.start(request, committed_ns)
            core.metrics.per_request.queued(request, committed_ns)
    settle_offers(core, plan.lanes, requests)
    core.metrics.planned(plan, fence, planned_ns - began_ns, committed_ns)
    core.in_flight.append(InFlight(fence, plan, committed_ns, frame_slot, requests))
    return Frame(fence, plan.shape, tuple([_frame_lane(core, lane) for lane in plan.lanes]))


def _next_plan(core: Core) -> ScheduledPlan | None:
    core.count_resources()
    plan = core.scheduler.plan()
    while plan is None and make_room(core):
        core.count_resources()
        plan = core.scheduler.plan()
    return plan


def _frame_lane(core: Core, lane: PlanLane) -> FrameLane:
    """The lane for the device, which does not know where an answer ended inside a round, or before a queued one."""
    retires = lane.role is Role.TERMINAL
    keeps = core.leaving.get(lane.handle) if retires else None
    return FrameLane(lane.handle.slot, lane.query_length, lane.proposal_source == COPY, retires, keeps)
