"""One piece of recorded traffic, read: who came, what ran and for whom, and what was seen of it."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from scheduler.errors import InvalidRequest
from scheduler.records import RequestSpec
from scheduler.shapes import Allocation, GraphKind, GraphShape
from service.control.preview.observed import EXPLORING, Seen, gaps_between
from service.control.preview.window import Piece
from service.store import traffic
from service.store.traffic import RecordedLane, RecordedPlan, RecordedRequest, RecordedRun

LONGEST_HOST_NS = 1_000_000_000
DEFAULT_SLOTS = 64
FOREVER_NS = 1 << 62
LEARNED = "learned"


@dataclasses.dataclass(frozen=True, slots=True)
class Comer:
    """One request as it is replayed. `arrived_ns`: when the engine had it; `before_ns`: how long before that it came.

    `open_at_start`: it was under way when the piece began, and its prompt holds what was computed until then.
    """

    spec: RequestSpec
    group: str
    arrived_ns: int
    before_ns: int
    output_tokens: int
    open_at_start: bool


@dataclasses.dataclass(slots=True)
class Samples:
    """Executions of one shape in order: start (ns), duration (ns), mean context (tokens)."""

    started_ns: list[int] = dataclasses.field(default_factory=list)
    durations_ns: list[int] = dataclasses.field(default_factory=list)
    contexts: list[float] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class WaitList:
    """Waits in order: when each began (ns), how long it took (ns)."""

    began_ns: list[int] = dataclasses.field(default_factory=list)
    lengths_ns: list[int] = dataclasses.field(default_factory=list)

    def add(self, began_ns: int, ended_ns: int) -> None:
        """One wait, unless something else must have held it up."""
        if 0 <= ended_ns - began_ns < LONGEST_HOST_NS:
            self.began_ns.append(began_ns)
            self.lengths_ns.append(ended_ns - began_ns)


@dataclasses.dataclass(slots=True)
class Costs:
    """What the machine took, by shape and between steps; see scheduler.simulation.recorded.HostSamples.

    `offered`, `accepted`: drafts of each learned lane; `copied`: how many lanes verified copied ones.
    """

    shapes: dict[GraphShape, Samples] = dataclasses.field(default_factory=lambda: defaultdict(Samples))
    after_completion: dict[GraphKind, WaitList] = dataclasses.field(default_factory=lambda: defaultdict(WaitList))
    pauses: dict[GraphKind, WaitList] = dataclasses.field(default_factory=lambda: defaultdict(WaitList))
    idle: WaitList = dataclasses.field(default_factory=WaitList)
    publications: WaitList = dataclasses.field(default_factory=WaitList)
    offered: list[int] = dataclasses.field(default_factory=list)
    accepted: list[int] = dataclasses.field(default_factory=list)
    copied: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    """One piece. `checkpoint`: the scheduler's state before it, None when it is not kept. `seen`: what happened.

    `left_out`: requests that ended without output, which are not replayed; `preempted`: that were set aside for others.
    `versions`: policies of the plans.
    """

    since_ns: int
    until_ns: int
    comers: tuple[Comer, ...]
    seen: Seen
    checkpoint: bytes | None
    versions: frozenset[int]
    left_out: int
    preempted: int


def read_piece(engine: sa.Engine, run: RecordedRun, piece: Piece, costs: Costs) -> Recording | None:
    """Reads one piece and adds what it cost to `costs`; None when nothing was planned in it. Raises StoreError."""
    plans = traffic.read_plans(engine, run, piece.since, piece.until)
    if not plans:
        return None
    fences = plans[0].fence, plans[-1].fence
    requests = traffic.read_requests(engine, run, piece.since, piece.until)
    since_ns, until_ns = run.ns(piece.since), run.ns(piece.until)
    opened = [r.request_id for r in requests if r.admitted_ns is not None and r.admitted_ns < since_ns]
    done = traffic.progress_before(engine, run, opened, fences[0])
    reading = _Reading(plans, requests, done, since_ns, until_ns, costs)
    for lane in traffic.read_lanes(engine, run, fences, (piece.since.date(), piece.until.date())):
        reading.take(lane)
    reading.finish()
    checkpoint = traffic.checkpoint_before(engine, run, fences[0])
    specs = traffic.read_admissions(engine, run, fences)
    comers = tuple(_comers(requests, specs, done, since_ns, slots_of(run)))
    return Recording(
        since_ns,
        until_ns,
        comers,
        reading.seen,
        checkpoint,
        frozenset(plan.policy_version for plan in plans),
        len(requests) - len(comers),
        sum(request.preemptions > 0 for request in requests),
    )


class _Reading:
    """Goes through the lanes in order of their plans and keeps where each request is."""

    def __init__(
        self,
        plans: Sequence[RecordedPlan],
        requests: Sequence[RecordedRequest],
        done: Mapping[str, tuple[int, int]],
        since_ns: int,
        until_ns: int,
        costs: Costs,
    ) -> None:
        self.seen = Seen(until_ns - since_ns, plans=len(plans))
        self._plans = plans
        self._requests = {request.request_id: request for request in requests}
        self._since_ns, self._until_ns = since_ns, until_ns
        self._costs = costs
        self._held = {r.request_id: r.cached_tokens + sum(done.get(r.request_id, (0, 0))) for r in requests}
        self._visible: dict[str, list[int]] = defaultdict(list)
        self._at = 0
        self._lanes: list[RecordedLane] = []
        self._completed_ns: int | None = None
        self._published_ns = self._published_before_ns = 0

    def take(self, lane: RecordedLane) -> None:
        """The next lane, in order of fences."""
        while self._at < len(self._plans) and self._plans[self._at].fence < lane.fence:
            self._close_plan()
        if self._at < len(self._plans) and self._plans[self._at].fence == lane.fence:
            self._lanes.append(lane)

    def finish(self) -> None:
        """After the last lane."""
        while self._at < len(self._plans):
            self._close_plan()
        self._see_requests()

    def _close_plan(self) -> None:
        plan, lanes = self._plans[self._at], self._lanes
        self._at += 1
        self._lanes = []
        context = self._context(lanes)
        for lane in lanes:
            self._held[lane.request_id] = (
                self._held.get(lane.request_id, 0) + lane.prompt_tokens + lane.committed_tokens
            )
            self._count_drafts(lane)
            if lane.published_ns is not None and lane.published_ns < self._until_ns:
                self._visible[lane.request_id].append(lane.published_ns)
        if plan.device_ns is None or plan.started_ns is None or plan.completed_ns is None:
            return
        self._count_plan(plan, lanes)
        if plan.device_ns > 0:
            samples = self._costs.shapes[shape_of(plan.shape)]
            samples.started_ns.append(plan.started_ns)
            samples.durations_ns.append(plan.device_ns)
            samples.contexts.append(context)
        self._note_host(plan, plan.started_ns, lanes)
        self._completed_ns = plan.completed_ns

    def _context(self, lanes: Sequence[RecordedLane]) -> float:
        """Mean tokens in the cache over the decoders; over all lanes when none decodes."""
        some = [lane for lane in lanes if not lane.prompt_tokens] or lanes
        return sum(self._held.get(lane.request_id, 0) for lane in some) / len(some) if some else 0.0

    def _count_drafts(self, lane: RecordedLane) -> None:
        if lane.offered_tokens <= 0:
            return
        self.seen.offered_tokens += lane.offered_tokens
        self.seen.accepted_tokens += lane.accepted_tokens
        if lane.proposal_source == LEARNED:
            self._costs.offered.append(lane.offered_tokens)
            self._costs.accepted.append(lane.accepted_tokens)
        else:
            self._costs.copied += 1

    def _count_plan(self, plan: RecordedPlan, lanes: Sequence[RecordedLane]) -> None:
        seen, device_ns = self.seen, plan.device_ns or 0
        seen.busy_ns += device_ns
        seen.explored_ns += device_ns if plan.reason in EXPLORING else 0
        seen.prompt_tokens += sum(lane.prompt_tokens for lane in lanes)
        seen.output_tokens += plan.output_tokens if (plan.completed_ns or 0) < self._until_ns else 0

    def _note_host(self, plan: RecordedPlan, started_ns: int, lanes: Sequence[RecordedLane]) -> None:
        """What passed before the step and, once its output was visible, behind it."""
        kind, before_ns = GraphKind(plan.shape[0]), self._completed_ns
        if plan.queue_depth:
            if before_ns is not None:
                self._costs.pauses[kind].add(max(before_ns, plan.committed_ns), started_ns)
        elif before_ns is not None and any(self._waited(lane, before_ns) for lane in lanes):
            self._costs.after_completion[kind].add(max(before_ns, self._published_before_ns), started_ns)
        elif before_ns is None or plan.committed_ns > before_ns:
            self._costs.idle.add(plan.committed_ns, started_ns)
        # A host that was still busy with the plan before is no slower for it: the simulated one is as busy by itself.
        self._published_before_ns = self._published_ns
        published_ns = [lane.published_ns for lane in lanes if lane.published_ns is not None]
        if published_ns and plan.completed_ns is not None:
            self._costs.publications.add(max(plan.completed_ns, self._published_ns), min(published_ns))
            self._published_ns = max(self._published_ns, *published_ns)

    def _waited(self, lane: RecordedLane, since_ns: int) -> bool:
        """Whether the lane's request could have been served at that time."""
        request = self._requests.get(lane.request_id)
        return request is not None and request.admitted_ns is not None and request.admitted_ns < since_ns

    def _see_requests(self) -> None:
        seen = self.seen
        for name, times in self._visible.items():
            times.sort()  # two frames may be told in one message, the later one first
            if len(times) > 1:
                seen.gaps_ns.append(gaps_between(times))
            request = self._requests.get(name)
            if request is None or request.arrived_ns < self._since_ns:
                continue
            seen.ttft_ns.append(times[0] - request.arrived_ns)
            if request.finished_ns is not None and request.finished_ns < self._until_ns:
                computed = request.prompt_tokens - request.cached_tokens
                times_and_tokens = request.arrived_ns, times[0], times[-1], computed, request.output_tokens
                seen.answered(group_of(request), *times_and_tokens)


