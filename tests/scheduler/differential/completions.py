"""What a device would have done with a plan: records, timing, confidence and survival; and wrong ones."""

from __future__ import annotations

import msgspec
import numpy as np

from scheduler.plans import Reason, Role
from scheduler.records import CompletionRecord, ExecutionTiming, FinishReason
from scheduler.shapes import Allocation
from tests.scheduler.differential.scenario import MS

ENDINGS = (FinishReason.STOP, FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR)


def random_record(scenario, plan, lane):
    """What one lane did."""
    rng = scenario.rng
    if rng.random() < 0.01:
        return CompletionRecord(lane.handle, error="broken")
    emitted, accepted, offered = lane.ceiling, 0, None
    if lane.role is Role.DECODE:
        most = lane.ceiling - 1
        offered = most if rng.random() < 0.8 else rng.randint(0, most)
        while accepted < offered and rng.random() < scenario.acceptance:
            accepted += 1
        emitted = accepted + 1
        if accepted and rng.random() < 0.1:
            emitted = accepted
        if offered == most and not is_device(plan) and rng.random() < 0.5:
            offered = None
    finished = rng.choice(ENDINGS) if emitted and rng.random() < 0.03 else None
    return CompletionRecord(lane.handle, lane.prompt_tokens, tuple(range(emitted)), accepted, finished, None, offered)


def is_device(plan):
    return plan.shape.allocation is Allocation.DEVICE and plan.shape.draft_depth > 0


def random_timing(scenario, plan):
    """Most are near the truth; a few say nothing about the device, and some have exposed delivery."""
    rng = scenario.rng
    truth = scenario.durations[plan.shape]
    noise = rng.uniform(0.7, 1.5) if scenario.noisy else 1.0
    device = max(1, round(truth * noise))
    wall = device + rng.choice((0, 0, rng.randint(0, truth)))
    if scenario.slow_host and plan.reason is Reason.ORDINARY:
        wall += 1_000 * MS
    if rng.random() < 0.04:
        return ExecutionTiming(rng.choice(((), (0,), (0, 0))), wall)
    exposed = rng.randrange(device) if rng.random() < 0.1 else 0
    ranks = (device,) if rng.random() < 0.7 else (device, max(0, device - rng.randint(0, device)))
    return ExecutionTiming(ranks, wall, exposed)


def random_sidecars(scenario, plan, extents):
    """(confidence or None, survival or None)."""
    rng = scenario.rng
    if scenario.level:
        rows = np.ones(extents)
        rows[:, 0] = 0.5
        return (np.stack([rows, rows]).astype(np.float32) if is_device(plan) else None), rows
    confidence = survival = None
    if is_device(plan) or (scenario.sidecars and rng.random() < 0.2):
        confidence = np.stack([random_rows(rng, extents), random_rows(rng, extents)]).astype(np.float32)
    if scenario.sidecars and rng.random() < 0.5:
        survival = random_rows(rng, extents)
        survival[random_rows(rng, extents) > 0.9] = np.nan
    return confidence, survival


def random_rows(rng, extents):
    """Probabilities, usually of prefixes, so that they fall with depth. Where they do not, estimates of depths tie."""
    values = np.random.default_rng(rng.getrandbits(32)).random(extents)
    return values if rng.random() < 0.3 else np.cumprod(np.where(values < 0.2, 1.0, values), axis=1)


def wrong_completion(rng, records, timing):
    """(records, timing) with one mistake that both sides must refuse in the same way."""
    records = list(records)
    i = rng.randrange(len(records))
    record = records[i]
    kind = rng.randrange(7)
    if kind == 0:
        return records[:-1], timing
    if kind == 1:
        return [*records, record], timing
    if kind == 2:
        records[i] = msgspec.structs.replace(record, accepted_tokens=record.accepted_tokens + 70)
    elif kind == 3:
        records[i] = msgspec.structs.replace(record, emitted_tokens=(*record.emitted_tokens, *range(70)))
    elif kind == 4:
        records[i] = msgspec.structs.replace(record, consumed_prompt_tokens=record.consumed_prompt_tokens + 1)
    elif kind == 5:
        return records, ExecutionTiming((5,), 10, 5)
    else:
        return records, ExecutionTiming((-1,), 10)
    return records, timing
