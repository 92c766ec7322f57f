"""Any order of commands keeps the scheduler's invariants (hypothesis, stateful)."""

from __future__ import annotations

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler import (
    Catalog,
    CompletionRecord,
    ExecutionTiming,
    FinishReason,
    PolicyConfig,
    RequestScheduler,
    RequestSpec,
)
from scheduler.errors import SlotsFull, StalePlan
from scheduler.reference.service_prices import MEMORY_MAX, MEMORY_MIN
from tests.scheduler.conftest import SHAPES

SLOTS = 4
coefficients = st.one_of(st.just(0.0), st.floats(1e-6, 1e6), st.just(1e300))


class SchedulerMachine(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.scheduler = RequestScheduler(Catalog(SHAPES), PolicyConfig(), SLOTS)
        self.now = 1
        self.fence = 0
        self.saved = None
        self.open = {}
        self.cancelled = set()
        self.finished = []
        self.emitted = {}
        self.to_publish = []
        self.names = 0

    @rule(ns=st.one_of(st.integers(0, 10**9), st.integers(0, 10**11)))
    def time_passes(self, ns):
        self.now += ns
        self.scheduler.advance_to(self.now)

    @rule(prompt=st.integers(1, 900), output=st.integers(1, 20), room=st.integers(1, 30))
    def admit(self, prompt, output, room):
        name = f"r{self.names}"
        try:
            handle = self.scheduler.admit(RequestSpec(name, prompt, output, prompt + room))
        except SlotsFull:
            assert self.scheduler.resident_count == SLOTS
            return
        self.names += 1
        self.open[name] = (handle, min(output, room))
        self.emitted[name] = 0

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data):
        name = data.draw(st.sampled_from(sorted(self.open)))
        self.scheduler.cancel(self.open.pop(name)[0])
        self.cancelled.add(name)
        self.finished.append(name)

    @rule(
        tokens=coefficients,
        deliveries=coefficients,
        ages=coefficients,
        value=coefficients,
        newcomers=st.sampled_from(("deprived", "decode", "phase", "fair_share")),
        ttl=st.sampled_from((1, 10**9, 3 * 10**10)),
    )
    def reconfigure(self, tokens, deliveries, ages, value, newcomers, ttl):
        self.scheduler.configure_policy(
            PolicyConfig(
                token_fairness=tokens,
                delivery_fairness=deliveries,
                decode_age_price=ages,
                output_token_value=value,
                newcomer_memory=newcomers,
                estimate_ttl_ns=ttl,
            )
        )

    @rule()
    def save_a_plan(self):
        self.saved = self.scheduler.plan()

    @precondition(lambda self: self.saved is not None)
    @rule()
    def commit_the_saved_plan(self):
        plan, self.saved = self.saved, None
        try:
            self.scheduler.commit(plan, self.fence + 1)
        except StalePlan:
            return
        self.fence += 1
        named = {lane.request_id for lane in plan.lanes}
        assert not named & self.cancelled, "a plan named a cancelled request"
        assert named <= set(self.open)

    @precondition(lambda self: self.scheduler.in_flight is None)
    @rule()
    def plan_and_commit(self):
        plan = self.scheduler.plan()
        if self.open:
            assert plan is not None, "runnable requests and a full catalog always give a plan"
            self.fence += 1
            self.scheduler.commit(plan, self.fence)

    @precondition(lambda self: self.scheduler.in_flight is not None)
    @rule(
        device=st.one_of(st.just(0), st.integers(1, 10**10)),
        wall=st.integers(0, 10**10),
        fate=st.sampled_from(("fine", "fine", "fine", "stop", "error")),
    )
    def complete(self, device, wall, fate):
        plan = self.scheduler.in_flight
        records = []
        for lane in plan.lanes:
            if fate == "error":
                records.append(CompletionRecord(lane.handle, error="broken"))
                continue
            stop = FinishReason.STOP if fate == "stop" and lane.ceiling else None
            records.append(CompletionRecord(lane.handle, lane.prompt_tokens, (1,) * lane.ceiling, finished=stop))
        generated = self.scheduler.complete(self.fence, records, ExecutionTiming((device,) if device else (), wall))
        self.to_publish = [(t.handle, self.fence) for t in generated]
        for token in generated:
            name = token.request_id
            assert name not in self.cancelled, "a cancelled request published"
            assert token.index == self.emitted[name]
            self.emitted[name] += 1
            assert self.emitted[name] <= self.open[name][1]
            if token.finished is not None:
                del self.open[name]
                self.finished.append(name)
        if fate == "error":
            for lane in plan.lanes:
                if lane.request_id in self.open:
                    del self.open[lane.request_id]
                    self.finished.append(lane.request_id)

    @precondition(lambda self: self.to_publish)
    @rule()
    def publish(self):
        for handle, fence in self.to_publish:
            self.scheduler.published_output(handle, fence)

    @invariant()
    def each_request_ends_once(self):
        assert len(self.finished) == len(set(self.finished))

    @invariant()
    def slots_are_conserved(self):
        in_flight = self.scheduler.in_flight
        zombies = {lane.request_id for lane in in_flight.lanes} & self.cancelled if in_flight else set()
        assert self.scheduler.resident_count == len(self.open) + len(zombies)

    @invariant()
    def memories_are_positive_and_finite(self):
        state = self.scheduler._state
        state.refresh()
        for slot in state.slot_of.values():
            for coordinate in ("token_memory", "delivery_memory"):
                memory = state.slots[slot][coordinate]
                assert math.isnan(memory) or MEMORY_MIN <= memory <= max(MEMORY_MAX, 10**10)

    @invariant()
    def scores_are_finite(self):
        plan = self.scheduler.plan()
        if plan is not None:
            assert abs(plan.score) < float("inf")
            assert all(abs(a.score) < float("inf") for a in plan.alternatives)


SchedulerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestScheduler = SchedulerMachine.TestCase
