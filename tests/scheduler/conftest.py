from __future__ import annotations

import pytest

from scheduler import (
    Catalog,
    CompletionRecord,
    ExecutionTiming,
    GraphKind,
    GraphShape,
    PolicyConfig,
    RequestScheduler,
    RequestSpec,
)


def decode(batch: int) -> GraphShape:
    return GraphShape(GraphKind.DECODE, batch)


def prefill(capacity: int) -> GraphShape:
    return GraphShape(GraphKind.PREFILL, 1, prefill_capacity=capacity)


SHAPES = (*map(prefill, (64, 128, 256, 512)), *map(decode, (1, 2, 4, 8)))


def duration_of(shape: GraphShape) -> int:
    """Made-up but plausible: prefill 2 ms + 1 ms per 64 tokens, decode 8 to 16 ms."""
    if shape.kind is GraphKind.PREFILL:
        return 2_000_000 + shape.prefill_capacity * 1_000_000 // 64
    return 7_000_000 + 1_000_000 * shape.batch_capacity


class Harness:
    """Drives a scheduler like the worker loop does, on a clock of its own."""

    def __init__(self, policy=None, shapes=SHAPES, slots=64, measured=False, durations=duration_of):
        self.durations = durations
        self.scheduler = RequestScheduler(Catalog(shapes), policy or PolicyConfig(), slots)
        self.now_ns = 1
        self.fence = 0
        self.log = []
        self.tokens = {}
        self.published = []
        self.scheduler.advance_to(self.now_ns)
        if measured:
            for shape in shapes:
                self.scheduler.catalog.observe(shape, durations(shape), self.now_ns)

    def admit(self, name, prompt=64, output=16, context=100_000):
        return self.scheduler.admit(RequestSpec(name, prompt, output, context))

    def step(self, publish=True, finished=None):
        """One graph from plan to publication; returns its plan, or None when nothing can run."""
        plan = self.scheduler.plan()
        if plan is None:
            return None
        self.fence += 1
        self.scheduler.commit(plan, self.fence)
        self.complete(plan, publish=publish, finished=finished)
        return plan

    def complete(self, plan, publish=True, finished=None):
        duration = self.durations(plan.shape)
        self.now_ns += duration
        self.scheduler.advance_to(self.now_ns)
        generated = self.scheduler.complete(
            self.fence, self.records(plan, finished), ExecutionTiming((duration,), duration)
        )
        self.log.append(plan)
        for token in generated:
            self.tokens.setdefault(token.request_id, []).append(token)
        if publish:
            for token in generated:
                self.scheduler.published_output(token.handle, self.fence)
                self.published.append((self.now_ns, token.request_id))
        return generated

    @staticmethod
    def records(plan, finished=None):
        return [
            CompletionRecord(
                lane.handle,
                lane.prompt_tokens,
                tuple(range(lane.ceiling)),
                finished=(finished or {}).get(lane.request_id),
            )
            for lane in plan.lanes
        ]

    def run(self, limit=10_000):
        for _ in range(limit):
            if self.step() is None:
                return self.log
        raise AssertionError(f"still running after {limit} graphs")


@pytest.fixture
def harness():
    return Harness