def group_of(request: RecordedRequest) -> str:
    """What requests are compared by: a shared prefix, else the model."""
    return request.prefix_key or request.model


def shape_of(values: Sequence[Any]) -> GraphShape:
    """The shape of the values of SHAPE_COLUMNS."""
    kind, batch, depth, width, rows, prefill, speculation, allocation, prompts = values
    divided_by = Allocation(allocation)
    return GraphShape(GraphKind(kind), batch, depth, width, rows, prefill, bool(speculation), divided_by, prompts)


def _comers(
    requests: Sequence[RecordedRequest],
    specs: Mapping[str, Mapping[str, Any]],
    done: Mapping[str, tuple[int, int]],
    since_ns: int,
    slots: int,
) -> Iterable[Comer]:
    hop_ns = _usual_hop_ns(requests) if most_at_once(requests) > slots else LONGEST_HOST_NS
    for request in requests:
        if request.finish_reason is not None and not request.output_tokens:
            continue
        spec = _spec(request, specs.get(request.request_id))
        total = request.output_tokens if request.finished_ns is not None else spec.max_output_tokens
        prompt_done, emitted = done.get(request.request_id, (0, 0))
        if request.arrived_ns < since_ns:
            left = total - emitted
            if left > 0:
                yield Comer(_continued(spec, prompt_done, emitted), group_of(request), since_ns, 0, left, True)
            continue
        own = (request.admitted_ns or request.arrived_ns) - request.arrived_ns - request.tokenize_ns
        before_ns = request.tokenize_ns + min(max(0, own), hop_ns)
        yield Comer(spec, group_of(request), request.arrived_ns + before_ns, before_ns, max(1, total), False)


