"""Submits a plan: rechecks what may have moved since plan(), then counts it as in flight (S6, S7, S8, S10)."""

from __future__ import annotations

from scheduler import layout
from scheduler.checks import whole
from scheduler.errors import InvalidFence, StalePlan
from scheduler.frames import QUEUEABLE, REASON_NUMBER, Frame, LaneColumns
from scheduler.plans import CostState, Reason, ScheduledPlan
from scheduler.state import SchedulerState

FRAME_SLOTS = 2
MAX_FENCE = 2**63 - 1


def submit(state: SchedulerState, plan: ScheduledPlan, fence: int) -> None:
    """Takes the plan into the queue. Raises InvalidFence, or StalePlan when state has moved on; both change nothing."""
    _check(state, plan, fence)
    state.refresh()  # publications noted so far come before this frame
    queued = bool(state.queue)
    frame = Frame(
        state.free_frame(),
        fence,
        plan.graph,
        plan,
        plan.cost_state is not CostState.UNKNOWN,
        queued,
        state.now_ns,
        state.start_ns + plan.selected_cost_ns,
        plan.cohort,
        LaneColumns.of(plan.cohort),
    )
    pages, resources = _run_kernel(state, frame), state.resources
    if pages < 0:
        raise _refused(state, plan, pages)
    if resources.page_tokens and resources.free_pages < layout.UNBOUNDED:
        resources.free_pages -= pages
    state.last_fence = fence
    state.tick += 1
    if plan.reason is Reason.TIMING_REFRESH:
        state.graphs[plan.graph]["attempted_ns"] = state.now_ns
    state.ledgers.open(plan.reason, fence)
    state.queue.append(frame)
    state.views_stale = True


def _check(state: SchedulerState, plan: ScheduledPlan, fence: int) -> None:
    """Everything but the lanes."""
    if not whole(fence, state.last_fence + 1, MAX_FENCE):
        raise InvalidFence(
            f"fence {fence!r} must be a whole number above {state.last_fence}, the last, and below 2**63"
        )
    if not _is_own(state, plan):
        raise _foreign()
    queue = state.queue
    if len(queue) >= FRAME_SLOTS:
        raise StalePlan(f"frames {[frame.fence for frame in queue]} are in flight; plan again after one of them")
    if plan.tick != state.tick:
        raise StalePlan("another plan was committed since this one was made; plan again")
    # S6: a plan that trusted a fresh estimate may outlive the freshness.
    cost_state = state.catalog.state_at(plan.graph, state.now_ns)
    if cost_state is not plan.cost_state:
        raise StalePlan(f"the estimate of {plan.shape.label} is no longer {plan.cost_state.value}; plan again")
    if queue and (plan.shape.kind not in QUEUEABLE or cost_state is not CostState.FRESH):
        raise StalePlan(f"{plan.shape.label} needs an empty queue; plan again when it has drained")
    if not state.ledgers.may_open(plan.reason):
        raise StalePlan(f"the credit for {plan.reason.value} is no longer there; plan again")


def _is_own(state: SchedulerState, plan: ScheduledPlan) -> bool:
    """Whether plan() made it, over this catalog and over slots that this scheduler has; lanes are in slot order."""
    shapes = state.catalog.shapes
    return (
        isinstance(plan, ScheduledPlan)
        and plan.cohort is not None
        and 0 <= plan.graph < len(shapes)
        and (shapes[plan.graph] is plan.shape or shapes[plan.graph] == plan.shape)
        and plan.cohort["slot"].item(-1) < state.request_slots
    )


def _foreign() -> StalePlan:
    return StalePlan("this is no plan that plan() of this scheduler made; plan again and commit its answer")


def _run_kernel(state: SchedulerState, frame: Frame) -> int:
    """Rechecks the lanes and counts them as in flight: the new pages that they need, or why that cannot be."""
    resources, plan = state.resources, frame.plan
    pages = state.kernels.commit_frame(
        frame.number,
        frame.fence,
        frame.graph,
        REASON_NUMBER[plan.reason],
        int(frame.known),
        plan.selected_cost_ns,
        int(frame.queued),
        frame.committed_ns,
        frame.expected_end_ns,
        state.tick + 1,
        resources.page_tokens,
        resources.free_pages,
        resources.free_snapshot_rows,
        frame.cohort,
        state.slots,
        state.graphs,
        state.frames,
        state.lanes,
        state.participants,
        state.acceptance.yields,
        state.works,
    )
    return int(pages)


def _refused(state: SchedulerState, plan: ScheduledPlan, code: int) -> StalePlan:
    """Why the lanes can no longer be submitted."""
    kernels = state.kernels
    if code == kernels.NO_SUCH_SLOT:
        return _foreign()
    if code == kernels.PAGES_GONE:
        return StalePlan(f"{state.resources.free_pages} free pages no longer suffice; plan again")
    if code == kernels.NEEDS_FEEDBACK:
        return StalePlan("a lane in flight must complete before its request runs again; plan again then")
    if code == kernels.SNAPSHOT_ROW_GONE:
        return StalePlan("the snapshot row is no longer free; plan again")
    lane = plan.lanes[kernels.LANE_MOVED - code]
    return StalePlan(f"request {lane.request_id} has changed since the plan was made; plan again")
