"""Submits a plan: rechecks what may have moved since plan(), then counts it as in flight (S6, S7, S8, S10)."""

from __future__ import annotations

from scheduler import layout
from scheduler.checks import whole
from scheduler.errors import InvalidFence, StalePlan
from scheduler.frames import QUEUEABLE, Frame, lane_rows
from scheduler.plans import CostState, Reason, ScheduledPlan
from scheduler.state import SchedulerState

FRAME_SLOTS = 2
MAX_FENCE = 2**63 - 1


def check(state: SchedulerState, plan: ScheduledPlan, fence: int) -> int:
    """The new pages that the plan's lanes need. Raises InvalidFence, or StalePlan when state has moved on."""
    if not whole(fence, state.last_fence + 1, MAX_FENCE):
        raise InvalidFence(
            f"fence {fence!r} must be a whole number above {state.last_fence}, the last, and below 2**63"
        )
    _check_origin(state, plan)
    if len(state.queue) >= FRAME_SLOTS:
        raise StalePlan(f"frames {[frame.fence for frame in state.queue]} are in flight; plan again after one of them")
    if plan.tick != state.tick:
        raise StalePlan("another plan was committed since this one was made; plan again")
    # S6: a plan that trusted a fresh estimate may outlive the freshness.
    cost_state = state.catalog.state_at(plan.graph, state.now_ns)
    if cost_state is not plan.cost_state:
        raise StalePlan(f"the estimate of {plan.shape.label} is no longer {plan.cost_state.value}; plan again")
    if state.queue and (plan.shape.kind not in QUEUEABLE or cost_state is not CostState.FRESH):
        raise StalePlan(f"{plan.shape.label} needs an empty queue; plan again when it has drained")
    if not state.ledgers.may_open(plan.reason):
        raise StalePlan(f"the credit for {plan.reason.value} is no longer there; plan again")
    return _checked_lanes(state, plan)


def _check_origin(state: SchedulerState, plan: ScheduledPlan) -> None:
    """Raises StalePlan for a plan made by hand, or over a catalog or slots that this scheduler does not have."""
    shapes = state.catalog.shapes
    own = (
        isinstance(plan, ScheduledPlan)
        and plan.cohort is not None
        and 0 <= plan.graph < len(shapes)
        and (shapes[plan.graph] is plan.shape or shapes[plan.graph] == plan.shape)
        and max(plan.cohort["slot"].tolist()) < state.request_slots
    )
    if not own:
        raise StalePlan("this is no plan that plan() of this scheduler made; plan again and commit its answer")


def _checked_lanes(state: SchedulerState, plan: ScheduledPlan) -> int:
    resources, kernels = state.resources, state.kernels
    pages = int(
        kernels.recheck_lanes(
            int(bool(state.queue)),
            resources.page_tokens,
            resources.free_pages,
            plan.shape.draft_depth,
            resources.free_snapshot_rows,
            plan.cohort,
            state.slots,
        )
    )
    if pages >= 0:
        return pages
    if pages == kernels.PAGES_GONE:
        raise StalePlan(f"{resources.free_pages} free pages no longer suffice; plan again")
    if pages == kernels.NEEDS_FEEDBACK:
        raise StalePlan("a lane in flight must complete before its request runs again; plan again then")
    if pages == kernels.SNAPSHOT_ROW_GONE:
        raise StalePlan("the snapshot row is no longer free; plan again")
    lane = plan.lanes[kernels.LANE_MOVED - pages]
    raise StalePlan(f"request {lane.request_id} has changed since the plan was made; plan again")


def submit(state: SchedulerState, plan: ScheduledPlan, fence: int, pages: int) -> None:
    """Takes a checked plan into the queue."""
    state.refresh()  # publications noted so far come before this frame
    state.last_fence = fence
    state.tick += 1
    number, resources = state.free_frame(), state.resources
    frame = Frame(
        number=number,
        fence=fence,
        graph=plan.graph,
        plan=plan,
        known=plan.cost_state is not CostState.UNKNOWN,
        queued=bool(state.queue),
        committed_ns=state.now_ns,
        expected_end_ns=state.start_ns + plan.selected_cost_ns,
        cohort=plan.cohort,
        rows=lane_rows(plan.cohort),
    )
    state.frames[number] = frame.record()
    state.lanes[number, : len(frame.rows)] = plan.cohort
    if resources.page_tokens:
        state.kernels.hold_pages(resources.page_tokens, plan.shape.draft_depth, plan.cohort, state.slots)
        if resources.free_pages < layout.UNBOUNDED:
            resources.free_pages -= pages
    state.kernels.commit_frame(
        number,
        state.tick,
        state.slots,
        state.graphs,
        state.frames,
        state.lanes,
        state.participants,
        state.acceptance.yields,
        state.works,
    )
    if plan.reason is Reason.TIMING_REFRESH:
        state.graphs[plan.graph]["attempted_ns"] = state.now_ns
    state.ledgers.open(plan.reason, fence)
    state.queue.append(frame)
    state.views_stale = True
