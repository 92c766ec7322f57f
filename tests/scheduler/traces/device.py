"""A virtual device and clock that run a scheduler's plans: durations and luck are given, nothing is drawn."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from scheduler import (
    Allocation,
    Catalog,
    CompletionRecord,
    ExecutionTiming,
    GraphKind,
    GraphShape,
    PolicyConfig,
    RequestScheduler,
    RequestSpec,
)

MS = 1_000_000


def prefill(capacity):
    return GraphShape(GraphKind.PREFILL, 1, prefill_capacity=capacity)


def decode(batch):
    return GraphShape(GraphKind.DECODE, batch)


def round_of(batch, depth, rows=0, allocation=Allocation.NONE):
    return GraphShape(
        GraphKind.SPECULATIVE, batch, depth, depth + 1, rows, speculation_enabled=True, allocation=allocation
    )


def mixed(batch, capacity, prompt_rows=1):
    return GraphShape(GraphKind.MIXED, batch, prefill_capacity=capacity, prompt_rows=prompt_rows)


def state_graph(kind, batch=1):
    return GraphShape(kind, batch)


def synthetic_ms(shape):
    """Prefill 2 ms + 1 ms per 64 tokens; decode 8 to 16 ms from batch 1 to 16; 0.4 ms for each draft position."""
    if shape.kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL):
        return 2.0 + shape.prefill_capacity / 64
    if shape.kind in (GraphKind.DECODE, GraphKind.SPECULATIVE):
        return 8.0 + 2.0 * (shape.batch_capacity.bit_length() - 1) + 0.4 * shape.draft_depth
    if shape.kind is GraphKind.MIXED:
        return 8.0 + 2.0 * (shape.batch_capacity.bit_length() - 1) + shape.prefill_capacity / 64
    return 0.1


@dataclasses.dataclass
class Frame:
    fence: int
    plan: object
    end_ns: int


class Trace:
    """Drives one scheduler: `accepted(request_id, emitted)` drafts of each round are right, durations from `ms`."""

    def __init__(
        self, shapes, *, ms=synthetic_ms, accepted=0, policy=None, slots=64, measured=True, queue=1, **options
    ):
        self.ms = ms
        self.accepted = accepted if callable(accepted) else lambda _request, _emitted: accepted
        self.scheduler = RequestScheduler(Catalog(shapes), policy or PolicyConfig(), slots, **options)
        self.now_ns, self.fence, self.queue = MS, 0, queue
        self.frames, self.plans, self.launches = [], [], []
        self.visible, self.tokens, self.finished = {}, {}, {}
        self.scheduler.advance_to(self.now_ns)
        for shape in shapes if measured else ():
            self.scheduler.catalog.observe(shape, round(ms(shape) * MS), self.now_ns)

    def admit(self, name, prompt=64, output=16, context=200_000, **more):
        self.visible[name], self.tokens[name] = [], 0
        return self.scheduler.admit(RequestSpec(name, prompt, output, context, **more))

    def submit(self):
        """Commits what the scheduler wants now; returns the plan or None."""
        if len(self.frames) >= self.queue:
            return None
        plan = self.scheduler.plan()
        if plan is None:
            return None
        self.fence += 1
        self.scheduler.commit(plan, self.fence)
        start = max(self.now_ns, self.frames[-1].end_ns if self.frames else 0)
        self.frames.append(Frame(self.fence, plan, start + round(self.ms(plan.shape) * MS)))
        self.plans.append(plan)
        return plan

    def step(self):
        """Fills the queue, runs its first frame to the end and publishes; returns its plan, None when all is idle."""
        while self.submit() is not None:
            pass
        if not self.frames:
            return None
        frame = self.frames.pop(0)
        duration = round(self.ms(frame.plan.shape) * MS)
        self.now_ns = max(self.now_ns, frame.end_ns)
        self.scheduler.advance_to(self.now_ns)
        self.publish(frame.fence, self.complete(frame, duration))
        return frame.plan

    def complete(self, frame, duration):
        plan = frame.plan
        records, confidence = self.run(plan)
        timing = ExecutionTiming((duration,), duration)
        if plan.shape.allocation is Allocation.DEVICE and plan.shape.draft_depth:
            return self.scheduler.complete_packed_round(frame.fence, records, timing, confidence)
        return self.scheduler.complete(frame.fence, records, timing)

    def publish(self, fence, generated):
        for token in generated:
            self.tokens[token.request_id] += 1
            if token.finished:
                self.finished[token.request_id] = token.finished
        for handle, request_id in dict.fromkeys((t.handle, t.request_id) for t in generated):
            self.scheduler.published_output(handle, fence)
            self.visible[request_id].append(self.now_ns)

    def run(self, plan):
        """The records of one graph, and its confidence rows."""
        rows = self.rows_of(plan)
        slots = 1 + max(lane.handle.slot for lane in plan.lanes)
        confidence = np.zeros((2, max(slots, self.scheduler.request_slots), self.scheduler.draft_capacity), np.float32)
        records = []
        for lane in plan.lanes:
            emitted, accepted, offered = lane.ceiling, 0, 0
            if lane.role.value == "decode":
                offered = rows[lane.handle] - 1
                accepted = min(self.accepted(lane.request_id, self.tokens[lane.request_id]), offered)
                emitted = accepted + 1
                confidence[1, lane.handle.slot, : plan.shape.draft_depth] = 1.0
                confidence[1, lane.handle.slot, accepted : plan.shape.draft_depth] = 0.0
            records.append(
                CompletionRecord(
                    lane.handle,
                    lane.prompt_tokens,
                    tuple(range(emitted)),
                    accepted_tokens=accepted,
                    offered_tokens=offered,
                )
            )
        return records, confidence

    @staticmethod
    def rows_of(plan):
        """Rows per lane: the plan's, or under device allocation one each and the rest by slot."""
        rows = {lane.handle: lane.query_length for lane in plan.lanes}
        if plan.shape.allocation is not Allocation.DEVICE:
            return rows
        left = plan.shape.target_rows - len(rows)
        for handle, ceiling in rows.items():
            rows[handle] = 1 + min(ceiling - 1, max(0, left))
            left -= rows[handle] - 1
        return rows

    def run_until_idle(self, limit=20_000):
        for _ in range(limit):
            if self.step() is None:
                return self.plans
        raise AssertionError(f"still running after {limit} graphs")

    def gaps_ms(self, name):
        times = self.visible[name]
        return [(b - a) / MS for a, b in itertools.pairwise(times)]
