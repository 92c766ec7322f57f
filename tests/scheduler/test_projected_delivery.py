"""The worker plans before it publishes; the plan must be the one it would make after publishing (S10)."""

from __future__ import annotations

import itertools
import random

import pytest

from scheduler import ExecutionTiming, GraphKind
from tests.scheduler.conftest import SHAPES, decode, duration_of, prefill


def worker_step(h):
    """Complete, plan, publish, commit, at one instant; returns the plan, which publication must not change."""
    plan = h.scheduler.in_flight
    generated = []
    if plan is not None:
        h.now_ns += duration_of(plan.shape)
        h.scheduler.advance_to(h.now_ns)
        took = duration_of(plan.shape)
        generated = h.scheduler.complete(h.fence, h.records(plan), ExecutionTiming((took,), took))
    before = h.scheduler.plan()
    for token in generated:
        h.scheduler.published_output(token.handle, h.fence)
        h.published.append((h.now_ns, token.request_id))
    after = h.scheduler.plan()
    assert before == after
    if before is not None:
        h.fence += 1
        h.scheduler.commit(before, h.fence)
        h.log.append(before)
    return before


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_made_before_publication_is_the_plan_made_after_it(harness, seed):
    rng = random.Random(seed)
    h = harness(measured=rng.random() < 0.5, shapes=SHAPES[rng.randint(0, 2) :], slots=24)
    names = 0
    for _ in range(200):
        if h.scheduler.resident_count < 20 and rng.random() < 0.3:
            h.admit(f"r{names}", prompt=rng.randint(1, 700), output=rng.randint(1, 40))
            names += 1
        worker_step(h)
    assert len(h.log) > 100


@pytest.mark.parametrize(("streams", "batch"), [(2, 1), (3, 1), (20, 16), (48, 16)])
def test_streams_that_share_a_batch_take_turns_in_the_workers_order(harness, streams, batch):
    h = harness(shapes=(prefill(64), decode(batch)), measured=True)
    for i in range(streams):
        h.admit(f"r{i}", output=10_000)
    for _ in range(streams + 60 * -(-streams // batch)):
        worker_step(h)
    turns = {f"r{i}": [] for i in range(streams)}
    decodes = [p for p in h.log if p.shape.kind is GraphKind.DECODE][streams:]
    for number, plan in enumerate(decodes):
        for lane in plan.lanes:
            turns[lane.request_id].append(number)
    gaps = [b - a for seen in turns.values() for a, b in itertools.pairwise(seen)]
    assert max(gaps) <= -(-streams // batch)


def projected_visible_ns(harness, name):
    """When decisions take the request's last output to have been visible."""
    state = harness.scheduler._state
    state.refresh()
    return state.slots[state.slot_of[name]]["view_visible_ns"]


def test_output_that_stays_hidden_is_expected_no_longer_once_another_frame_has_completed(harness):
    """Stop buffering can hold a token back; its age then counts from what was last visible."""
    h = harness(shapes=(prefill(64), decode(1)), measured=True)
    h.admit("a", output=50)
    h.admit("b", output=50)
    h.step()
    h.step()
    visible = {name: at for at, name in h.published}
    hidden = h.step(publish=False).lanes[0].request_id
    assert projected_visible_ns(h, hidden) == h.now_ns
    while h.step().lanes[0].request_id == hidden:
        visible[hidden] = h.now_ns
    assert projected_visible_ns(h, hidden) == visible[hidden]