def slots_of(run: RecordedRun) -> int:
    """Request slots of the run's scheduler."""
    slots = run.settings.get("request_slots")
    return slots if isinstance(slots, int) and slots > 0 else DEFAULT_SLOTS


def most_at_once(requests: Sequence[RecordedRequest]) -> int:
    """How many requests were open at the same time, at the most."""
    events = sorted(
        event for request in requests for event in ((request.arrived_ns, 1), (request.finished_ns or FOREVER_NS, -1))
    )
    return max(itertools.accumulate((change for _, change in events), initial=0))


def _usual_hop_ns(requests: Sequence[RecordedRequest]) -> int:
    """From the service to the engine. Some requests waited for a slot as well: the quicker ones say what is usual."""
    waits = sorted(r.admitted_ns - r.arrived_ns - r.tokenize_ns for r in requests if r.admitted_ns is not None)
    return max(0, 2 * waits[len(waits) // 4]) if waits else 0


def _spec(request: RecordedRequest, fields: Mapping[str, Any] | None) -> RequestSpec:
    """As the engine admitted it; from the request's own row where that is not kept."""
    if fields is not None:
        try:
            return msgspec.convert({**fields, "continues": None, "restoring": False}, RequestSpec)
        except (msgspec.ValidationError, InvalidRequest, TypeError):
            pass
    cached = min(request.cached_tokens, request.prompt_tokens - 1)
    whole = request.prompt_tokens + max(1, request.max_tokens)
    return RequestSpec(request.request_id, request.prompt_tokens, max(1, request.max_tokens), whole, cached)


def _continued(spec: RequestSpec, prompt_done: int, emitted: int) -> RequestSpec:
    """What is left of a request that was under way: what it has computed is in the cache."""
    prompt = spec.prompt_tokens + emitted
    held = prompt - 1 if emitted else min(spec.cached_tokens + prompt_done, prompt - 1)
    return dataclasses.replace(
        spec,
        prompt_tokens=prompt,
        cached_tokens=held,
        max_output_tokens=max(1, spec.max_output_tokens - emitted),
        message_boundaries=tuple(b for b in spec.message_boundaries if b > held),
    )
