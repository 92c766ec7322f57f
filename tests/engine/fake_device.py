"""A scripted device under a manual clock: two frame slots, growing pages, cached states, speculative rounds."""

from __future__ import annotations

import collections
import dataclasses
import math

import numpy as np

from gpu.device import (
    DeviceLimits,
    Frame,
    FrameLane,
    FrameResult,
    InvalidFrame,
    LaneResult,
    PagesExhausted,
    RequestExceedsPool,
    SamplingParameters,
    TokenLogprobs,
)
from scheduler.shapes import Allocation, GraphKind, GraphShape

MS = 1_000_000
STOP = 1
WORD = 50
QUEUEABLE = (GraphKind.DECODE, GraphKind.SPECULATIVE)
STATE_KINDS = (GraphKind.INIT, GraphKind.RESTORE, GraphKind.SNAPSHOT, GraphKind.TERMINAL_SNAPSHOT)


class Clock:
    """Time that moves when told to."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, ns: int) -> None:
        self.now_ns += ns


@dataclasses.dataclass(eq=False)
class Resident:
    """`cursor`: tokens in the cache. `emitted`: output tokens of all lives. `reserved`: tokens that its pages hold.
    `running`: most tokens that its frames in flight can add. `last_fence`: the last frame that uses its pages."""

    prompt: list[int]
    sampling: SamplingParameters
    cached: int
    emitted: int
    boundaries: tuple[int, ...]
    reserved: int = 0
    cursor: int = 0
    output: list[int] = dataclasses.field(default_factory=list)
    running: int = 0
    last_fence: int = 0
    copies: int = 0

    @property
    def pages(self) -> int:
        return -(-self.reserved // 16)


@dataclasses.dataclass
class Running:
    frame: Frame
    started_ns: int
    residents: list[Resident]


class FakeDevice:
    """Emits each request's script (by the first prompt token), then WORD. The oldest frame ends when `finish` is
    called, or at the next collect() while `automatic` is set; `patient`: not before another was queued behind it or
    the worker had a chance to.

    `states`: state graphs, pages taken as frames need them, a prefix cache. `drafts`: the deepest round; of each round
    `right` drafts are accepted. `copied`: what copy_proposals() answers. `refusals`: errors for the next submits.
    """

    completion_fd = -1

    def __init__(
        self, clock: Clock, *, pages: int = 64, context: int = 512, slots: int = 8, states: bool = False,
        drafts: int = 0, learned: bool = True, allocation: Allocation = Allocation.NONE, rows: int = 8,
        scored: bool = False,
    ) -> None:  # fmt: skip
        self.clock = clock
        self.states = states
        self.limits = DeviceLimits(
            context, pages, 16, 100, slots, rows if states else 0, drafts, learned and drafts > 0
        )
        self.shapes = _shapes(states, drafts, allocation, scored)
        self.draft_capacity = max(1, drafts)
        self.scripts: dict[int, list[int]] = {}
        self.right = 1
        self.copied = 0
        self.automatic = True
        self.patient = False
        self.fresh = False
        self.frames: list[Frame] = []
        self.refusals: list[Exception] = []
        self.residents: dict[int, Resident] = {}
        self.closing: list[Resident] = []
        self.queue: collections.deque[Running] = collections.deque()
        self.results: collections.deque[FrameResult] = collections.deque()
        self.cached: dict[tuple[int, ...], str] = {}
        self.opened: list[tuple[int, int]] = []
        self.error: str | None = None
        self.lane_errors: dict[int, str] = {}
        self.busy = 0
        self.most_running = 0
        self.journal = None

    @property
    def running(self) -> Frame | None:
        """The oldest frame that has not finished."""
        return self.queue[0].frame if self.queue else None

    def prepare(self, progress) -> None:
        progress("ready", 1.0)

    def match_prefix(self, prompt_token_ids) -> int:
        fitting = [p for p in self.cached if len(p) < len(prompt_token_ids) and p == tuple(prompt_token_ids[: len(p)])]
        return max(map(len, fitting), default=0)

    def open_request(
        self, slot, prompt_token_ids, max_output_tokens, sampling, *, cached_tokens=0, boundaries=(), emitted_before=0
    ) -> None:
        assert slot not in self.residents
        assert cached_tokens in (0, self.match_prefix(prompt_token_ids))
        whole = len(prompt_token_ids) + max_output_tokens + self.limits.draft_tokens
        if -(-whole // 16) > self.limits.kv_pages:
            raise RequestExceedsPool("too many pages")
        resident = Resident(list(prompt_token_ids), sampling, cached_tokens, emitted_before, tuple(boundaries))
        resident.reserved = cached_tokens if self.states else whole
        if resident.pages > self.free_pages():
            raise PagesExhausted("wait")
        if not self.states or not cached_tokens:
            resident.cursor = 0
        self.residents[slot] = resident
        self.opened.append((slot, cached_tokens))

    def close_request(self, slot) -> None:
        resident = self.residents.pop(slot, None)
        if resident is not None and any(resident in running.residents for running in self.queue):
            self.closing.append(resident)

    def copy_proposals(self, slot) -> int:
        self.residents[slot].copies = self.copied
        return self.copied

    def submit(self, frame: Frame) -> None:
        assert self.journal is None or self.journal.holds_commit(frame.fence)
        if self.refusals:
            raise self.refusals.pop(0)
        if len(self.queue) + len(self.results) > 1:
            raise InvalidFrame("two frames are in flight")
        if self.queue and not {frame.shape.kind, self.queue[0].frame.shape.kind} <= set(QUEUEABLE):
            raise InvalidFrame("only rounds queue")
        residents = [self.residents[lane.slot] for lane in frame.lanes]
        if self.states and frame.shape.kind not in STATE_KINDS:
            self._reserve(frame, residents)
        for lane, resident in zip(frame.lanes, residents, strict=True):
            resident.running += lane.query_length
            resident.last_fence = frame.fence
        self.fresh = True
        self.frames.append(frame)
        self.queue.append(Running(frame, self.clock(), residents))
        self.most_running = max(self.most_running, len(self.queue))

    def refuse(self, why: str, error: type[Exception] = InvalidFrame) -> None:
        """Take no notice of the next frame but this error."""
        self.refusals.append(error(why))

    def _reserve(self, frame: Frame, residents: list[Resident]) -> None:
        """As many tokens as the scheduler counts: one more than a round fills, for the token that it draws."""
        before = [resident.reserved for resident in residents]
        for lane, resident in zip(frame.lanes, residents, strict=True):
            extra = 1 + (frame.shape.draft_depth if resident.cursor >= len(resident.prompt) else 0)
            tokens = resident.cursor + resident.running + lane.query_length + extra
            resident.reserved = max(resident.reserved, min(tokens, self.limits.context_tokens))
        if self.free_pages() < 0:
            for resident, reserved in zip(residents, before, strict=True):
                resident.reserved = reserved
            raise PagesExhausted("no pages for the frame")

    def finish(self, duration_ns: int = MS) -> None:
        """The oldest running frame ends now, after `duration_ns`."""
        running = self.queue.popleft()
        frame = running.frame
        self.clock.advance(duration_ns)
        self.busy += duration_ns
        confidence = survival = None
        if frame.shape.draft_depth and self.limits.learned_drafts:
            confidence = np.zeros((2, self.limits.request_slots, self.draft_capacity), np.float32)
            survival = np.full((self.limits.request_slots, self.draft_capacity), np.nan)
        lanes = []
        for lane, resident in zip(frame.lanes, running.residents, strict=True):
            resident.running -= lane.query_length
            if self.error or lane.slot in self.lane_errors:
                lanes.append(LaneResult(0, (), self.error or self.lane_errors[lane.slot]))
            else:
                lanes.append(self._run(frame, lane, resident))
            if confidence is not None and not lane.copies and lane.query_length > 1:
                confidence[:, lane.slot, : frame.shape.draft_depth] = 0.5
                survival[lane.slot, : lanes[-1].accepted_tokens] = 1.0
        self.closing = [r for r in self.closing if any(r in other.residents for other in self.queue)]
        self.results.append(
            FrameResult(
                frame.fence, running.started_ns, self.clock(), duration_ns, () if self.error else tuple(lanes),
                self.error, None if self.error else confidence, None if self.error else survival,
            )
        )  # fmt: skip
        self.error = None
        self.lane_errors = {}

    def _run(self, frame: Frame, lane: FrameLane, resident: Resident) -> LaneResult:
        kind = frame.shape.kind
        if kind in STATE_KINDS:
            assert lane.query_length == 1
            assert lane.retires or kind is not GraphKind.TERMINAL_SNAPSHOT, "its pages can be given away"
            self._run_state(kind, resident, lane.keeps)
            return LaneResult(0, ())
        scores = ()
        if resident.cursor < len(resident.prompt):
            assert not resident.cached or resident.cursor >= resident.cached, "restored before it runs"
            first, resident.cursor = resident.cursor, resident.cursor + lane.query_length
            if kind is GraphKind.SCORED_PREFILL:
                assert resident.sampling.prompt_logprobs is not None
                scores = tuple(_scores(t) for t in resident.prompt[max(1, first) : resident.cursor])
            if resident.cursor < len(resident.prompt):
                return LaneResult(lane.query_length, (), prompt_logprobs=scores)
            tokens = self._draw(resident, 1)
            return LaneResult(lane.query_length, tokens, logprobs=self._told(resident, tokens), prompt_logprobs=scores)
        offered = min(lane.query_length - 1, frame.shape.draft_depth)
        if lane.copies:
            assert 0 < offered <= resident.copies, "drafts as offered"
        accepted = min(self.right, offered)
        tokens = self._draw(resident, accepted + 1)
        resident.cursor += len(tokens)
        return LaneResult(
            0, tokens, accepted_tokens=accepted, offered_tokens=offered, logprobs=self._told(resident, tokens)
        )

    def _run_state(self, kind: GraphKind, resident: Resident, keeps: int | None) -> None:
        if kind is GraphKind.RESTORE:
            assert resident.cursor == 0
            resident.cursor = resident.cached
        elif kind in (GraphKind.SNAPSHOT, GraphKind.TERMINAL_SNAPSHOT):
            assert resident.cursor > 0
            end = resident.cursor if keeps is None else min(keeps, resident.cursor)
            self.cached[tuple((resident.prompt + resident.output)[:end])] = kind.value
            while len(self.cached) > self.limits.snapshot_rows:
                del self.cached[next(iter(self.cached))]

    def _draw(self, resident: Resident, count: int) -> tuple[int, ...]:
        script = self.scripts.get(resident.prompt[0], [])
        numbers = range(resident.emitted, resident.emitted + count)
        tokens = tuple(script[number] if number < len(script) else WORD for number in numbers)
        resident.emitted += count
        resident.output += tokens
        return tokens

    def _told(self, resident: Resident, tokens: tuple[int, ...]) -> tuple[TokenLogprobs, ...]:
        return () if resident.sampling.logprobs is None else tuple(map(_scores, tokens))

    def collect(self) -> FrameResult | None:
        waits = self.patient and self.fresh and len(self.queue) < 2
        if self.automatic and self.queue and not self.results and not waits:
            self.finish()
        self.fresh = False
        return self.results.popleft() if self.results else None

    def held_pages(self) -> int:
        return sum(r.pages for r in [*self.residents.values(), *self.closing])

    def used_pages(self) -> int:
        return self.held_pages()

    def free_pages(self) -> int:
        return self.limits.kv_pages - self.held_pages()

    def free_snapshot_rows(self) -> int:
        return min(self.limits.snapshot_rows, max(0, self.free_pages()))

    def busy_ns(self) -> int:
        return self.busy

    def shut_down(self, abandon) -> None:
        pass


def _scores(token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -token / 100, ((token, -token / 100), (2, -math.inf)))


def _shapes(states: bool, drafts: int, allocation: Allocation, scored: bool) -> tuple[GraphShape, ...]:
    shapes = [GraphShape(GraphKind.PREFILL, 1, prefill_capacity=size) for size in (64, 128)]
    if scored:
        shapes.append(GraphShape(GraphKind.SCORED_PREFILL, 1, prefill_capacity=64))
    for size in (1, 2, 4, 8):
        if not drafts:
            shapes.append(GraphShape(GraphKind.DECODE, size))
            continue
        shapes.append(GraphShape(GraphKind.SPECULATIVE, size, speculation_enabled=True))
        rows = 0 if allocation is Allocation.NONE or size == 1 else size + drafts
        shapes.append(GraphShape(GraphKind.SPECULATIVE, size, drafts, drafts + 1, rows, 0, True, allocation))
    if states:
        shapes += [GraphShape(kind, size) for kind in STATE_KINDS for size in (1, 4)]
    return tuple(shapes)
