"""Step 3: plan and commit. The frame that comes out is submitted after the journal's write."""

from __future__ import annotations

from gpu.device import Frame, FrameLane
from service.engine.core import Core, InFlight
from service.engine.plan_records import plan_committed


def plan_and_commit(core: Core) -> Frame | None:
    """The next frame, committed and noted for the journal; None when nothing can or may start.

    Policy changes are applied before this call or after it, so a plan has exactly one version.
    """
    if core.in_flight is not None or core.stopping or not core.table.resident:
        return None
    began_ns = core.clock()
    plan = core.scheduler.plan()
    planned_ns = core.clock()
    if plan is None:
        return None
    fence = core.last_fence + 1
    core.scheduler.commit(plan, fence)
    core.last_fence = fence
    committed_ns = max(core.now_ns, planned_ns)
    core.records.append(plan_committed(plan, fence, committed_ns, planned_ns - began_ns, core.policy_version))
    for lane in plan.lanes:
        request = core.table.get(lane.request_id)
        assert request is not None, "the scheduler plans for open requests only"
        if request.first_commit_ns is None:
            core.table.start(request, committed_ns)
            core.metrics.queued(committed_ns - request.begun_ns)
    core.metrics.planned(plan, planned_ns - began_ns)
    core.in_flight = InFlight(fence, plan, committed_ns)
    return Frame(fence, plan.shape, tuple(FrameLane(lane.handle.slot, lane.query_length) for lane in plan.lanes))
