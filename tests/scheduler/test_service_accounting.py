"""Memories after whole frames, against the update written out by hand."""

from __future__ import annotations

import math

import pytest

from scheduler import PolicyConfig
from tests.scheduler.conftest import decode, duration_of, prefill

TAU = 100.0


def memory(harness, name, coordinate="token_memory"):
    state = harness.scheduler._state
    state.refresh()
    return float(state.slots[state.slot_of[name]][coordinate])


def by_hand(w, delta, s, n):
    if s == 0:
        return w + delta / (n * TAU)
    k = s / (n * TAU)
    return w * math.exp(-k) + (delta / s) * (1 - math.exp(-k))


def test_each_phase_is_charged_against_its_own_reference_rate(harness):
    h = harness(PolicyConfig(newcomer_memory="decode"), measured=True)
    h.admit("served", prompt=1_000, output=9)
    h.admit("waits", prompt=100, output=9)
    before = {name: memory(h, name) for name in ("served", "waits")}
    assert before["served"] == 8.0, "a lone decoder takes 8 ms a token"
    plan = h.scheduler.plan()
    delta = duration_of(plan.shape) / 1e6
    # Best prompt tokens per ms: 512 in 10 ms for the long prompt; 100 in 4 ms (capacity 128) for the short one.
    rates = {"served": 512 / 10, "waits": 100 / 4}
    h.step()
    served = plan.lanes[0].request_id
    for name, rate in rates.items():
        s = plan.lanes[0].prompt_tokens + plan.lanes[0].ceiling if name == served else 0
        assert memory(h, name) == pytest.approx(by_hand(before[name], delta, s, rate), rel=1e-12)


def test_publication_replaces_the_intervals_zero_deliveries_by_one(harness):
    h = harness(measured=True, shapes=(prefill(64), decode(1)))
    h.admit("a", output=50)
    h.step()
    before = memory(h, "a", "delivery_memory")
    h.step(publish=False)
    delta = duration_of(decode(1)) / 1e6
    assert memory(h, "a", "delivery_memory") == pytest.approx(by_hand(before, delta, 0, 1 / delta), rel=1e-12)
    h.scheduler.published_output(h.scheduler.handle_of("a"), h.fence)
    assert memory(h, "a", "delivery_memory") == pytest.approx(by_hand(before, delta, 1, 1 / delta), rel=1e-12)


def test_a_request_admitted_after_dispatch_takes_no_part_in_the_interval(harness):
    h = harness(measured=True)
    h.admit("a", prompt=512, output=9)
    plan = h.scheduler.plan()
    h.fence += 1
    h.scheduler.commit(plan, h.fence)
    h.admit("late")
    before = memory(h, "late")
    h.complete(plan)
    assert memory(h, "late") == before


def test_a_memory_missing_at_admission_starts_with_the_first_measurement(harness):
    h = harness(shapes=(prefill(64), prefill(128), decode(1)))
    h.admit("a", prompt=200, output=9)
    h.admit("b", prompt=200, output=9)
    assert math.isnan(memory(h, "a"))
    assert h.scheduler.plan().lanes[0].token_price == 0.0
    h.step()
    assert memory(h, "b") == pytest.approx(1 / (128 / 4.0))
