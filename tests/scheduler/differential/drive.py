"""Runs one scenario on both sides: arrivals, frames, publications and every other command, drawn from its seed."""

from __future__ import annotations

import collections
import dataclasses

from scheduler.shapes import GraphKind
from tests.scheduler.differential.compare import Difference
from tests.scheduler.differential.completions import (
    random_record,
    random_sidecars,
    random_timing,
    wrong_completion,
)
from tests.scheduler.differential.pair import Pair
from tests.scheduler.differential.scenario import MS, any_scenario, random_policy, random_preferences, random_spec

FRAME_SLOTS = 2
COMPARE_EVERY = 4


@dataclasses.dataclass
class Report:
    """What one scenario covered. `difference` is the first disagreement with its story, None when there was none."""

    seed: int
    plans: int = 0
    seen: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    difference: str | None = None


def run_scenario(seed, plans, plain_of=None, make=any_scenario):
    """At most `plans` plans of scenario `seed`, which `make` makes."""
    report = Report(seed)
    try:
        Driver(make(seed), report, plain_of).run(plans)
    except Difference as difference:
        report.difference = str(difference)
    return report


class Driver:
    """`frames`: (fence, plans) in flight; `output`: (fence, handles that emitted) of the last completed one."""

    def __init__(self, scenario, report, plain_of=None):
        self.scenario, self.report, self.rng = scenario, report, scenario.rng
        self.frames, self.output, self.old = [], (0, []), None
        self.now, self.fence = MS, 0
        self.pair = Pair(scenario, plain_of)

    def run(self, plans):
        if not self.pair.loaded:
            self.report.seen["refused load"] += 1
            return
        try:
            self.start()
            idle = 0
            while self.report.plans < plans and idle < 50:
                before = self.report.plans
                self.turn()
                idle = idle + 1 if self.report.plans == before else 0
            self.pair.compare_states()
        except Difference as difference:
            raise Difference(
                f"scenario {self.scenario.seed}\n" + "\n".join([*self.pair.story, str(difference)])
            ) from None

    def start(self):
        self.advance(0)
        if self.scenario.resources:
            self.resources()
        elif self.rng.random() < 0.7:
            self.pair.call("set_resources", 1 << 20, 4)
        if self.scenario.measured:
            for shape in self.scenario.shapes:
                if self.rng.random() < 0.9:
                    self.pair.observe(shape, self.scenario.durations[shape])

    def turn(self):
        """Commands, then plans into the free frame slots, then the oldest frame's completion."""
        self.arrivals()
        self.commands()
        while len(self.frames) < FRAME_SLOTS and self.submit():
            if self.rng.random() < 0.2:
                break
        if self.rng.random() < 0.15:
            self.publish()
        if self.frames:
            self.finish()
        else:
            self.advance(self.rng.randint(0, 20) * MS)
        if self.report.plans % COMPARE_EVERY == 0:
            self.pair.compare_states()

    def advance(self, ns):
        self.now += ns
        self.pair.call("advance_to", self.now)

    def arrivals(self):
        while self.pair.plain.resident_count < self.scenario.residents and self.rng.random() < 0.6:
            spec = random_spec(self.scenario)
            self.pair.call("admit", spec)
            self.report.seen[f"admit {self.pair.error}"] += 1

    def commands(self):
        for name, rate in self.scenario.rates.items():
            if self.rng.random() < rate:
                getattr(self, name)()
                self.report.seen[name] += 1

    def handle(self):
        """Usually of a resident; now and then one that never was."""
        residents = self.pair.plain.residents()
        if not residents or self.rng.random() < 0.05:
            return self.frames[-1][1][1].lanes[0].handle if self.frames else None
        return self.rng.choice(residents).handle

    def cancel(self):
        handle = self.handle()
        if handle is not None:
            self.pair.call("cancel", handle)

    def end(self):
        """The host ends an answer; sometimes one that has just been preempted."""
        handle = self.handle()
        if handle is not None:
            if self.rng.random() < 0.5:
                self.pair.call("preempt", handle)
            self.pair.call("finish", handle)

    def preempt(self):
        handle = self.handle()
        if handle is not None:
            self.pair.call("preempt", handle)

    def offer(self):
        handle = self.handle()
        if handle is not None:
            self.pair.call(
                "offer_proposals", handle, self.rng.choice(("copy",) * 9 + ("learned",)), self.rng.randint(0, 8)
            )

    def policy(self):
        before = self.scenario.policy.acceptance_model
        self.scenario.policy = random_policy(self.rng, not self.scenario.noisy)
        if self.scenario.preferring:
            other = {"acceptance_model": "prefix" if before == "pooled" else "pooled"}
            self.scenario.policy = self.scenario.policy.merged(random_preferences(self.rng) | other)
        self.pair.call("configure_policy", self.scenario.policy)

    def resources(self):
        if self.scenario.resources:
            pages = self.rng.choice((0, 2, 8, 20, 100, 100_000))
            self.pair.call("set_resources", pages, self.rng.choice((0, 1, 1, 2, 5)), self.rng.choice((16, 16, 1)))

    def jump(self):
        self.advance(self.rng.choice((1, 5, 50, 500, 40_000)) * MS)

    def stale(self):
        """A plan from before, or a fence that does not rise."""
        if self.old is not None:
            fence = self.fence + (self.rng.random() < 0.8)
            if self.pair.commit(self.old, fence):
                self.fence = fence
                self.frames.append((fence, self.old))
            self.report.seen[f"late commit {self.pair.error}"] += 1

    def wrong(self):
        """Calls that are refused; nothing may have changed."""
        handle = self.handle()
        if handle is not None:
            self.pair.call("published_output", handle, self.fence + 7)
        if self.frames:
            fence, plans = self.frames[0]
            records, timing, sidecars = self.results(plans[1])
            self.pair.complete(fence, *wrong_completion(self.rng, records, timing), *sidecars)
            assert self.pair.error is not None
        self.pair.compare_states()

    def restart(self):
        self.pair.restart(self.scenario)
        self.old = None
        self.pair.compare_states()

    def victim(self):
        handle = self.pair.call("preemption_victim")
        if handle is not None:
            self.report.seen["page victim"] += 1
            self.pair.call("preempt", handle)

    def observe(self):
        shape = self.rng.choice(self.scenario.shapes)
        self.pair.observe(shape, self.rng.choice((0, self.scenario.durations[shape])))

    def submit(self):
        """One plan and its commit; returns whether it was submitted."""
        plans = self.pair.plan()
        if plans is None:
            return False
        plan = plans[1]
        self.report.plans += 1
        self.cover(plan)
        self.old = plans
        if self.rng.random() < 0.05:
            self.hesitate()
            return False
        if not self.pair.commit(plans, self.fence + 1):
            return False
        self.fence += 1
        self.frames.append((self.fence, plans))
        return True

    def hesitate(self):
        """Something happens between a plan and its commit, if it is committed at all."""
        self.commands()
        if self.rng.random() < 0.5:
            self.advance(self.rng.choice((0, 0, 30, 400)) * MS)
        self.stale()

    def cover(self, plan):
        seen, shape = self.report.seen, plan.shape
        seen[f"kind {shape.kind.value}"] += 1
        seen[f"reason {plan.reason.value}"] += 1
        seen[f"queue depth {plan.queue_depth}"] += 1
        seen[f"score {plan.score_kind.value}"] += 1
        seen[f"prompts {sum(lane.prompt_tokens > 0 for lane in plan.lanes)}"] += 1
        if plan.following is not None:
            seen[f"pair {shape.kind.value} then {plan.following.kind.value}"] += 1
        if shape.kind is GraphKind.SPECULATIVE:
            ragged = shape.target_rows < shape.batch_capacity * min(shape.draft_depth + 1, shape.target_width)
            how = f"ragged {shape.allocation.value}" if ragged else "rectangular"
            seen[f"rounds {how} {self.scenario.verification.split(':')[0]}"] += 1
        for alternative in plan.alternatives:
            seen[f"barred {alternative.barred_by.value}"] += 1

    def results(self, plan):
        extents = (self.scenario.request_slots, self.pair.plain.draft_capacity)
        records = [random_record(self.scenario, plan, lane) for lane in plan.lanes]
        return records, random_timing(self.scenario, plan), random_sidecars(self.scenario, plan, extents)

    def finish(self):
        """The oldest frame completes, and some of its output becomes visible."""
        fence, plans = self.frames.pop(0)
        records, timing, sidecars = self.results(plans[1])
        self.advance(max(timing.device_ns, default=timing.wall_ns))
        tokens = self.pair.complete(fence, records, timing, *sidecars)
        if self.pair.error is not None:
            raise Difference(f"complete was refused: {self.pair.error}")
        self.output = (fence, list(dict.fromkeys(token.handle for token in tokens)))
        for token in tokens:
            if token.finished is not None:
                self.report.seen[f"finished {token.finished.value}"] += 1
        for request_id in list(self.pair.plain.unpublished_snapshots):
            if self.rng.random() < 0.5:
                self.pair.call("published_snapshot", request_id)
        for r in self.pair.plain.residents():
            if r.stage.value == "waiting" and self.rng.random() < 0.3:
                self.pair.call("restored", r.handle)
        if self.rng.random() < 0.9:
            self.publish()

    def publish(self):
        """Most of the output, some of it twice, some a little later."""
        fence, handles = self.output
        for handle in handles:
            if self.rng.random() < 0.95:
                if self.rng.random() < 0.1:
                    self.advance(self.rng.randint(0, MS))
                self.pair.call("published_output", handle, fence)
