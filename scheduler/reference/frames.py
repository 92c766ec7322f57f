"""Frames in flight and the last completed one, and how decisions see ahead of them (S9, S10)."""

from __future__ import annotations

import dataclasses

from scheduler.plans import PlanLane, ScheduledPlan
from scheduler.policy import PolicyConfig
from scheduler.records import RequestHandle
from scheduler.reference.residents import Resident
from scheduler.reference.service_prices import updated_memory


@dataclasses.dataclass(frozen=True, slots=True)
class Participant:
    """A resident at commit with its frozen normalizers (units per ms; None where nothing was measured)."""

    handle: RequestHandle
    token_rate: float | None
    delivery_rate: float | None


@dataclasses.dataclass(slots=True)
class Frame:
    """A committed plan that has not completed. `queued`: another frame was in flight at its commit."""

    fence: int
    plan: ScheduledPlan
    participants: tuple[Participant, ...]
    queued: bool
    end_ns: int

    @property
    def lanes(self) -> dict[RequestHandle, PlanLane]:
        """Its lanes by request."""
        return {lane.handle: lane for lane in self.plan.lanes}


@dataclasses.dataclass(frozen=True, slots=True)
class DeliveryInterval:
    """What replaces an interval's zero deliveries by one: `memory_before` None without a history, `rate` unmeasured."""

    interval_ms: float
    memory_before: float | None
    rate: float | None

    def delivered(self, adaptation_ms: float) -> float:
        """The delivery memory after the interval with one delivery in it."""
        return after_delivery(self.memory_before, self.interval_ms, self.rate, adaptation_ms)


@dataclasses.dataclass(slots=True)
class CompletedFrame:
    """The last completed frame. `unpublished`: lanes whose output is not visible yet; `open`: deliveries to credit."""

    fence: int
    completed_ns: int
    handles: frozenset[RequestHandle]
    emitted: set[RequestHandle]
    unpublished: set[RequestHandle]
    open: dict[RequestHandle, DeliveryInterval]


def after_delivery(memory: float | None, interval_ms: float, rate: float | None, adaptation_ms: float) -> float:
    """One delivery in the interval. The first starts the history; without a measured rate nothing changes."""
    if memory is None:
        return interval_ms
    return memory if rate is None else updated_memory(memory, interval_ms, 1, rate, adaptation_ms)


def after_service(
    memory: float | None, interval_ms: float, served: float, rate: float | None, adaptation_ms: float
) -> float | None:
    """`served` units in the interval; a missing memory or rate leaves it alone."""
    if memory is None or rate is None:
        return memory
    return updated_memory(memory, interval_ms, served, rate, adaptation_ms)


def project(
    residents: list[Resident], completed: CompletedFrame | None, queue: list[Frame], policy: PolicyConfig
) -> None:
    """Writes the view fields of every resident: output that is complete but not visible, then the frames in flight."""
    for r in residents:
        r.view_token_memory = r.token_memory
        r.view_delivery_memory = r.delivery_memory
        r.view_visible_ns = r.last_visible_ns
        if completed is not None and r.handle in completed.unpublished:
            r.view_visible_ns = completed.completed_ns
            if r.handle in completed.open:
                r.view_delivery_memory = completed.open[r.handle].delivered(policy.adaptation_ms)
    by_handle = {r.handle: r for r in residents if not r.cancelled}
    for frame in queue:
        lanes = frame.lanes
        for participant in frame.participants:
            resident = by_handle.get(participant.handle)
            if resident is not None:
                _project_frame(resident, participant, lanes.get(participant.handle), frame, policy.adaptation_ms)


def _project_frame(
    r: Resident, participant: Participant, lane: PlanLane | None, frame: Frame, adaptation_ms: float
) -> None:
    """One frame's expected service of one participant; a frame of unknown cost moves only the visible time."""
    cost_ms = frame.plan.selected_cost_ns / 1e6
    delivers = lane is not None and lane.ceiling > 0
    if delivers:
        r.view_visible_ns = frame.end_ns
    if cost_ms == 0.0:
        return
    served = lane.prompt_tokens + lane.expected_tokens if lane is not None else 0.0
    r.view_token_memory = after_service(r.view_token_memory, cost_ms, served, participant.token_rate, adaptation_ms)
    if delivers:
        r.view_delivery_memory = after_delivery(
            r.view_delivery_memory, cost_ms, participant.delivery_rate, adaptation_ms
        )
    else:
        r.view_delivery_memory = after_service(
            r.view_delivery_memory, cost_ms, 0, participant.delivery_rate, adaptation_ms
        )
