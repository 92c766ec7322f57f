"""Worlds to attack, and the check that a refusal is typed, says something, and changes nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scheduler import Allocation, CompletionRecord, ExecutionTiming, GraphKind, GraphShape, RequestSpec
from tests.scheduler.conftest import Harness, decode, prefill

MS = 1_000_000
ROUND = GraphShape(GraphKind.SPECULATIVE, 2, 3, 4, 8, speculation_enabled=True)
DEVICE = GraphShape(GraphKind.SPECULATIVE, 2, 3, 4, 6, speculation_enabled=True, allocation=Allocation.DEVICE)
NARROW = GraphShape(GraphKind.SPECULATIVE, 2, 0, 1, 2, speculation_enabled=True)
STATE = tuple(
    GraphShape(kind, 1)
    for kind in (GraphKind.INIT, GraphKind.RESTORE, GraphKind.SNAPSHOT, GraphKind.TERMINAL_SNAPSHOT, GraphKind.VISION)
)
GOOD = ExecutionTiming((MS,), MS)
NO_NUMBERS = (math.nan, math.inf, -math.inf, 1.5, "1", b"1", None, (1,), [1], {}, np.float64(1.0), object())
"""What is no whole number, whatever its range."""
NO_COUNTS = (*NO_NUMBERS, True, False, np.int64(1), -1, -(2**70), 2**63, 2**70, 10**400)
"""NO_NUMBERS, and what no count, time or fence may be: bools, negatives, and numbers of more than 64 bits."""


def refused(scheduler, error, call, *arguments, says=None):
    """The call raises exactly this error, with words, and the scheduler's whole state is what it was."""
    before = scheduler.checkpoint()
    with pytest.raises(error, match=says) as caught:
        call(*arguments)
    assert caught.type is error
    assert str(caught.value).strip()
    assert scheduler.checkpoint() == before, arguments


def decoding(*shapes, names=("a", "b"), slots=64, policy=None, **more):
    """A harness whose requests have each published their first token. Prompts of 64 tokens, 200 to come."""
    h = Harness(policy, shapes=(prefill(64), *(shapes or (decode(2),))), measured=True, slots=slots)
    for name in names:
        h.scheduler.admit(RequestSpec(name, 64, 200, 100_000, **more))
        h.step()
    return h


def commit(h):
    """Commits what is planned now; answers the plan."""
    plan = h.scheduler.plan()
    assert plan is not None
    h.fence += 1
    h.scheduler.commit(plan, h.fence)
    return plan


def flying(*shapes, **more):
    """(harness, plan) of one round in flight, its fence being h.fence."""
    h = decoding(*shapes, **more)
    return h, commit(h)


def record(lane, **changes):
    """What the lane may answer, one token at most, with some fields changed."""
    fields = {
        "handle": lane.handle,
        "consumed_prompt_tokens": lane.prompt_tokens,
        "emitted_tokens": (7,) * min(1, lane.ceiling),
    }
    return CompletionRecord(**(fields | changes))


def answers(plan):
    """One good record for each lane."""
    return [record(lane) for lane in plan.lanes]
