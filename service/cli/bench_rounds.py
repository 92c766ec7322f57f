"""The planning benchmark's scenario: many decoding requests, one round queued whenever plan() is called.

Only the scheduler runs; time, acceptance and confidence are made up from a seed. Requests differ in prompt length, age
and acceptance; the catalog holds rounds of every power-of-two batch and prefill graphs; every duration is measured.
"""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler import (
    Catalog,
    CompletionRecord,
    ExecutionTiming,
    GraphKind,
    GraphShape,
    PolicyConfig,
    RequestScheduler,
    RequestSpec,
    ScheduledPlan,
)
from scheduler.plans import Reason
from scheduler.shapes import Allocation

DEPTH, WIDTH = 7, 8
BATCHES = (1, 2, 4, 8, 16, 32, 64)
PREFILLS = (64, 128, 256, 512, 1024, 2048, 4096)
MOST_ROWS = 128
ALPHA = 0.6
NEVER_STALE_NS = 10**16
WARM_UP = 100
FULL_NS = 5_000_000
DRAWN = 257
"""Confidence rows and noise drawn beforehand, used in turn."""

Progress = Callable[[], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One row of the benchmark. `probe`: every timed plan() must answer with an acceptance probe."""

    allocation: str
    requests: int
    probe: bool


@dataclasses.dataclass(slots=True)
class Measured:
    """Times in ns. `settle_ns`: commit, complete and all publications of one round."""

    case: Case
    plan_ns: list[int]
    settle_ns: list[int]
    candidates: list[int]
    distinct: int

    def row(self) -> dict[str, Any]:
        """The figures of one case; without a timed plan its times are missing."""
        return {
            "allocation": self.case.allocation,
            "requests": self.case.requests,
            "probe": self.case.probe,
            "median_us": median_us(self.plan_ns),
            "p99_us": round(percentile(self.plan_ns, 0.99) / 1e3, 1) if self.plan_ns else None,
            "plans": len(self.plan_ns),
            "distinct_plans": self.distinct,
            "candidates": int(statistics.median(self.candidates or [0])),
        }


def median_us(times_ns: list[int]) -> float | None:
    """The median in microseconds, None of nothing."""
    return round(statistics.median(times_ns) / 1e3, 1) if times_ns else None


def percentile(values: list[int], share: float) -> int:
    """The smallest value that at least this share does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def round_shapes(allocation: Allocation) -> tuple[GraphShape, ...]:
    """Width-one rounds and rounds of seven drafts: target rows in powers of two above B, up to min(8 B, 128)."""
    shapes = [GraphShape(GraphKind.SPECULATIVE, batch, 0, 1, 0, 0, True) for batch in BATCHES]
    for batch in BATCHES:
        rows = 2 * batch
        while rows <= min(WIDTH * batch, MOST_ROWS):
            shapes.append(GraphShape(GraphKind.SPECULATIVE, batch, DEPTH, WIDTH, rows, 0, True, allocation))
            rows *= 2
    return tuple(shapes)


def duration_ns(shape: GraphShape) -> int:
    """Made up: a base, lanes, rows and drafts, or prompt tokens; so that batches and depths are close rivals."""
    if shape.kind is GraphKind.PREFILL:
        return 4_000_000 + 20_000 * shape.prefill_capacity
    drafting = 1_000_000 if shape.draft_depth else 0
    return 4_000_000 + drafting + 600_000 * shape.batch_capacity + 170_000 * shape.target_rows


class Rounds:
    """Drives one scheduler so that a round is in flight before each timed plan()."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case = case
        self._generator = np.random.default_rng([seed, case.requests, case.probe])
        allocation = Allocation.DEVICE if case.allocation == "device" else Allocation.HOST
        prefills = tuple(GraphShape(GraphKind.PREFILL, 1, prefill_capacity=c) for c in PREFILLS)
        catalog = Catalog((*prefills, *round_shapes(allocation)))
        policy = PolicyConfig(adaptive_verification_alpha=ALPHA, estimate_ttl_ns=NEVER_STALE_NS)
        self._scheduler = RequestScheduler(catalog, policy, case.requests)
        self._now_ns = 1
        self._fence = 0
        self._queue: list[tuple[int, ScheduledPlan]] = []
        self._scheduler.advance_to(self._now_ns)
        for shape in catalog.shapes:
            catalog.observe(shape, duration_ns(shape), self._now_ns)
        self._draw()
        self._fill()

    def _draw(self) -> None:
        """What chance decides: each request's acceptance, each round's confidence and disturbance of its duration."""
        draw, requests = self._generator, self.case.requests
        self._acceptance = draw.uniform(0.2, 0.85, requests)
        depths = np.arange(1, DEPTH + 1)
        survival = self._acceptance[:, None] ** depths
        noisy = survival * draw.uniform(0.8, 1.0, (DRAWN, requests, 1))
        self._confidence: npt.NDArray[np.float32] = np.ascontiguousarray(
            np.repeat(noisy[:, None], 2, axis=1), dtype=np.float32
        )
        self._runs: list[list[int]] = (draw.geometric(1 - self._acceptance, (DRAWN, requests)) - 1).tolist()
        self._noise: list[float] = draw.uniform(0.85, 1.15, DRAWN).tolist()

    def _fill(self) -> None:
        """Admits everyone, runs the prompts, then enough rounds to make histories and ages differ."""
        lengths = self._generator.integers(64, 4096, self.case.requests).tolist()
        for i, length in enumerate(lengths):
            self._scheduler.admit(RequestSpec(f"r{i}", length, 2**28, 2**29, proposal_sources=("learned",)))
        rounds = 0
        while rounds < WARM_UP:
            plan = self._scheduler.plan()
            if plan is not None:
                rounds += plan.active_decoders == self.case.requests
                self._commit(plan)
            if plan is None or len(self._queue) == 2:
                self._complete()

    def _commit(self, plan: ScheduledPlan) -> None:
        self._fence += 1
        self._scheduler.commit(plan, self._fence)
        self._queue.append((self._fence, plan))

    def _complete(self) -> None:
        """The oldest round: its end, its records, its publications."""
        records, timing, confidence = self._outcome(self._queue[0][1])
        self._settle(self._queue.pop(0), records, timing, confidence)

    def _outcome(
        self, plan: ScheduledPlan
    ) -> tuple[list[CompletionRecord], ExecutionTiming, npt.NDArray[np.float32] | None]:
        """What the device would report; the clock moves to the round's end."""
        turn = self._fence % DRAWN
        took = int(duration_ns(plan.shape) * self._noise[turn])
        self._now_ns += took
        self._scheduler.advance_to(self._now_ns)
        runs, lanes = self._runs[turn], plan.lanes
        packed = plan.shape.allocation is Allocation.DEVICE and plan.shape.draft_depth > 0
        share = plan.shape.target_rows // len(lanes) - 1
        records = []
        for lane in lanes:
            offered = min(lane.ceiling - 1, share) if packed else lane.query_length - 1
            accepted = min(runs[lane.handle.slot], max(0, offered)) if lane.ceiling > 1 else 0
            tokens = tuple(range(min(lane.ceiling, accepted + 1)))
            told = offered if lane.ceiling > 1 else None
            records.append(CompletionRecord(lane.handle, lane.prompt_tokens, tokens, accepted, offered_tokens=told))
        return records, ExecutionTiming((took,), took), self._confidence[turn] if packed else None

    def _settle(
        self,
        frame: tuple[int, ScheduledPlan],
        records: list[CompletionRecord],
        timing: ExecutionTiming,
        confidence: npt.NDArray[np.float32] | None,
    ) -> None:
        fence = frame[0]
        if confidence is None:
            self._scheduler.complete(fence, records, timing)
        else:
            self._scheduler.complete_packed_round(fence, records, timing, confidence)
        for record in records:
            if record.emitted_tokens:
                self._scheduler.published_output(record.handle, fence)

    def _fund(self) -> None:
        """Gives or takes the credit for acceptance probes, as so much ordinary execution or an idle moment would."""
        state = self._scheduler._state
        ledger = state.ledgers.acceptance
        if not self.case.probe:
            ledger.idle()
        elif not ledger.full:
            ledger.units = FULL_NS * ledger.denominator
            state.rebuild_acceptance(0, state.request_slots)
        state.ledgers.timing.idle()

    def measure(self, plans: int, progress: Progress) -> Measured:
        """Times `plans` calls of plan() with one round in flight, and what lies between them."""
        measured = Measured(self.case, [], [], [], 0)
        seen: set[tuple[GraphShape, tuple[tuple[int, int], ...]]] = set()
        wanted = Reason.ACCEPTANCE_LEARNING if self.case.probe else Reason.ORDINARY
        gc.collect()
        gc.freeze()
        for _ in range(20 * plans):
            self._fund()
            began = time.perf_counter_ns()
            plan = self._scheduler.plan()
            took = time.perf_counter_ns() - began
            if plan is not None and len(self._queue) == 1 and plan.reason is wanted:
                measured.plan_ns.append(took)
                measured.candidates.append(plan.candidates)
                seen.add((plan.shape, tuple((lane.handle.slot, lane.query_length) for lane in plan.lanes)))
                progress()
            self._advance(plan, measured)
            if len(measured.plan_ns) == plans:
                break
        gc.unfreeze()
        measured.distinct = len(seen)
        return measured

    def _advance(self, plan: ScheduledPlan | None, measured: Measured) -> None:
        """Commits the plan, and completes the round before it once two are in flight or nothing could be planned."""
        began = time.perf_counter_ns()
        if plan is not None:
            self._commit(plan)
        took = time.perf_counter_ns() - began
        if plan is not None and len(self._queue) < 2:
            return
        outcome = self._outcome(self._queue[0][1])
        frame = self._queue.pop(0)
        began = time.perf_counter_ns()
        self._settle(frame, *outcome)
        took += time.perf_counter_ns() - began
        if plan is not None and len(frame[1].lanes) == min(self.case.requests, BATCHES[-1]):
            measured.settle_ns.append(took)
