"""Any order of commands over every kind of graph keeps the scheduler's invariants (hypothesis, stateful)."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler import (
    Allocation,
    Catalog,
    CompletionRecord,
    ExecutionTiming,
    FinishReason,
    GraphKind,
    GraphShape,
    PolicyConfig,
    Reason,
    RequestScheduler,
    RequestSpec,
)
from scheduler.errors import AdmissionError, StalePlan
from scheduler.records import ImageSpan
from scheduler.reference.service_prices import MEMORY_MAX, MEMORY_MIN
from tests.scheduler.traces.device import Trace, decode, prefill, round_of, state_graph

SLOTS = 5
STATE = tuple(
    state_graph(kind, batch)
    for kind in (GraphKind.INIT, GraphKind.RESTORE, GraphKind.SNAPSHOT, GraphKind.TERMINAL_SNAPSHOT, GraphKind.VISION)
    for batch in (1, 2)
)
PREFILLS = tuple(map(prefill, (64, 256)))
MIXED = tuple(GraphShape(GraphKind.MIXED, 4, prefill_capacity=c) for c in (64, 256))
ROUNDS = (
    *(round_of(batch, 0) for batch in (1, 4)),
    *(round_of(batch, 3, allocation=Allocation.HOST) for batch in (1, 2)),
    round_of(4, 3, 8, Allocation.HOST),
    round_of(4, 3, 6, Allocation.DEVICE),
)
CATALOGS = (
    (*PREFILLS, *map(decode, (1, 4)), *STATE),
    (*PREFILLS, *map(decode, (1, 4)), *MIXED),
    (*PREFILLS, *ROUNDS, *STATE),
)
MS = 1_000_000


class WholeScheduler(RuleBasedStateMachine):
    @initialize(catalog=st.sampled_from(CATALOGS), measured=st.booleans(), extra=st.sampled_from((0.0, 0.05, 5.0)))
    def start(self, catalog, measured, extra):
        self.shapes = catalog
        self.scheduler = RequestScheduler(
            Catalog(catalog), PolicyConfig(), SLOTS, checkpoint_extra_work_fraction=extra, image_feature_rows=2
        )
        self.now, self.fence = 1, 0
        self.frames, self.open, self.cancelled, self.ended, self.emitted = [], {}, set(), [], {}
        self.names, self.to_publish = 0, []
        self.opened = {Reason.TIMING_REFRESH: 0, Reason.ACCEPTANCE_LEARNING: 0}
        self.scheduler.advance_to(1)
        self.scheduler.set_resources(400, 3)
        for i, shape in enumerate(catalog if measured else ()):
            self.scheduler.catalog.observe(shape, (2 + i) * MS, 1)

    @rule(ns=st.one_of(st.integers(0, 10**9), st.integers(0, 10**11)))
    def time_passes(self, ns):
        self.now += ns
        self.scheduler.advance_to(self.now)

    @rule(
        prompt=st.integers(8, 600),
        output=st.integers(1, 40),
        cached=st.integers(0, 7),
        features=st.sampled_from(("plain", "plain", "images", "messages", "grammar", "host_stop", "waiting")),
    )
    def admit(self, prompt, output, cached, features):
        more = {
            "images": {"images": (ImageSpan(1, 3, 2), ImageSpan(4, 6, 2))},
            "messages": {"message_boundaries": (3, 5, 7)},
            "grammar": {"grammar": True},
            "host_stop": {"host_stop": True},
            "waiting": {"restoring": True},
        }.get(features, {})
        name = f"r{self.names}"
        try:
            self.scheduler.admit(RequestSpec(name, prompt, output, prompt + 60, cached_tokens=cached, **more))
        except AdmissionError:
            return
        self.names += 1
        self.open[name] = output
        self.emitted[name] = 0

    def handle(self, name):
        return self.scheduler.handle_of(name)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data):
        name = data.draw(st.sampled_from(sorted(self.open)))
        self.scheduler.cancel(self.handle(name))
        self.end(name, "cancelled")
        self.cancelled.add(name)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), count=st.integers(0, 5))
    def touch(self, data, count):
        """A waiting request's state arrives, or a copy proposal."""
        name = data.draw(st.sampled_from(sorted(self.open)))
        handle = self.handle(name)
        if self.stage(handle) == 8:
            self.scheduler.restored(handle)
        else:
            self.scheduler.offer_proposals(handle, "copy", count)

    @precondition(lambda self: any(s.kind is GraphKind.TERMINAL_SNAPSHOT for s in self.shapes))
    @rule()
    def preempt(self):
        victim = self.scheduler.preemption_victim()
        if victim is not None:
            self.scheduler.preempt(victim)

    @rule(pages=st.integers(0, 400), rows=st.integers(0, 3))
    def resources(self, pages, rows):
        self.scheduler.set_resources(pages, rows)

    @rule(
        alpha=st.sampled_from((0.6, 1.0, 2.0)),
        ages=st.sampled_from((0.0, 0.1, 1e6, 1e300)),
        chunking=st.sampled_from(("measured", "deterministic")),
        ttl=st.sampled_from((10**9, 3 * 10**10)),
    )
    def reconfigure(self, alpha, ages, chunking, ttl):
        self.scheduler.configure_policy(
            PolicyConfig(
                adaptive_verification_alpha=alpha, decode_age_price=ages, prefill_chunking=chunking, estimate_ttl_ns=ttl
            )
        )

    @rule()
    def plan_and_commit(self):
        plan = self.scheduler.plan()
        if plan is None:
            return
        if len(self.frames) == 1:
            allowed = (GraphKind.DECODE, GraphKind.SPECULATIVE)
            assert {plan.shape.kind, self.frames[0][1].shape.kind} <= set(allowed), "drained kinds never queue"
        assert not {lane.request_id for lane in plan.lanes} & self.cancelled, "a plan names a cancelled request"
        before = self.scheduler._state.ledgers
        if plan.reason in self.opened:
            ledger = before.ledger(plan.reason)
            assert ledger.full
            assert (ledger.spent_ns + 5 * MS) * ledger.denominator <= ledger.ordinary_ns
        try:
            self.scheduler.commit(plan, self.fence + 1)
        except StalePlan:
            return
        self.fence += 1
        self.frames.append((self.fence, plan))

    @precondition(lambda self: self.frames)
    @rule(
        device=st.one_of(st.just(0), st.integers(1, 3 * 10**9)),
        fate=st.sampled_from(("fine", "fine", "fine", "fine", "stop", "error")),
        luck=st.integers(0, 3),
    )
    def complete(self, device, fate, luck):
        fence, plan = self.frames.pop(0)
        records = [self.record(plan, lane, fate, luck) for lane in plan.lanes]
        timing = ExecutionTiming((device,) if device else (), device)
        if plan.shape.allocation is Allocation.DEVICE and plan.shape.draft_depth:
            confidence = np.full((2, SLOTS, self.scheduler.draft_capacity), 0.5, np.float32)
            generated = self.scheduler.complete_packed_round(fence, records, timing, confidence)
        else:
            generated = self.scheduler.complete(fence, records, timing)
        if plan.reason in self.opened and device:
            self.opened[plan.reason] = device
        self.to_publish = [(t.handle, fence) for t in generated]
        for token in generated:
            name = token.request_id
            assert name not in self.cancelled, "a cancelled request publishes"
            assert token.index == self.emitted[name]
            self.emitted[name] += 1
            assert self.emitted[name] <= self.open[name]
            if token.finished is not None:
                self.end(name, "finished")
        for lane, record in zip(plan.lanes, records, strict=True):
            if record.error is not None and lane.request_id in self.open:
                self.end(lane.request_id, "failed")

    def record(self, plan, lane, fate, luck):
        if fate == "error":
            return CompletionRecord(lane.handle, error="broken")
        emitted, accepted, offered = lane.ceiling, 0, 0
        if lane.role.value == "decode":
            offered = Trace.rows_of(plan)[lane.handle] - 1
            accepted = min(luck, offered)
            emitted = accepted + 1
        finished = FinishReason.STOP if fate == "stop" and emitted else None
        return CompletionRecord(
            lane.handle,
            lane.prompt_tokens,
            tuple(range(emitted)),
            accepted_tokens=accepted,
            offered_tokens=offered,
            finished=finished,
        )

    @precondition(lambda self: self.to_publish)
    @rule()
    def publish(self):
        for handle, fence in self.to_publish:
            self.scheduler.published_output(handle, fence)
        self.to_publish = []

    @rule()
    def snapshots_are_published(self):
        for name in self.ended:
            self.scheduler.published_snapshot(name[0])

    @rule()
    def a_restored_scheduler_plans_the_same(self):
        twin = RequestScheduler.restore(self.scheduler.checkpoint(), Catalog(self.shapes))
        assert repr(twin.plan()) == repr(self.scheduler.plan())

    def end(self, name, how):
        del self.open[name]
        self.ended.append((name, how))

    def stage(self, handle):
        return self.scheduler._state.slots[handle.slot]["stage"]

    @invariant()
    def each_request_ends_once(self):
        names = [name for name, _ in self.ended]
        assert len(names) == len(set(names))

    @invariant()
    def pending_tokens_and_frames_are_conserved(self):
        slots = self.scheduler._state.slots
        pending, frames = [0] * SLOTS, [0] * SLOTS
        for _, plan in self.frames:
            for lane in plan.lanes:
                pending[lane.handle.slot] += lane.ceiling
                frames[lane.handle.slot] += 1
        assert [int(p) for p in slots["pending"]] == pending
        assert [int(f) for f in slots["in_flight"]] == frames

    @invariant()
    def open_requests_hold_a_slot_each(self):
        assert len(self.open) <= self.scheduler.resident_count <= SLOTS
        for name in self.open:
            assert self.scheduler.is_resident(self.handle(name))

    @invariant()
    def memories_are_positive_and_finite(self):
        state = self.scheduler._state
        for slot in state.slot_of.values():
            for coordinate in ("token_memory", "delivery_memory"):
                memory = state.slots[slot][coordinate]
                assert math.isnan(memory) or MEMORY_MIN <= memory <= max(MEMORY_MAX, 10**10)

    @invariant()
    def probes_spend_no_more_than_their_share_and_one_episode(self):
        for reason, last_ns in self.opened.items():
            ledger = self.scheduler._state.ledgers.ledger(reason)
            assert (ledger.spent_ns - last_ns) * ledger.denominator <= ledger.ordinary_ns


WholeScheduler.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestWholeScheduler = WholeScheduler.TestCase
