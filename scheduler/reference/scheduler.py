"""RequestScheduler: commands and completions in, plans out. A pure state machine; time is passed in.

One frame is in flight at a time: plan() returns None while a committed frame has not completed. (The second
frame slot of S10 comes with projection; until then every kind drains the window.)
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.errors import (
    ClockWentBack,
    DuplicateRequest,
    InvalidFence,
    InvalidRequest,
    RequestTooLong,
    SlotsFull,
    StalePlan,
    UnknownHandle,
)
from scheduler.plans import LedgerBalances, PlanLane, Reason, ScheduledPlan
from scheduler.policy import PolicyConfig
from scheduler.records import (
    CompletionRecord,
    ExecutionTiming,
    FinishReason,
    GeneratedToken,
    RequestHandle,
    RequestSpec,
)
from scheduler.reference.accounting import charge_interval, delivered_memory, freeze_participants, start_token_memory
from scheduler.reference.candidates import enumerate_candidates
from scheduler.reference.catalog import Catalog
from scheduler.reference.completion import CompletedFrame, SubmittedFrame, checked_interval, match_records
from scheduler.reference.rates import MeasuredGraphs
from scheduler.reference.residents import ProjectedResident, Resident, Slots
from scheduler.reference.selection import make_plan, ranked
from scheduler.reference.value import DecisionContext

MAX_REQUEST_SLOTS = 4096


class ReferenceScheduler:
    """Chooses which prepared graph runs next, and for whom.

    Usage per iteration: advance_to, complete, admit/cancel/configure_policy, plan, commit, published_output.
    Every error is a SchedulerError and leaves the state as it was.
    """

    def __init__(self, catalog: Catalog, policy: PolicyConfig, request_slots: int = 64) -> None:
        if not 1 <= request_slots <= MAX_REQUEST_SLOTS:
            raise InvalidRequest(f"request_slots is {request_slots}; it must be from 1 to {MAX_REQUEST_SLOTS}")
        self.catalog = catalog
        self._slots = Slots(request_slots)
        self._now_ns = 0
        self._last_fence = 0
        self._tick = 0
        self._submitted: SubmittedFrame | None = None
        self._completed: CompletedFrame | None = None
        self._discovery_ns = 0
        self._policy = policy
        self.configure_policy(policy)

    @property
    def now_ns(self) -> int:
        """The time of the last advance_to."""
        return self._now_ns

    @property
    def policy(self) -> PolicyConfig:
        """The coefficients that the next plan() uses."""
        return self._policy

    @property
    def resident_count(self) -> int:
        """Occupied request slots."""
        return len(self._slots)

    @property
    def in_flight(self) -> ScheduledPlan | None:
        """The committed plan that has not completed."""
        return self._submitted.plan if self._submitted else None

    def is_resident(self, handle: RequestHandle) -> bool:
        """Whether the handle's request still occupies its slot."""
        return self._slots.get(handle) is not None

    def advance_to(self, now_ns: int) -> None:
        """Moves the clock. Raises ClockWentBack for an earlier time."""
        if now_ns < self._now_ns:
            raise ClockWentBack(f"advance_to({now_ns}) after {self._now_ns}; the clock is monotonic")
        self._now_ns = now_ns

    def configure_policy(self, policy: PolicyConfig) -> None:
        """Uses `policy` from the next plan() on. Memories, costs and ages are untouched."""
        self._policy = policy
        self.catalog.ttl_ns = policy.estimate_ttl_ns

    def admit(self, spec: RequestSpec) -> RequestHandle:
        """Takes a request in. Raises DuplicateRequest, RequestTooLong or SlotsFull."""
        if spec.request_id in self._slots:
            raise DuplicateRequest(f"request {spec.request_id} is already resident")
        if spec.prompt_tokens + 1 > spec.context_capacity:
            raise RequestTooLong(
                f"request {spec.request_id}: {spec.prompt_tokens} prompt tokens leave no room for output in a "
                f"context of {spec.context_capacity}"
            )
        slot = self._slots.free_slot()
        if slot is None:
            raise SlotsFull(f"all {self._slots.capacity} request slots are taken")
        others = self._slots.runnable()
        resident = self._slots.occupy(slot, spec)
        start_token_memory(resident, others, self._measured(), self._policy)
        return resident.handle

    def cancel(self, handle: RequestHandle) -> None:
        """Stops selecting the request; its slot is freed now, or when the frame that uses it completes.

        Raises UnknownHandle when the request has ended.
        """
        resident = self._resident(handle)
        resident.cancelled = True
        resident.epoch += 1
        if resident.fence is None:
            self._slots.release(resident)

    def plan(self) -> ScheduledPlan | None:
        """The best choice now, or None when nothing can run. Changes nothing."""
        residents = self._slots.runnable()
        if self._submitted is not None or not residents:
            return None
        views = [self._projected(resident) for resident in residents]
        context = DecisionContext.of(views, self._policy, self._measured(), self._now_ns)
        ranking = ranked(enumerate_candidates(self.catalog, context))
        return make_plan(ranking, context, LedgerBalances(discovery_ms=self._discovery_ns / 1e6))

    def commit(self, plan: ScheduledPlan, fence: int) -> None:
        """Submits the plan under `fence`. Raises InvalidFence when it does not rise, StalePlan when state moved on."""
        if fence <= self._last_fence:
            raise InvalidFence(f"fence {fence} does not rise above {self._last_fence}")
        if self._submitted is not None:
            raise StalePlan(f"frame {self._submitted.fence} is in flight; plan again when it has completed")
        lanes = [self._current_lane(lane, epoch) for lane, epoch in zip(plan.lanes, plan.lane_epochs, strict=True)]
        # S6: a plan that trusted a fresh estimate may outlive the freshness.
        if self.catalog.estimate(plan.shape, self._now_ns).state is not plan.cost_state:
            raise StalePlan(f"the estimate of {plan.shape.label} is no longer {plan.cost_state.value}; plan again")
        self._last_fence = fence
        self._tick += 1
        participants = freeze_participants(self._slots.runnable(), self._measured())
        for resident in lanes:
            resident.fence = fence
            resident.last_served_tick = self._tick
        self._submitted = SubmittedFrame(fence, plan, participants)

    def complete(
        self, fence: int, records: Sequence[CompletionRecord], timing: ExecutionTiming
    ) -> list[GeneratedToken]:
        """Applies a completed frame and returns the tokens to publish, in lane order.

        Cancelled lanes publish nothing. Raises InvalidFence for a fence that is not in flight and
        InvalidCompletion for records or timing that cannot belong to it; nothing has changed then.
        """
        frame = self._submitted
        if frame is None or frame.fence != fence:
            raise InvalidFence(f"fence {fence} is not in flight")
        pairs = match_records(frame.plan, list(records))
        interval = checked_interval(timing)
        failed = all(record.error is not None for _, record in pairs)
        if not failed:
            self.catalog.observe(frame.plan.shape, interval.cost_ns, self._now_ns)
        if frame.plan.reason is Reason.DISCOVERY:
            self._discovery_ns += interval.service_ns
        served = {lane.handle: rec.consumed_prompt_tokens + len(rec.emitted_tokens) for lane, rec in pairs}
        deliveries = {}
        if interval.service_ns and not failed:
            deliveries = charge_interval(
                self._slots, frame.participants, served, interval.service_ns / 1e6, self._policy
            )
        self._submitted = None
        emitted = {record.handle for _, record in pairs if record.emitted_tokens}
        self._completed = CompletedFrame(fence, self._now_ns, frozenset(served), emitted, deliveries)
        tokens = [token for lane, record in pairs for token in self._apply(lane, record)]
        self._start_missing_memories()
        return tokens

    def published_output(self, handle: RequestHandle, fence: int) -> None:
        """Reports that output of the last completed frame became visible now; repeats for one fence count once.

        A request that has ended meanwhile is ignored. Raises InvalidFence when `fence` is not the last completed
        frame or did not serve the handle.
        """
        completed = self._completed
        if completed is None or completed.fence != fence or handle not in completed.handles:
            raise InvalidFence(f"slot {handle.slot} has no output of fence {fence} to publish")
        resident = self._slots.get(handle)
        if resident is None or resident.cancelled:
            return
        resident.last_visible_ns = self._now_ns
        completed.unpublished.discard(handle)
        interval = completed.deliveries.pop(handle, None)
        if interval is not None:
            resident.delivery_memory = delivered_memory(interval, self._policy)

    def _apply(self, lane: PlanLane, record: CompletionRecord) -> list[GeneratedToken]:
        """One lane's completion: counters, the end of the request, the tokens to publish."""
        resident = self._slots.get(lane.handle)
        assert resident is not None, "a submitted lane keeps its slot"
        resident.fence = None
        resident.epoch += 1
        if resident.cancelled or record.error is not None:
            self._slots.release(resident)
            return []
        resident.consumed += record.consumed_prompt_tokens
        first = resident.emitted
        resident.emitted += len(record.emitted_tokens)
        finished = record.finished
        if finished is None and resident.emitted >= resident.output_limit:
            finished = FinishReason.LENGTH
        if finished is not None:
            self._slots.release(resident)
        last = len(record.emitted_tokens) - 1
        return [
            GeneratedToken(lane.handle, lane.request_id, token, first + i, finished if i == last else None)
            for i, token in enumerate(record.emitted_tokens)
        ]

    def _projected(self, resident: Resident) -> ProjectedResident:
        """The resident with its expected delivery: output that is complete but not visible yet counts as delivered
        at its completion (S10). Without this, whoever was just served would look as if it were still waiting.
        """
        completed = self._completed
        if completed is None or resident.handle not in completed.unpublished:
            return ProjectedResident(resident, resident.last_visible_ns, resident.delivery_memory)
        interval = completed.deliveries.get(resident.handle)
        memory = resident.delivery_memory if interval is None else delivered_memory(interval, self._policy)
        return ProjectedResident(resident, completed.completed_ns, memory)

    def _current_lane(self, lane: PlanLane, epoch: int) -> Resident:
        resident = self._slots.get(lane.handle)
        if resident is None or resident.epoch != epoch:
            raise StalePlan(f"request {lane.request_id} has changed since the plan was made; plan again")
        return resident

    def _resident(self, handle: RequestHandle) -> Resident:
        resident = self._slots.get(handle)
        if resident is None or resident.cancelled:
            raise UnknownHandle(f"slot {handle.slot}, generation {handle.generation} holds no running request")
        return resident

    def _start_missing_memories(self) -> None:
        residents = self._slots.runnable()
        missing = [r for r in residents if r.token_memory is None]
        measured = self._measured() if missing else None
        for resident in missing:
            assert measured is not None
            start_token_memory(resident, [r for r in residents if r is not resident], measured, self._policy)

    def _measured(self) -> MeasuredGraphs:
        return MeasuredGraphs.of(self.catalog, self._now_ns)
