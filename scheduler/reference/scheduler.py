"""ReferenceScheduler: the rules of the specification in plain Python, with the fast scheduler's public methods.

It has no checkpoint() and restore(): those say nothing about decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler.errors import (
    ClockWentBack,
    DuplicateRequest,
    InvalidFence,
    InvalidObservation,
    InvalidRequest,
    RequestTooLong,
    SlotsFull,
    SnapshotPending,
)
from scheduler.plans import CostState, Reason, ScheduledPlan
from scheduler.policy import PolicyConfig
from scheduler.records import CompletionRecord, ExecutionTiming, GeneratedToken, RequestHandle, RequestSpec
from scheduler.reference.accounting import charge_interval, start_token_memory
from scheduler.reference.admission import after_state, check_servable, first_stage
from scheduler.reference.checkpoints import choose_cuts
from scheduler.reference.commitment import check_commit, pages_needed, pages_rise
from scheduler.reference.completion import checked_interval, checked_lanes
from scheduler.reference.decision import Decision, Graph, Outcome
from scheduler.reference.frames import CompletedFrame, Frame, Participant, project
from scheduler.reference.lanes import Completion, apply_lane, captures_an_end, commits, finish, release_lane
from scheduler.reference.planner import plan as choose
from scheduler.reference.prompts import Prompt, atomic_blocks, image_windows, window_starts
from scheduler.reference.rates import Rates
from scheduler.reference.residents import Resident, Stage
from scheduler.reference.state import ReferenceState
from scheduler.shapes import GraphKind

MAX_OFFER = 2**31 - 1
QUEUEABLE = (GraphKind.DECODE, GraphKind.SPECULATIVE)


class ReferenceScheduler(ReferenceState):
    """Chooses which prepared graph runs next, and for whom. See scheduler.RequestScheduler for the methods."""

    # Commands.

    def advance_to(self, now_ns: int) -> None:
        """Moves the clock. Raises ClockWentBack for an earlier time."""
        if now_ns < self.now_ns:
            raise ClockWentBack(f"advance_to({now_ns}) after {self.now_ns}; the clock is monotonic")
        self.now_ns = now_ns

    def configure_policy(self, policy: PolicyConfig) -> None:
        """Uses `policy` from the next plan() on."""
        self.policy = policy
        self.catalog.ttl_ns = policy.estimate_ttl_ns
        for resident in self.residents():
            resident.estimates.set_alpha(policy.adaptive_verification_alpha)

    def set_resources(self, free_pages: int, free_snapshot_rows: int, page_tokens: int = 16) -> None:
        """What is free now. Raises InvalidObservation for negative counts."""
        if free_pages < 0 or free_snapshot_rows < 0 or page_tokens < 1:
            raise InvalidObservation("free pages and rows are 0 or more, and a page holds at least one token")
        self.free_pages, self.free_snapshot_rows, self.page_tokens = free_pages, free_snapshot_rows, page_tokens

    def admit(self, spec: RequestSpec) -> RequestHandle:
        """Takes a request in; raises an AdmissionError when that cannot be now, or ever."""
        if any(r.spec.request_id == spec.request_id for r in self.residents()):
            raise DuplicateRequest(f"request {spec.request_id} is already resident")
        if spec.prompt_tokens + 1 > spec.context_capacity:
            raise RequestTooLong(f"request {spec.request_id}: the prompt leaves no room for output")
        graphs = self.graphs()
        prompt = self._prompt(spec, graphs)
        check_servable(spec, prompt, graphs, self.image_feature_rows)
        if spec.continues is not None and self._pending_snapshot(spec.continues):
            raise SnapshotPending(f"request {spec.continues} has not published its snapshot")
        slot = next((i for i, r in enumerate(self.slots) if r is None), None)
        if slot is None:
            raise SlotsFull(f"all {self.request_slots} request slots are taken")
        others = self.runnable()
        self.generations[slot] += 1
        self._admissions += 1
        resident = Resident(
            handle=RequestHandle(slot, self.generations[slot]),
            spec=spec,
            prompt=prompt,
            estimates=self._fresh_estimates(),
            admitted=self._admissions,
            stage=first_stage(spec, prompt, graphs),
            consumed=spec.cached_tokens,
            images_left=len(prompt.windows[0]),
            arrived_ns=self.now_ns - spec.waited_ns,
            pages_held=0 if self.free_pages is None else -(-spec.cached_tokens // self.page_tokens),
        )
        start_token_memory(resident, others, Rates(graphs, self.prior), self.policy)
        self.slots[slot] = resident
        return resident.handle

    def _prompt(self, spec: RequestSpec, graphs: tuple[Graph, ...]) -> Prompt:
        windows = image_windows(spec, self.image_feature_rows)
        blocks, starts = atomic_blocks(spec), window_starts(windows)
        anchor: int | None = None
        cuts: tuple[int, ...] = ()
        if self.free_snapshot_rows > 0 and any(g.shape.kind is GraphKind.SNAPSHOT for g in graphs):
            anchor, cuts = choose_cuts(spec, blocks, starts, graphs, self.fraction)
        stops = sorted({*cuts, *starts, spec.prompt_tokens})
        return Prompt(windows, blocks, anchor, cuts, tuple(stops))

    def _pending_snapshot(self, request_id: str) -> bool:
        terminal = any(r.spec.request_id == request_id and r.stage is Stage.TERMINAL for r in self.residents())
        return terminal or request_id in self.unpublished_snapshots

    def published_snapshot(self, request_id: str) -> None:
        """The request's terminal snapshot may be continued."""
        self.unpublished_snapshots.discard(request_id)

    def restored(self, handle: RequestHandle) -> None:
        """A WAITING request's state has arrived."""
        resident = self._resident(handle)
        if resident.stage is not Stage.WAITING:
            raise InvalidRequest(f"request {resident.spec.request_id} does not wait for its state")
        resident.stage = after_state(resident.images_left)
        resident.epoch += 1

    def offer_proposals(self, handle: RequestHandle, source: str, count: int) -> None:
        """Copied drafts for the next round of the request; 0 withdraws them."""
        resident = self._resident(handle)
        if source != "copy" or source not in resident.spec.proposal_sources:
            raise InvalidRequest(f"{source!r} is no source that this request takes offers of")
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_OFFER:
            raise InvalidRequest(f"{count!r} drafts; allowed are 0 to {MAX_OFFER}")
        resident.offered = count
        resident.epoch += 1

    def cancel(self, handle: RequestHandle) -> None:
        """Stops selecting the request; its slot is freed now, or when the last frame that uses it completes."""
        resident = self._resident(handle)
        resident.cancelled = True
        resident.epoch += 1
        self._free_if_done(resident)
        self._idle()

    def finish(self, handle: RequestHandle) -> None:
        """The answer is complete at what has become visible; frames in flight commit nothing more for it."""
        resident = self._resident(handle)
        resident.epoch += 1
        finish(resident, self.graphs(), self.now_ns)
        self._free_if_done(resident)
        self._idle()

    def preempt(self, handle: RequestHandle) -> None:
        """Retires the request's state through a terminal snapshot."""
        resident = self._resident(handle)
        if not self.catalog.of_kind(GraphKind.TERMINAL_SNAPSHOT):
            raise InvalidRequest("no terminal snapshot graph is prepared")
        if resident.retiring or resident.stage is Stage.TERMINAL:
            raise InvalidRequest(f"request {resident.spec.request_id} is being retired already")
        resident.epoch += 1
        resident.terminal_since_ns = self.now_ns
        if resident.in_flight:
            resident.retiring = True
        else:
            resident.stage = Stage.TERMINAL

    def preemption_victim(self) -> RequestHandle | None:
        """Who should be preempted: when pages alone keep every candidate back, whoever was admitted last."""
        if self.queue or self.plan() is not None:
            return None
        barred = [candidate[6] for candidate in self.all_candidates()]
        if "none" in barred or "pages" not in barred:
            return None
        candidates = [r for r in self.runnable() if r.stage is not Stage.TERMINAL]
        return max(candidates, key=lambda r: r.admitted).handle if candidates else None

    # Plans and frames.

    def plan(self) -> ScheduledPlan | None:
        """The best choice now, or None when nothing may be submitted. Changes nothing."""
        self._outcome = self._choose() if self._may_queue() and self.runnable() else Outcome(None, ())
        return self._outcome.plan

    def _may_queue(self) -> bool:
        if len(self.queue) != 1:
            return not self.queue
        frame = self.queue[0]
        known = frame.plan.cost_state is not CostState.UNKNOWN
        return frame.plan.shape.kind in QUEUEABLE and known and self.now_ns <= frame.end_ns

    def project(self) -> None:
        """Brings the residents' view fields up to date (S10)."""
        project(self.residents(), self.completed, self.queue, self.policy)

    def _choose(self) -> Outcome:
        self.project()
        ledgers = self.ledgers
        return choose(
            Decision(
                now_ns=self.now_ns,
                start_ns=max(self.now_ns, self.queue[-1].end_ns) if self.queue else self.now_ns,
                queue_depth=len(self.queue),
                policy=self.policy,
                fixed_width=self.fixed_width,
                graphs=self.graphs(),
                residents=tuple(self.runnable()),
                free_pages=self.free_pages,
                page_tokens=self.page_tokens,
                free_snapshot_rows=self.free_snapshot_rows,
                timing_full=ledgers.funds(Reason.TIMING_REFRESH),
                acceptance_full=ledgers.funds(Reason.ACCEPTANCE_LEARNING),
                timing_credit_ns=ledgers.of[Reason.TIMING_REFRESH].credit_ns,
                acceptance_credit_ns=ledgers.of[Reason.ACCEPTANCE_LEARNING].credit_ns,
                ledgers=ledgers.balances(),
                tick=self.tick,
            )
        )

    def commit(self, plan: ScheduledPlan, fence: int) -> None:
        """Submits the plan under `fence`. Raises InvalidFence when it does not rise, StalePlan when state moved on."""
        if fence <= self._last_fence:
            raise InvalidFence(f"fence {fence} does not rise above {self._last_fence}")
        residents = [
            self._current(lane.handle, epoch) for lane, epoch in zip(plan.lanes, plan.lane_epochs, strict=True)
        ]
        check_commit(self, plan, residents)
        self._last_fence = fence
        self.tick += 1
        rates = Rates(self.graphs(), self.prior)
        participants = [
            Participant(r.handle, rates.token(r), rates.delivery(r))
            for r in self.runnable()
            if r.stage is not Stage.TERMINAL
        ]
        if self.free_pages is not None:
            self.free_pages -= pages_rise(plan, residents, self.page_tokens)
        for resident, lane in zip(residents, plan.lanes, strict=True):
            if self.free_pages is not None:
                resident.pages_held = max(resident.pages_held, pages_needed(plan, lane, resident, self.page_tokens))
            resident.in_flight += 1
            resident.pending += lane.ceiling
            resident.last_served_tick = self.tick
        if plan.reason is Reason.TIMING_REFRESH:
            self.catalog.attempt(plan.shape, self.now_ns)
        self.ledgers.commit(plan.reason)
        start_ns = max(self.now_ns, self.queue[-1].end_ns) if self.queue else self.now_ns
        end_ns = start_ns + plan.selected_cost_ns
        self.queue.append(Frame(fence, plan, tuple(participants), bool(self.queue), end_ns))

    def complete(
        self, fence: int, records: Sequence[CompletionRecord], timing: ExecutionTiming
    ) -> list[GeneratedToken]:
        """Applies a completed frame and returns the tokens to publish, in lane order."""
        return self._complete(fence, records, timing, None, None)

    def complete_with_survival(
        self, fence: int, records: Sequence[CompletionRecord], timing: ExecutionTiming, survival: Any
    ) -> list[GeneratedToken]:
        """As complete(), with survival rows [request_slots, draft_capacity]."""
        return self._complete(fence, records, timing, None, survival)

    def complete_packed_round(
        self, fence: int, records: Sequence[CompletionRecord], timing: ExecutionTiming, confidence: Any
    ) -> list[GeneratedToken]:
        """As complete(), with the confidence sidecar [2, request_slots, draft_capacity]."""
        return self._complete(fence, records, timing, confidence, None)

    def complete_packed_round_with_survival(
        self, fence: int, records: Sequence[CompletionRecord], timing: ExecutionTiming, confidence: Any, survival: Any
    ) -> list[GeneratedToken]:
        """As complete(), with both."""
        return self._complete(fence, records, timing, confidence, survival)

    def _complete(
        self,
        fence: int,
        records: Sequence[CompletionRecord],
        timing: ExecutionTiming,
        confidence: Any,
        survival: Any,
    ) -> list[GeneratedToken]:
        if not self.queue or self.queue[0].fence != fence:
            raise InvalidFence(f"fence {fence} is not the oldest in flight")
        frame = self.queue[0]
        plan = frame.plan
        results = checked_lanes(plan, records, confidence, survival, (self.request_slots, self.draft_capacity))
        interval = checked_interval(timing, frame.queued)
        failed = all(result.record.error is not None for result in results)
        self.queue.pop(0)
        if not failed:
            self.catalog.observe(plan.shape, interval.cost_ns, self.now_ns)
        self.ledgers.complete(plan.reason, interval.service_ns, interval.wall_ns, failed)
        residents = {r.handle: r for r in self.residents()}
        lanes = [(residents[result.lane.handle], result) for result in results]
        counted = [(r, result) for r, result in lanes if commits(r, result)]
        served = {r.handle: res.record.consumed_prompt_tokens + len(res.record.emitted_tokens) for r, res in counted}
        deliveries = {}
        if interval.service_ns and not failed:
            deliveries = charge_interval(
                residents, frame.participants, served, interval.service_ns / 1e6, self.policy.adaptation_ms
            )
        emitted = {r.handle for r, result in counted if result.record.emitted_tokens}
        self.completed = CompletedFrame(
            fence, self.now_ns, frozenset(x.lane.handle for x in results), emitted, set(emitted), deliveries
        )
        completion = Completion(
            plan,
            self.now_ns,
            interval.device_ns,
            self.fraction,
            self.graphs(),
            self.free_snapshot_rows,
            self.residents(),
            self.prior,
            self.pool,
        )
        tokens = []
        for resident, result in lanes:
            if captures_an_end(resident, result):
                self.unpublished_snapshots.add(resident.spec.request_id)
            release_lane(resident, result)
            tokens += apply_lane(resident, result, completion)
            self.generations[resident.slot] = resident.handle.generation
            self._free_if_done(resident)
        for remaining in self.queue:
            remaining.end_ns = self.now_ns + remaining.plan.selected_cost_ns
        self._start_missing_memories()
        self._idle()
        return tokens

    def published_output(self, handle: RequestHandle, fence: int) -> None:
        """Output of the last completed frame became visible now; repeats for one fence deliver nothing more."""
        completed = self.completed
        if completed is None or completed.fence != fence or handle not in completed.handles:
            raise InvalidFence(f"slot {handle.slot} has no output of fence {fence} to publish")
        resident = self._get(handle)
        if resident is None or resident.cancelled or handle not in completed.emitted:
            return
        resident.last_visible_ns = self.now_ns
        completed.unpublished.discard(handle)
        interval = completed.open.pop(handle, None)
        if interval is not None:
            resident.delivery_memory = interval.delivered(self.policy.adaptation_ms)
