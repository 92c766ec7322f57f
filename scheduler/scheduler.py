"""RequestScheduler: commands and completions in, plans out. A pure state machine; time is passed in.

Up to two frames are in flight (S10): plan() may be called again while ordinary decode or speculative rounds run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler import admission, commitment, completion, layout, publication, replay, stages
from scheduler.capacity import DEFAULT_COMPLETION_TOKEN_CAPACITY, select
from scheduler.catalog import Catalog
from scheduler.checks import MAX_TIME_NS, whole
from scheduler.errors import (
    ClockWentBack,
    DuplicateRequest,
    InvalidFence,
    InvalidObservation,
    InvalidRequest,
    SlotsFull,
    SnapshotPending,
    UnknownHandle,
)
from scheduler.frames import may_queue
from scheduler.kernels.loader import load_kernels
from scheduler.load_settings import LoadSettings, check_catalog, check_policy
from scheduler.planning import CandidateTuple, Planner
from scheduler.plans import BarredBy, LedgerBalances, ScheduledPlan
from scheduler.policy import PolicyConfig
from scheduler.records import (
    MAX_TOKENS,
    CompletionRecord,
    ExecutionTiming,
    GeneratedToken,
    RequestHandle,
    RequestSpec,
)
from scheduler.shapes import GraphKind
from scheduler.state import Resources, SchedulerState, Tenant

DEFAULT_PAGE_TOKENS = 16
DEFAULT_CHECKPOINT_FRACTION = 0.05


class RequestScheduler:
    """Chooses which prepared graph runs next, and for whom.

    Usage per iteration: advance_to, complete, admit/cancel/configure_policy, plan, commit, published_output.
    Every error is a SchedulerError and leaves the state as it was. The kernels are compiled, or read from the cache,
    when the first scheduler is made.

    `verification`: "adaptive" or "fixed:N" (S2). `image_feature_rows`: image features that the device stores at a time,
    0 without a limit (S5). `completion_token_capacity`: widest MIXED round (S12). Raises InvalidCatalog for
    shapes that the load cannot use, InvalidRequest for settings outside their range, InvalidPolicy for no policy.
    """

    def __init__(
        self,
        catalog: Catalog,
        policy: PolicyConfig,
        request_slots: int = 64,
        checkpoint_extra_work_fraction: float = DEFAULT_CHECKPOINT_FRACTION,
        verification: str = "adaptive",
        image_feature_rows: int = 0,
        completion_token_capacity: int = DEFAULT_COMPLETION_TOKEN_CAPACITY,
    ) -> None:
        settings = LoadSettings(
            request_slots, checkpoint_extra_work_fraction, verification, image_feature_rows, completion_token_capacity
        )
        check_catalog(catalog)
        check_policy(policy)
        selection = select(catalog.shapes, verification, completion_token_capacity)
        can = admission.Capabilities.of(catalog.shapes, selection.usable, image_feature_rows)
        self._state = SchedulerState(catalog, policy, request_slots, selection, can, load_kernels())
        self._state.checkpoint_fraction = settings.checkpoint_extra_work_fraction
        self._settings = settings
        self._planner = Planner(self._state)

    @property
    def catalog(self) -> Catalog:
        """The prepared graphs with their estimates."""
        return self._state.catalog

    @property
    def now_ns(self) -> int:
        """The time of the last advance_to."""
        return self._state.now_ns

    @property
    def policy(self) -> PolicyConfig:
        """The coefficients that the next plan() uses."""
        return self._state.policy

    @property
    def request_slots(self) -> int:
        """Request slots in all."""
        return self._state.request_slots

    @property
    def draft_capacity(self) -> int:
        """The largest draft depth of the catalog, at least 1: the width of confidence and survival rows."""
        return self._state.draft_capacity

    @property
    def resident_count(self) -> int:
        """Occupied request slots."""
        return len(self._state.slot_of)

    @property
    def in_flight(self) -> ScheduledPlan | None:
        """The oldest committed plan that has not completed."""
        return self._state.queue[0].plan if self._state.queue else None

    @property
    def in_flight_frames(self) -> int:
        """Committed plans that have not completed, 0 to 2."""
        return len(self._state.queue)

    @property
    def ledgers(self) -> LedgerBalances:
        """What exploration may cost now, as plans record it."""
        return self._state.ledgers.balances()

    def is_resident(self, handle: RequestHandle) -> bool:
        """Whether the handle's request still occupies its slot."""
        return self._state.tenant(handle) is not None

    def handle_of(self, request_id: str) -> RequestHandle:
        """The resident request's handle; it changes at an image window's snapshot. Raises UnknownHandle."""
        number = self._state.slot_of.get(request_id) if isinstance(request_id, str) else None
        tenant = None if number is None else self._state.tenants[number]
        if tenant is None:
            raise UnknownHandle(f"request {request_id!r} is not resident")
        return tenant.handle

    def advance_to(self, now_ns: int) -> None:
        """Moves the clock. Raises ClockWentBack for an earlier time, InvalidObservation for what is no time in ns."""
        if type(now_ns) is int and self._state.now_ns <= now_ns <= MAX_TIME_NS:
            self._state.now_ns = now_ns
            return
        if not whole(now_ns, -MAX_TIME_NS, MAX_TIME_NS):
            raise InvalidObservation(f"advance_to({now_ns!r}); times are whole ns below 2**62")
        if now_ns < self._state.now_ns:
            raise ClockWentBack(f"advance_to({now_ns}) after {self._state.now_ns}; the clock is monotonic")
        self._state.now_ns = now_ns

    def configure_policy(self, policy: PolicyConfig) -> None:
        """Uses `policy` from the next plan() on. Memories, acceptance, costs and ages are untouched (S11).

        Raises InvalidPolicy for what is no PolicyConfig.
        """
        check_policy(policy)
        state = self._state
        state.refresh()
        alpha = state.policy.adaptive_verification_alpha
        state.set_policy(policy)
        if policy.adaptive_verification_alpha != alpha:
            state.rebuild_acceptance(0, state.request_slots)
        state.views_stale = True

    def set_resources(self, free_pages: int, free_snapshot_rows: int, page_tokens: int = DEFAULT_PAGE_TOKENS) -> None:
        """What is free now: KV pages of `page_tokens` tokens, and snapshot rows. Until the first call pages are without
        end and there is no snapshot row. Raises InvalidObservation.
        """
        for name, value, low in (
            ("free_pages", free_pages, 0),
            ("free_snapshot_rows", free_snapshot_rows, 0),
            ("page_tokens", page_tokens, 1),
        ):
            if not whole(value, low, layout.UNBOUNDED - 1):
                raise InvalidObservation(f"{name} is {value!r}; it must be a whole number from {low}, below 2**40")
        self._state.resources = Resources(free_pages, free_snapshot_rows, page_tokens)

    def admit(self, spec: RequestSpec) -> RequestHandle:
        """Takes a request in.

        Raises DuplicateRequest, RequestTooLong, Unservable, SnapshotPending or SlotsFull, looked for in this order,
        and InvalidRequest for what is no RequestSpec.
        """
        state = self._state
        if not isinstance(spec, RequestSpec):
            raise InvalidRequest(f"{spec!r} is no RequestSpec")
        if spec.request_id in state.slot_of:
            raise DuplicateRequest(f"request {spec.request_id} is already resident")
        prompt = admission.checked_prompt(spec, state.can)
        self._check_continues(spec)
        if not state.free_slots:
            raise SlotsFull(f"all {state.request_slots} request slots are taken")
        state.refresh()  # a newcomer's memory looks at the residents'
        stages.choose_cuts(state, spec, prompt)
        tenant = state.occupy(spec, prompt, admission.first_stage(spec, prompt, state.can))
        stages.fill_slot(state, tenant)
        return tenant.handle

    def _check_continues(self, spec: RequestSpec) -> None:
        state, before = self._state, spec.continues
        if before is None:
            return
        number = state.slot_of.get(before)
        retiring = number is not None and state.columns["stage"][number] == layout.TERMINAL
        if retiring or before in state.unpublished_snapshots:
            raise SnapshotPending(f"request {spec.request_id}: the snapshot of {before} is not published yet")

    def cancel(self, handle: RequestHandle) -> None:
        """Stops selecting the request; its slot is freed now, or when the last frame that uses it completes.

        Raises UnknownHandle when the request has ended.
        """
        number = self._running(handle)
        self._state.columns["epoch"][number] += 1
        self._state.columns["cancelled"][number] = 1
        stages.drop(self._state, number)
        self._state.views_stale = True
        self._note_idle()

    def finish(self, handle: RequestHandle) -> None:
        """The request's answer is complete at what has become visible of it: a normal end between completions (S5).

        Frames that still use it commit nothing more for it. Raises UnknownHandle when the request has ended.
        """
        number = self._running(handle)
        self._state.columns["epoch"][number] += 1
        stages.finish(self._state, number)
        self._state.views_stale = True
        self._note_idle()

    def restored(self, handle: RequestHandle) -> None:
        """External restoration is done: the request leaves WAITING. Raises UnknownHandle; InvalidRequest elsewhere."""
        number = self._running(handle)
        columns = self._state.columns
        if columns["stage"][number] != layout.WAITING:
            raise InvalidRequest(f"slot {number} does not wait for restoration")
        columns["epoch"][number] += 1
        stages.follow(self._state, number)

    def preempt(self, handle: RequestHandle) -> None:
        """Retires the request through a terminal snapshot, after the frames that use it, without ending its answer.

        Raises UnknownHandle, and InvalidRequest without such a graph or for a request that retires already.
        """
        state, number = self._state, self._running(handle)
        columns = state.columns
        if not state.can.has(GraphKind.TERMINAL_SNAPSHOT):
            raise InvalidRequest("no terminal snapshot graph is prepared, so nothing can be preempted")
        if columns["stage"][number] == layout.TERMINAL or columns["retiring"][number] == 1:
            raise InvalidRequest(f"slot {number} retires already")
        columns["epoch"][number] += 1
        columns["terminal_since_ns"][number] = state.now_ns
        if columns["in_flight"][number] > 0:
            columns["retiring"][number] = 1
        else:
            stages.retire(state, number)

    def preemption_victim(self) -> RequestHandle | None:
        """Whom to preempt when only missing pages keep everything from running: the resident admitted last (S5)."""
        state = self._state
        if state.queue or self.plan() is not None:
            return None
        if not any(barred_by == BarredBy.PAGES.value for *_, barred_by, _ in self.all_candidates()):
            return None
        stage, admitted = state.columns["stage"], state.columns["admitted"]
        running = (stage != layout.FREE) & (stage != layout.TERMINAL)
        running &= (stage != layout.WAITING) & (state.columns["cancelled"] == 0)
        numbers = running.nonzero()[0].tolist()
        if not numbers:
            return None
        tenant = state.tenants[max(numbers, key=lambda number: int(admitted[number]))]
        return None if tenant is None else tenant.handle

    def published_snapshot(self, request_id: str) -> None:
        """The terminal snapshot of a request that ended normally is published; an unknown id changes nothing."""
        if isinstance(request_id, str):
            self._state.unpublished_snapshots.pop(request_id, None)

    def offer_proposals(self, handle: RequestHandle, source: str, count: int) -> None:
        """`count` drafts from the copy source stand for the request's next round; 0 withdraws them (S2).

        Raises UnknownHandle, and InvalidRequest for another source, one that the request does not list, or a bad count.
        """
        number = self._running(handle)
        tenant = self._state.tenants[number]
        assert tenant is not None
        if source != "copy" or source not in tenant.spec.proposal_sources:
            raise InvalidRequest(f"proposals from {source!r}; the request takes offers from copy only if it lists it")
        if not whole(count, 0, MAX_TOKENS):
            raise InvalidRequest(f"{count!r} proposals; it must be a whole number from 0 to {MAX_TOKENS}")
        self._state.columns["epoch"][number] += 1
        stages.set_offer(self._state, number, count)

    def plan(self) -> ScheduledPlan | None:
        """The best choice now, or None when nothing can run or the queue must drain first. Changes nothing."""
        state = self._state
        if not state.slot_of or not may_queue(state.queue, state.now_ns):
            self._planner.forget()
            return None
        state.refresh()
        return self._planner.plan_decision(state.start_ns)

    def all_candidates(self) -> tuple[CandidateTuple, ...]:
        """Every candidate of the last plan(), in catalog order of the submitted shape."""
        return self._planner.all_candidates()

    def commit(self, plan: ScheduledPlan, fence: int) -> None:
        """Submits the plan under `fence`. Raises InvalidFence when it does not rise, StalePlan when state moved on."""
        commitment.submit(self._state, plan, fence)

    def complete(
        self, fence: int, records: Sequence[CompletionRecord], timing: ExecutionTiming
    ) -> list[GeneratedToken]:
        """Applies the oldest frame in flight and returns the tokens to publish, in lane order.

        Cancelled lanes publish nothing. Raises InvalidFence for another fence, and InvalidCompletion for records or
        timing that cannot belong to it, or for a round that must complete with its confidence.
        """
        return self._complete(fence, records, timing, None, None)

    def complete_with_survival(
        self, fence: int, records: Sequence[CompletionRecord], timing: ExecutionTiming, survival: Any
    ) -> list[GeneratedToken]:
        """complete() with survival rows, float [request_slots, draft_capacity], NaN where not evaluated (S3)."""
        return self._complete(fence, records, timing, None, survival)

    def complete_packed_round(
        self, fence: int, records: Sequence[CompletionRecord], timing: ExecutionTiming, confidence: Any
    ) -> list[GeneratedToken]:
        """complete() with confidence, float32 [2, request_slots, draft_capacity]; [1] is the joint one (S3)."""
        return self._complete(fence, records, timing, confidence, None)

    def complete_packed_round_with_survival(
        self, fence: int, records: Sequence[CompletionRecord], timing: ExecutionTiming, confidence: Any, survival: Any
    ) -> list[GeneratedToken]:
        """complete() with both sidecars."""
        return self._complete(fence, records, timing, confidence, survival)

    def _complete(
        self, fence: int, records: Sequence[CompletionRecord], timing: ExecutionTiming, confidence: Any, survival: Any
    ) -> list[GeneratedToken]:
        state = self._state
        frame = state.queue[0] if state.queue else None
        if frame is None or isinstance(fence, bool) or frame.fence != fence:
            raise InvalidFence(f"fence {fence!r} is not the oldest in flight")
        return self._apply(completion.checked_completion(state, frame, records, timing, confidence, survival), timing)

    def _apply(self, checked: completion.Completion, timing: ExecutionTiming) -> list[GeneratedToken]:
        """Applies a completion that has been checked, and so cannot fail."""
        self._state.refresh()  # publications so far belong to the frame that completed before
        tokens = completion.apply(self._state, checked)
        self._note_idle()
        return tokens

    def published_output(self, handle: RequestHandle, fence: int) -> None:
        """Reports that output of the last completed frame became visible now; repeats for one fence count once.

        A request that has ended meanwhile is ignored. Raises InvalidFence when `fence` is not the last completed
        frame or did not serve the handle.
        """
        publication.note_visible(self._state, (handle,), fence)

    def published_outputs(self, handles: Sequence[RequestHandle], fence: int) -> None:
        """published_output() of several handles at once, of all or of none. Raises InvalidFence as that does."""
        publication.note_visible(self._state, handles, fence)

    def checkpoint(self) -> bytes:
        """The whole state; restore() continues it, decision for decision."""
        self._state.refresh()
        return replay.encode(self._state, self._settings)

    @classmethod
    def restore(cls, data: bytes, catalog: Catalog) -> RequestScheduler:
        """The scheduler that checkpoint() described. Shapes come from `catalog`, estimates from the bytes.

        Raises InvalidCheckpoint for bytes that cannot be read or that belong to another catalog or layout, before an
        estimate of `catalog` has changed.
        """
        check_catalog(catalog)
        saved = replay.decode(data, catalog)
        scheduler = cls(catalog, saved.policy(), *saved.settings.arguments())
        replay.load(scheduler._state, saved)
        return scheduler

    def _running(self, handle: RequestHandle) -> int:
        tenant: Tenant | None = self._state.tenant(handle)
        if tenant is None or self._state.columns["cancelled"][handle.slot] == 1:
            raise UnknownHandle(f"{handle!r} holds no running request")
        return handle.slot

    def _note_idle(self) -> None:
        """Idle discards exploration credit (S7): nothing in flight, and nobody who is not cancelled."""
        state = self._state
        if not state.queue and not state.slot_of:
            state.ledgers.idle()
