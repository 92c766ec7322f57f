"""The simulated machine: one device, one host, `queue_depth` frame slots, and whoever decides.

    host    complete ─ admit ─ plan ─ commit ─(host cost)─ submit ─ publish          complete ─ ...
    device                                                 └── step ──────────────────┘

The device starts a step when it is submitted and the step before has ended; with two frame slots the host prepares one
while another runs. Completions are seen in order, when the host is free. What a completed step emitted becomes visible
when the host has submitted the next step, or one host cost after the completion when there is none.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from scheduler.errors import SlotsFull
from scheduler.records import ExecutionTiming, RequestSpec
from scheduler.shapes import GraphKind, GraphShape
from scheduler.simulation.acceptance import AcceptanceLuck
from scheduler.simulation.arrivals import ArrivalQueue
from scheduler.simulation.batcher import Batcher, DurationSource, PlanColumns
from scheduler.simulation.durations import HostCosts, HostTimes, Moment
from scheduler.simulation.errors import SimulationError, StuckSimulation
from scheduler.simulation.execution import INFERENCE_KINDS, Execution, Live, Step
from scheduler.simulation.prefixes import PrefixCache
from scheduler.simulation.results import Launches, Outcome, SimulationResult
from scheduler.simulation.workload import Arrival, Workload

LARGEST_QUEUE_DEPTH = 2
PROGRESS_PLANS = 512
PAGES_WITHOUT_END = 1 << 39

Progress = Callable[[int, int], None]
"""Called now and then with (requests that have ended, requests in all)."""


@dataclasses.dataclass(frozen=True, slots=True)
class MachineSettings:
    """What the machine is like.

    `request_slots`: rows of the confidence sidecar; the batcher itself says when its slots are full.
    `context_capacity`: tokens of prompt and answer. A prompt that leaves no room for one output token is refused; an
    answer is cut where the context ends. `queue_depth`: frame slots, 1 or 2. `prefix_cache_tokens`: see PrefixCache.
    `known_output_lengths`: whether max_output_tokens is the answer's true length; else it is the room left in the
    context, and the model ends the answer by itself. `snapshot_rows`: rows for the states of prompts and of answers,
    which RequestScheduler keeps where it has graphs for it. `stop_ns`: when the run ends although work is left.
    `first_fence`: the last fence of a scheduler that has run before.
    """

    request_slots: int = 64
    context_capacity: int = 131_072
    queue_depth: int = LARGEST_QUEUE_DEPTH
    host: HostTimes = dataclasses.field(default_factory=HostCosts)
    prefix_cache_tokens: int | None = None
    known_output_lengths: bool = False
    snapshot_rows: int = 0
    stop_ns: int | None = None
    first_fence: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.queue_depth <= LARGEST_QUEUE_DEPTH:
            raise SimulationError(f"the queue depth is {self.queue_depth}; it must be 1 or {LARGEST_QUEUE_DEPTH}")
        if not (self.request_slots >= 1 and self.context_capacity >= 2):
            raise SimulationError("a machine needs at least one request slot and a context of at least 2 tokens")


@dataclasses.dataclass(slots=True)
class _Frame:
    """A committed step: when it was handed to the device, when it ends, and what a measurement of it reads."""

    fence: int
    step: Step
    submitted_ns: int
    end_ns: int
    measured_ns: int


@dataclasses.dataclass(slots=True)
class _Unpublished:
    """A completed step's output: who emitted, whose answer ended, and when it becomes visible at the latest."""

    fence: int
    emitting: Sequence[Live]
    ended: list[Live]
    visible_ns: int


def simulate(
    batcher: Batcher,
    workload: Workload,
    durations: DurationSource,
    settings: MachineSettings | None = None,
    luck: AcceptanceLuck | None = None,
    progress: Progress | None = None,
    clock: Callable[[int], None] | None = None,
) -> SimulationResult:
    """Runs `workload` to its end. `luck` is needed when plans have drafts. `clock` is told the time now and then.

    The batcher is fresh: its catalog may hold measurements, it has no residents. Raises StuckSimulation when it plans
    nothing although requests wait and nothing is to come, SimulationError for drafts without luck.
    """
    machine = _Machine(batcher, workload, durations, settings or MachineSettings(), luck)
    return machine.run(progress or (lambda _done, _total: None), clock or (lambda _now_ns: None))


