"""What commit() rechecks, and the pages that a plan reserves (S10, "Candidates")."""

from __future__ import annotations

from typing import Protocol

from scheduler.errors import StalePlan
from scheduler.plans import CostState, PlanLane, Reason, Role, ScheduledPlan
from scheduler.reference.catalog import ReferenceCatalog
from scheduler.reference.frames import Frame
from scheduler.reference.ledgers import Ledgers
from scheduler.reference.residents import Resident, Stage
from scheduler.shapes import GraphKind


class State(Protocol):
    """What of the scheduler a commit looks at."""

    now_ns: int
    tick: int
    queue: list[Frame]
    catalog: ReferenceCatalog
    ledgers: Ledgers
    free_pages: int | None
    free_snapshot_rows: int
    page_tokens: int


def pages_needed(plan: ScheduledPlan, lane: PlanLane, resident: Resident, page_tokens: int) -> int:
    """Pages that the lane's request occupies at the end of this plan; 0 for lanes of state graphs."""
    if lane.role is Role.PREFILL:
        tokens = resident.consumed + lane.prompt_tokens + 1
    elif lane.role is Role.DECODE:
        position = resident.consumed + resident.emitted + resident.pending
        tokens = position + lane.ceiling + plan.shape.draft_depth
    else:
        return 0
    return -(-tokens // page_tokens)


def pages_rise(plan: ScheduledPlan, residents: list[Resident], page_tokens: int) -> int:
    """New pages of all lanes."""
    pairs = zip(plan.lanes, residents, strict=True)
    return sum(max(0, pages_needed(plan, lane, r, page_tokens) - r.pages_held) for lane, r in pairs)


def check_commit(state: State, plan: ScheduledPlan, residents: list[Resident]) -> None:
    """Raises StalePlan when the plan may not be submitted any more."""
    if len(state.queue) > 1:
        raise StalePlan("two frames are in flight")
    if state.queue and needs_empty_window(state, plan, residents):
        raise StalePlan("a frame is in flight, and this plan must wait for it")
    if plan.tick != state.tick:
        raise StalePlan("another plan was committed since; plan again")
    # S6: a plan that trusted a fresh estimate may outlive the freshness.
    if state.catalog.estimate(plan.shape, state.now_ns).state is not plan.cost_state:
        raise StalePlan(f"the estimate of {plan.shape.label} is no longer {plan.cost_state.value}; plan again")
    if plan.reason in (Reason.TIMING_REFRESH, Reason.ACCEPTANCE_LEARNING) and not state.ledgers.funds(plan.reason):
        raise StalePlan("the probe is no longer funded")
    if state.free_pages is not None and pages_rise(plan, residents, state.page_tokens) > state.free_pages:
        raise StalePlan("its pages are no longer free")
    if (
        state.free_snapshot_rows <= 0
        and plan.shape.kind is GraphKind.SNAPSHOT
        and any(r.window and r.stage is Stage.SNAPSHOT for r in residents)
    ):
        raise StalePlan("its snapshot row is no longer free")


def needs_empty_window(state: State, plan: ScheduledPlan, residents: list[Resident]) -> bool:
    """S10's rule for a plan that may not be submitted behind another frame."""
    if plan.shape.kind not in (GraphKind.DECODE, GraphKind.SPECULATIVE):
        return True
    if state.catalog.estimate(plan.shape, state.now_ns).state is not CostState.FRESH:
        return True
    return any(r.in_flight and r.feedback for r in residents)
