"""One small scenario through the whole scheduler, told as lines: rounds, prompts, a cancel, a change of policy.

Run as a program it prints them, so that a test can compare an interpreter whose kernels are compiled with one whose
kernels run as plain Python (NUMBA_DISABLE_JIT=1).
"""

from __future__ import annotations

import numpy as np

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
from scheduler.shapes import Allocation

DEPTH, WIDTH = 3, 4
SLOTS = 6


def speculative(batch, rows=0, depth=DEPTH, width=WIDTH, allocation=Allocation.DEVICE):
    return GraphShape(GraphKind.SPECULATIVE, batch, depth, width, rows, 0, True, allocation)


SHAPES = (
    *(GraphShape(GraphKind.PREFILL, 1, prefill_capacity=c) for c in (64, 256)),
    *(speculative(b, 0, 0, 1, Allocation.NONE) for b in (1, 2, 4)),
    *(speculative(b, rows) for b, rows in ((1, 0), (2, 4), (2, 8), (4, 8), (4, 12))),
    *(speculative(b, rows, allocation=Allocation.HOST) for b, rows in ((2, 6), (4, 10))),
)


def duration_of(shape):
    """Made up: a base, a cost per row of batch, and one per token row."""
    return 2_000_000 + 300_000 * shape.batch_capacity + 90_000 * shape.physical_rows


def complete(scheduler, fence, plan, rng):
    """Completes the oldest frame with drawn acceptance and confidence, and publishes what it emitted."""
    records = []
    for lane in plan.lanes:
        accepted = int(rng.integers(0, lane.query_length)) if lane.ceiling > 1 else 0
        emitted = min(lane.ceiling, accepted + 1)
        offered = lane.query_length - 1 if lane.ceiling > 1 else None
        tokens = tuple(range(emitted))
        records.append(CompletionRecord(lane.handle, lane.prompt_tokens, tokens, accepted, offered_tokens=offered))
    timing = ExecutionTiming((duration_of(plan.shape),), duration_of(plan.shape) + 5_000)
    if plan.shape.allocation is Allocation.DEVICE and plan.shape.draft_depth:
        confidence = np.sort(rng.random((2, SLOTS, DEPTH), dtype=np.float32), axis=2)[:, :, ::-1].copy()
        tokens = scheduler.complete_packed_round(fence, records, timing, confidence)
    else:
        tokens = scheduler.complete(fence, records, timing)
    for handle in dict.fromkeys(token.handle for token in tokens):
        scheduler.published_output(handle, fence)
    return tokens


def told(plan):
    lanes = [(lane.handle.slot, lane.query_length, lane.ceiling, lane.value.hex()) for lane in plan.lanes]
    return f"{plan.shape.label} {plan.reason.value} {plan.score.hex()} {plan.candidates} {lanes}"


def story(steps=60):
    """Plans in order, with every float's bits, and the acceptance learned at the end."""
    rng, lines = np.random.default_rng(5), []
    scheduler = RequestScheduler(Catalog(SHAPES), PolicyConfig(adaptive_verification_alpha=0.6), SLOTS)
    now, fence, queue, handles = 0, 0, [], []
    for step in range(steps):
        now += 1_000_000
        scheduler.advance_to(now)
        if step % 9 == 0 and scheduler.resident_count < SLOTS:
            spec = RequestSpec(f"r{step}", 40 + 90 * (step % 4), 30, 4096, proposal_sources=("learned",))
            handles.append(scheduler.admit(spec))
        if step == 25:
            scheduler.cancel(next(handle for handle in handles if scheduler.is_resident(handle)))
        if step == 40:
            scheduler.configure_policy(PolicyConfig(token_fairness=4.0))
        plan = scheduler.plan()
        if plan is not None:
            lines.append(told(plan))
            fence += 1
            scheduler.commit(plan, fence)
            queue.append((fence, plan))
        elif queue:
            now += 10_000_000
            scheduler.advance_to(now)
            complete(scheduler, *queue.pop(0), rng)
    return lines


if __name__ == "__main__":
    print("\n".join(story()))