class _Machine:
    """The state of one run; `now_ns` is the host's clock."""

    def __init__(
        self,
        batcher: Batcher,
        workload: Workload,
        durations: DurationSource,
        settings: MachineSettings,
        luck: AcceptanceLuck | None,
    ) -> None:
        self._batcher = batcher
        self._durations = durations
        self._settings = settings
        self._queue = ArrivalQueue(workload)
        self._prefixes = PrefixCache(settings.prefix_cache_tokens)
        self._execution = Execution(luck, settings.request_slots)
        self._total = len(workload.arrivals)
        self._result = SimulationResult(first_arrival_ns=min((a.time_ns or 0 for a in workload.arrivals), default=0))
        self._by_slot: dict[int, Live] = {}
        self._residents = 0
        self._leaving: list[tuple[int, int, Live]] = []  # when, index, who: clients that will not wait
        self._retiring: set[int] = set()  # slots of answers that have ended, whose state is still to be kept
        self._in_flight: deque[_Frame] = deque()
        self._unpublished: _Unpublished | None = None
        self._launches = Launches()
        self._published = batcher.published_output
        self._device_free_ns = 0
        self._completed_ns = -1
        self._fence = settings.first_fence
        self._may_admit = True
        self._last_freeing = 0  # the newest step in flight when the last answer ended: it may still hold that slot
        self._now_ns = 0

    def run(self, progress: Progress, clock: Callable[[int], None]) -> SimulationResult:
        """The event loop."""
        in_flight, result, stop_ns = self._in_flight, self._result, self._settings.stop_ns
        if self._settings.snapshot_rows:
            self._batcher.set_resources(PAGES_WITHOUT_END, self._settings.snapshot_rows)  # type: ignore[attr-defined]
        while stop_ns is None or self._now_ns < stop_ns:
            if in_flight and in_flight[0].end_ns <= self._now_ns:
                self._publish(self._now_ns)
                self._complete(in_flight.popleft())
            self._let_go()
            self._admit()
            if len(in_flight) < self._settings.queue_depth and (self._residents or self._retiring):
                plan = self._batcher.plan()
                if plan is not None:
                    self._submit(plan)
                    if not result.plans % PROGRESS_PLANS:
                        progress(result.over, self._total)
                        clock(self._now_ns)
                    continue
            if self._unpublished is not None:
                self._publish(self._unpublished.visible_ns)
                if not in_flight:
                    continue
            if not self._wait():
                break
        progress(result.over, self._total)
        self._note_open()
        self._launches.write(result)
        result.offered_tokens, result.accepted_tokens = self._execution.offered_tokens, self._execution.accepted_tokens
        return result

    def _wait(self) -> bool:
        """Moves the clock to the next event; False when there is none."""
        arrival_ns = self._queue.next_ns
        end_ns = self._in_flight[0].end_ns if self._in_flight else None
        if arrival_ns is None and end_ns is None:
            if self._residents or self._queue.waiting:
                raise StuckSimulation(
                    f"nothing is planned although {self._residents} requests are resident and "
                    f"{len(self._queue.waiting)} wait for a slot"
                )
            return False
        self._advance(min(at for at in (arrival_ns, end_ns) if at is not None))
        return True

    def _advance(self, to_ns: int) -> None:
        if to_ns > self._now_ns:
            self._now_ns = to_ns
            self._batcher.advance_to(to_ns)

    def _let_go(self) -> None:
        """Cancels whose client has left by now; while a step in flight serves it, that waits for the step's end."""
        leaving = self._leaving
        while leaving and leaving[0][0] <= self._now_ns:
            index, live = leaving[0][1:]
            if any(live in frame.step.lives for frame in self._in_flight):
                return
            heapq.heappop(leaving)
            if not live.output_left:
                continue
            self._publish(self._now_ns)
            self._batcher.cancel(live.handle)
            del self._by_slot[live.handle.slot]
            self._residents -= 1
            self._may_admit = True
            self._left(index)

    def _left(self, index: int) -> None:
        self._result.left += 1
        self._queue.ended(index, self._now_ns)

    def _admit(self) -> None:
        """Takes in who has arrived, in order, while there are slots."""
        queue = self._queue
        next_ns = queue.next_ns
        if next_ns is not None and next_ns <= self._now_ns:
            for arrival, arrived_ns in queue.due(self._now_ns):
                if arrival.prompt_tokens + 1 > self._settings.context_capacity:
                    self._result.refused += 1
                    queue.ended(arrival.index, self._now_ns)
                else:
                    queue.waiting.append((arrival, arrived_ns))
        while queue.waiting and self._may_admit:
            arrival, arrived_ns = queue.waiting[0]
            if arrival.patience_ns is not None and arrived_ns + arrival.patience_ns <= self._now_ns:
                queue.waiting.popleft()
                self._left(arrival.index)
                continue
            try:
                self._take_in(arrival, arrived_ns)
            except SlotsFull:
                self._may_admit = False
                return
            queue.waiting.popleft()

    def _take_in(self, arrival: Arrival, arrived_ns: int) -> None:
        room = self._settings.context_capacity - arrival.prompt_tokens
        length = min(arrival.output_tokens, room)
        most = length if self._settings.known_output_lengths else room
        spec = self._spec(arrival, most, max(0, self._now_ns - arrived_ns))
        handle = self._batcher.admit(spec)
        cached = spec.cached_tokens
        outcome = Outcome(
            arrival.index, arrival.client, arrival.prompt_tokens, arrived_ns, cached, admitted_ns=self._now_ns
        )
        self._result.truncated += length < arrival.output_tokens
        live = self._by_slot[handle.slot] = self._execution.open(arrival, outcome, handle, length)
        if arrival.patience_ns is not None:
            heapq.heappush(self._leaving, (arrived_ns + arrival.patience_ns, arrival.index, live))
        self._residents += 1

    def _spec(self, arrival: Arrival, most_output: int, waited_ns: int) -> RequestSpec:
        if arrival.spec is not None:
            return dataclasses.replace(arrival.spec, waited_ns=waited_ns)
        return RequestSpec(
            request_id=str(arrival.index),
            prompt_tokens=arrival.prompt_tokens,
            max_output_tokens=most_output,
            context_capacity=self._settings.context_capacity,
            cached_tokens=self._prefixes.cached_tokens(arrival),
            waited_ns=waited_ns,
        )

    def _submit(self, plan: Any) -> None:
        """Commits the plan and hands it to the device; what was completed before becomes visible then."""
        result, shape = self._result, plan.shape
        self._fence += 1
        columns = PlanColumns(plan)
        self._batcher.commit(plan, self._fence)
        by_slot = self._by_slot
        step = Step(shape, [by_slot[slot] for slot in columns.slots], columns.rows, columns.prompt_tokens)
        start_ns = self._prepare(shape)
        context = step.mean_context() if self._durations.needs_context else 0.0
        true_ns, measured_ns = self._durations.duration_ns(plan, context, start_ns)
        self._device_free_ns = start_ns + true_ns
        self._in_flight.append(_Frame(self._fence, step, self._now_ns, self._device_free_ns, measured_ns))
        result.plans += 1
        result.lanes += len(columns.slots)
        result.busy_ns += true_ns
        if shape.prefill_capacity:
            result.computed_prompt_tokens += sum(columns.prompt_tokens)
        self._launches.count(plan, true_ns)
        self._publish(self._now_ns)

    def _prepare(self, shape: GraphShape) -> int:
        """The host works until the device has the step. Returns when that starts, ns."""
        host, planned_ns = self._settings.host, self._now_ns
        if self._in_flight:
            moment = Moment.BESIDE
        else:
            moment = Moment.COMPLETION if planned_ns == self._completed_ns else Moment.IDLE
        pause_ns = host.pause_ns(shape, planned_ns) if self._in_flight else None
        self._advance(planned_ns + host.prepare_ns(shape, moment, planned_ns))
        if pause_ns is None:
            return max(self._device_free_ns, self._now_ns)
        return max(self._device_free_ns, planned_ns) + pause_ns

    def _complete(self, frame: _Frame) -> None:
        """Hands the step's records to the batcher; its output becomes visible later."""
        now_ns, batcher = self._now_ns, self._batcher
        self._completed_ns = now_ns
        executed = self._execution.run(frame.step)
        timing = ExecutionTiming((frame.measured_ns,), now_ns - frame.submitted_ns)
        if executed.sidecar is None:
            batcher.complete(frame.fence, executed.records, timing)
        else:
            batcher.complete_packed_round(  # type: ignore[attr-defined]
                frame.fence, executed.records, timing, executed.sidecar
            )
        if executed.ended:
            self._residents -= len(executed.ended)
            self._last_freeing = self._fence
            if self._settings.snapshot_rows:
                self._note_retiring(executed.ended)
        if frame.step.shape.kind is GraphKind.TERMINAL_SNAPSHOT:
            self._retire(frame.step.lives)
        if frame.fence <= self._last_freeing or frame.step.shape.kind not in INFERENCE_KINDS:
            self._may_admit = True  # no other step frees a slot, and asking in vain costs as much as planning
        if executed.emitting:
            visible_ns = now_ns + self._settings.host.publish_ns(frame.step.shape, now_ns)
            self._unpublished = _Unpublished(frame.fence, executed.emitting, executed.ended, visible_ns)

    def _note_retiring(self, ended: Sequence[Live]) -> None:
        resident = self._batcher.is_resident  # type: ignore[attr-defined]
        self._retiring.update(live.handle.slot for live in ended if resident(live.handle))

    def _retire(self, lives: Sequence[Live]) -> None:
        """The states of these answers are kept now."""
        for live in lives:
            self._retiring.discard(live.handle.slot)
            self._batcher.published_snapshot(str(live.arrival.index))  # type: ignore[attr-defined]

    def _publish(self, at_ns: int) -> None:
        """Makes the last completed step's output visible at `at_ns`."""
        unpublished = self._unpublished
        if unpublished is None:
            return
        self._unpublished = None
        self._advance(at_ns)
        now_ns, fence, published = self._now_ns, unpublished.fence, self._published
        for live in unpublished.emitting:
            published(live.handle, fence)
            live.visible_ns.append(now_ns)
        for live in unpublished.ended:
            self._end(live)

    def _end(self, live: Live) -> None:
        """The answer's last token is visible."""
        outcome, result = live.outcome, self._result
        outcome.output_tokens = live.output_tokens
        self._note_visible(live)
        outcome.finished_ns = live.visible_ns[-1]
        result.outcomes.append(outcome)
        result.end_ns = self._now_ns
        self._prefixes.finished(live.arrival)
        self._queue.ended(outcome.index, self._now_ns)

    def _note_visible(self, live: Live) -> None:
        """What is known from when the answer's output became visible."""
        if live.visible_ns:
            live.outcome.first_ns = live.visible_ns[0]
        if len(live.visible_ns) > 1:
            gaps_ns = np.diff(np.array(live.visible_ns, dtype=np.int64))
            live.outcome.largest_gap_ns = int(gaps_ns.max())
            self._result.gaps_ns.frombytes(gaps_ns.tobytes())

    def _note_open(self) -> None:
        """Who had not ended when the run was stopped."""
        self._result.waiting = len(self._queue.waiting)
        for live in self._by_slot.values():
            if not live.outcome.finished_ns:
                live.outcome.output_tokens = live.output_tokens - live.output_left
                self._note_visible(live)
                self._result.open.append(live.outcome)
