"""What the scheduler refuses, and that a refusal changes nothing."""

from __future__ import annotations

import pytest

from scheduler import (
    CompletionRecord,
    ExecutionTiming,
    RequestHandle,
    RequestSpec,
)
from scheduler.errors import (
    ClockWentBack,
    DuplicateRequest,
    InvalidCompletion,
    InvalidFence,
    InvalidRequest,
    RequestTooLong,
    SlotsFull,
)


def test_admission_says_what_is_wrong(harness):
    h = harness(slots=1)
    with pytest.raises(RequestTooLong, match="no room for output"):
        h.admit("long", prompt=100, context=100)
    h.admit("a")
    with pytest.raises(DuplicateRequest):
        h.admit("a")
    with pytest.raises(SlotsFull):
        h.admit("b")
    for bad in ({"prompt_tokens": 0}, {"max_output_tokens": 0}, {"cached_tokens": 10}, {"prompt_tokens": True}):
        with pytest.raises(InvalidRequest):
            RequestSpec(
                **({"request_id": "x", "prompt_tokens": 10, "max_output_tokens": 1, "context_capacity": 99} | bad)
            )


def test_fences_rise_strictly(harness):
    h = harness(measured=True)
    h.admit("a")
    h.step()
    plan = h.scheduler.plan()
    for fence in (1, 0, -1):
        with pytest.raises(InvalidFence):
            h.scheduler.commit(plan, fence)
    h.scheduler.commit(plan, 7)
    with pytest.raises(InvalidFence):
        h.scheduler.complete(6, h.records(plan), ExecutionTiming((1,), 1))


def test_the_clock_does_not_go_back(harness):
    h = harness()
    h.scheduler.advance_to(100)
    with pytest.raises(ClockWentBack):
        h.scheduler.advance_to(99)
    assert h.scheduler.now_ns == 100


GOOD = ExecutionTiming((1_000,), 2_000)


@pytest.mark.parametrize(
    "timing",
    [
        ExecutionTiming((-1,), 1),
        ExecutionTiming((1,), -1),
        ExecutionTiming((float("nan"),), 1),
        ExecutionTiming((1.5,), 1),
        ExecutionTiming((True,), 1),
        ExecutionTiming((10,), 10, exposed_delivery_ns=10),
        ExecutionTiming((10**13,), 1),
    ],
)
def test_impossible_timing_is_refused_and_changes_nothing(harness, timing):
    h = harness(measured=True)
    h.admit("a")
    plan = h.scheduler.plan()
    h.scheduler.commit(plan, 1)
    before = h.scheduler.catalog.estimate(plan.shape, h.now_ns)
    with pytest.raises(InvalidCompletion):
        h.scheduler.complete(1, h.records(plan), timing)
    assert h.scheduler.in_flight is plan
    assert h.scheduler.catalog.estimate(plan.shape, h.now_ns) == before
    assert len(h.scheduler.complete(1, h.records(plan), GOOD)) == 1


def broken_records(plan):
    good = CompletionRecord(plan.lanes[0].handle, plan.lanes[0].prompt_tokens, (5,))
    stranger = RequestHandle(9, 1)
    return {
        "none": [],
        "twice": [good, good],
        "stranger": [CompletionRecord(stranger, 64, (5,))],
        "too little prompt": [CompletionRecord(good.handle, 63, (5,))],
        "too many tokens": [CompletionRecord(good.handle, 64, (5, 6))],
        "no token": [CompletionRecord(good.handle, 64, ())],
        "accepted drafts": [CompletionRecord(good.handle, 64, (5,), accepted_tokens=1)],
        "a failed lane that commits": [CompletionRecord(good.handle, 64, (5,), error="x")],
    }


@pytest.mark.parametrize(
    "kind",
    [
        "none",
        "twice",
        "stranger",
        "too little prompt",
        "too many tokens",
        "no token",
        "accepted drafts",
        "a failed lane that commits",
    ],
)
def test_malformed_completions_are_refused_and_change_nothing(harness, kind):
    h = harness(measured=True)
    h.admit("a", prompt=64)
    plan = h.scheduler.plan()
    h.scheduler.commit(plan, 1)
    with pytest.raises(InvalidCompletion):
        h.scheduler.complete(1, broken_records(plan)[kind], GOOD)
    assert h.scheduler.in_flight is plan
    assert len(h.scheduler.complete(1, h.records(plan), GOOD)) == 1


def test_publication_of_another_fence_is_refused(harness):
    h = harness(measured=True)
    handle = h.admit("a", output=20)
    h.step()
    h.step()
    for fence in (1, 3):
        with pytest.raises(InvalidFence):
            h.scheduler.published_output(handle, fence)
    with pytest.raises(InvalidFence):
        h.scheduler.published_output(RequestHandle(5, 1), 2)
