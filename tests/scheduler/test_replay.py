"""checkpoint() is the whole state: what comes after restore() is the same, decision for decision."""

from __future__ import annotations

import random

import numpy as np
import pytest

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
from scheduler.errors import InvalidCheckpoint
from scheduler.records import ImageSpan
from tests.scheduler.conftest import decode, prefill

MS = 1_000_000
ROUND = GraphShape(GraphKind.SPECULATIVE, 2, 3, 4, 6, speculation_enabled=True, allocation=Allocation.DEVICE)
KINDS = (GraphKind.INIT, GraphKind.RESTORE, GraphKind.SNAPSHOT, GraphKind.TERMINAL_SNAPSHOT, GraphKind.VISION)
SHAPES = (
    *(GraphShape(kind, 1) for kind in KINDS),
    prefill(64),
    ROUND,
    GraphShape(GraphKind.SPECULATIVE, 2, speculation_enabled=True),
)


class Run:
    """A seeded stream of commands; `step` gives what the scheduler answered."""

    def __init__(self, seed=3, policy=None):
        self.rng = random.Random(seed)
        self.scheduler = RequestScheduler(Catalog(SHAPES), policy or PolicyConfig(), 4, image_feature_rows=4)
        self.scheduler.set_resources(500, 2)
        self.now, self.fence, self.names = MS, 0, 0
        self.frames = []

    def step(self):
        self.now += self.rng.randint(1, 3) * MS
        self.scheduler.advance_to(self.now)
        self.arrive()
        answers = []
        while len(self.frames) < 2 and (plan := self.scheduler.plan()) is not None:
            self.fence += 1
            self.scheduler.commit(plan, self.fence)
            self.frames.append((self.fence, plan))
            answers.append(plan)
        if self.frames and self.rng.random() < 0.8:
            answers.append(self.complete(*self.frames.pop(0)))
        return answers

    def arrive(self):
        if self.rng.random() < 0.4 and self.scheduler.resident_count < 4:
            self.names += 1
            images = (ImageSpan(0, 9, 3), ImageSpan(20, 40, 3)) if self.rng.random() < 0.5 else ()
            prompt = self.rng.randint(60, 200)
            spec = RequestSpec(
                f"r{self.names}", prompt, 9, prompt + 9, message_boundaries=(50, 59), images=images, grammar=not images
            )
            self.scheduler.admit(spec)

    def complete(self, fence, plan):
        records = []
        for lane in plan.lanes:
            count = lane.ceiling if lane.prompt_tokens else self.rng.randint(min(1, lane.ceiling), lane.ceiling)
            accepted = max(0, count - 1) if not lane.prompt_tokens else 0
            records.append(CompletionRecord(lane.handle, lane.prompt_tokens, (1,) * count, accepted))
        ns = self.rng.randint(1, 9) * MS
        confidence = np.full((2, 4, 3), self.rng.random(), np.float32)
        tokens = self.scheduler.complete_packed_round(fence, records, ExecutionTiming((ns,), ns), confidence)
        for token in tokens[::2]:
            self.scheduler.published_output(token.handle, fence)
        return tokens


def test_a_restored_scheduler_decides_like_the_one_that_was_saved():
    saved, kept = Run(), Run()
    seen = set()
    for number in range(160):
        if number % 5 == 0:
            data = saved.scheduler.checkpoint()
            saved.scheduler = RequestScheduler.restore(data, Catalog(SHAPES))
            assert saved.scheduler.checkpoint() == data
            saved.frames = [
                (fence, frame.plan)
                for (fence, _), frame in zip(saved.frames, saved.scheduler._state.queue, strict=True)
            ]
        answers, expected = saved.step(), kept.step()
        assert repr(answers) == repr(expected), number
        seen |= {plan.shape.kind for _, plan in kept.frames}
    assert {GraphKind.SPECULATIVE, GraphKind.VISION, GraphKind.SNAPSHOT} <= seen
    assert saved.scheduler.policy == kept.scheduler.policy


def test_a_plan_made_before_the_checkpoint_can_be_committed_after_it():
    run = Run()
    run.scheduler.admit(RequestSpec("a", 64, 4, 99))
    plan = run.scheduler.plan()
    restored = RequestScheduler.restore(run.scheduler.checkpoint(), Catalog(SHAPES))
    restored.commit(plan, 1)
    assert restored.in_flight == plan


def test_settings_and_policy_come_from_the_bytes():
    policy = PolicyConfig(decode_age_price=0.3, newcomer_memory="phase", estimate_ttl_ns=5)
    scheduler = RequestScheduler(Catalog([prefill(64), decode(1)]), policy, 7, 0.25, "adaptive", 5, 9)
    again = RequestScheduler.restore(scheduler.checkpoint(), Catalog([prefill(64), decode(1)]))
    assert (again.policy, again.request_slots, again._settings) == (policy, 7, scheduler._settings)
    assert again.catalog.ttl_ns == 5


@pytest.mark.parametrize("damage", ["empty", "short", "bit", "text"])
def test_bytes_that_are_no_checkpoint_are_refused(damage):
    data = Run().scheduler.checkpoint()
    bad = {"empty": b"", "short": data[:-1], "bit": data[:99] + bytes([data[99] ^ 1]) + data[100:], "text": b"x" * 99}
    with pytest.raises(InvalidCheckpoint):
        RequestScheduler.restore(bad[damage], Catalog(SHAPES))


def test_a_checkpoint_of_another_catalog_is_refused_and_leaves_that_one_alone():
    run = Run()
    run.scheduler.catalog.observe(prefill(64), 5, 0)
    other = Catalog(SHAPES[::-1])
    with pytest.raises(InvalidCheckpoint, match="another catalog"):
        RequestScheduler.restore(run.scheduler.checkpoint(), other)
    assert not other.estimate(prefill(64), 0).known
