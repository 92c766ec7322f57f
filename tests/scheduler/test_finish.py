"""finish(): the host ends an answer at what it has published, between completions."""

from __future__ import annotations

import pytest

from scheduler import GraphKind, GraphShape, RequestSpec
from scheduler.errors import SnapshotPending, StalePlan, UnknownHandle
from tests.scheduler.conftest import decode, prefill

TERMINAL = GraphShape(GraphKind.TERMINAL_SNAPSHOT, 1)
SHAPES = (TERMINAL, prefill(64), decode(1))
MS = 1_000_000


@pytest.fixture
def start(harness):
    def start(shapes=SHAPES, terminal_ms=0, rows=0):
        h = harness(shapes=shapes, measured=True, durations=lambda shape: MS)
        if terminal_ms:
            h.scheduler.catalog.observe(TERMINAL, terminal_ms * MS, h.now_ns)
        h.scheduler.set_resources(1 << 30, rows)
        return h

    return start


def answering(h, tokens=4):
    """A request with so many visible tokens."""
    handle = h.scheduler.admit(RequestSpec("a", 64, 100, 200))
    while len(h.tokens.get("a", ())) < tokens:
        h.step()
    return handle


def submit(h):
    plan = h.scheduler.plan()
    h.fence += 1
    h.scheduler.commit(plan, h.fence)
    return plan


def test_an_answer_that_the_host_ends_is_captured_like_one_with_a_stop_token(start):
    h = start()
    h.scheduler.finish(answering(h, 40))
    assert h.step().shape == TERMINAL
    assert h.scheduler.resident_count == 0
    with pytest.raises(SnapshotPending):
        h.scheduler.admit(RequestSpec("b", 64, 4, 100, continues="a"))
    h.scheduler.published_snapshot("a")
    h.scheduler.admit(RequestSpec("b", 64, 4, 100, continues="a"))


def test_it_is_captured_only_when_its_decoding_has_earned_that(start):
    h = start(terminal_ms=50)
    handle = answering(h)
    h.scheduler.finish(handle)
    assert not h.scheduler.is_resident(handle)
    assert h.scheduler.plan() is None
    with pytest.raises(UnknownHandle):
        h.scheduler.finish(handle)


@pytest.mark.parametrize("frames", [1, 2])
def test_frames_in_flight_commit_nothing_more_and_the_capture_waits_for_them(start, frames):
    h = start()
    handle = answering(h, 40)
    first = h.fence + 1
    plans = [submit(h) for _ in range(frames)]
    h.scheduler.finish(handle)
    assert h.scheduler.plan() is None
    for h.fence, plan in enumerate(plans, start=first):
        assert h.complete(plan) == []
    assert len(h.tokens["a"]) == 40
    assert h.step().shape == TERMINAL


def test_a_plan_made_before_goes_stale(start):
    h = start()
    handle = answering(h)
    plan = h.scheduler.plan()
    h.scheduler.finish(handle)
    with pytest.raises(StalePlan, match="request a has changed"):
        h.scheduler.commit(plan, h.fence + 1)


def test_before_its_prompt_is_whole_it_is_a_cancellation(start):
    h = start()
    handle = h.scheduler.admit(RequestSpec("a", 128, 100, 300))
    plan = submit(h)
    h.scheduler.finish(handle)
    assert h.scheduler.plan() is None
    assert h.complete(plan) == []
    assert h.scheduler.resident_count == 0


def test_a_copy_that_is_under_way_is_not_taken_for_the_terminal_one(start):
    h = start((GraphShape(GraphKind.SNAPSHOT, 1), *SHAPES), rows=4)
    handle = h.scheduler.admit(RequestSpec("a", 64, 100, 200))
    h.step()
    plan = submit(h)
    assert plan.shape.kind is GraphKind.SNAPSHOT
    h.scheduler.finish(handle)
    h.complete(plan)
    assert h.scheduler.resident_count == 0
    h.scheduler.admit(RequestSpec("b", 64, 4, 100, continues="a"))


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_preempted_one_keeps_its_age_and_has_ended(start, in_flight):
    h = start(terminal_ms=50)
    handle = answering(h)
    plan = submit(h) if in_flight else None
    h.scheduler.preempt(handle)
    since = h.now_ns
    h.scheduler.advance_to(h.now_ns + MS)
    h.now_ns += MS
    h.scheduler.finish(handle)
    assert h.scheduler._state.columns["terminal_since_ns"][handle.slot] == since
    if plan is not None:
        assert h.complete(plan) == []
    assert h.step().shape == TERMINAL
    with pytest.raises(SnapshotPending):
        h.scheduler.admit(RequestSpec("b", 64, 4, 100, continues="a"))
