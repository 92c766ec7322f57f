from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import InvalidObservation
from scheduler.reference.service_prices import MEMORY_MAX, MEMORY_MIN, newcomer_memory, updated_memory

memories = st.floats(MEMORY_MIN, MEMORY_MAX)
intervals = st.floats(1e-6, 3_600_000.0)
served = st.integers(0, 2**31)
positive = st.floats(min_value=5e-324, max_value=1.7e308)


@given(memories, intervals, served, positive, positive)
def test_the_memory_stays_positive_and_finite_for_every_valid_input(w, delta, s, n, tau):
    assert MEMORY_MIN <= updated_memory(w, delta, s, n, tau) <= MEMORY_MAX


@given(st.floats(1e-3, 1e3), st.floats(0.1, 1e3), st.floats(1e-2, 1e2), st.floats(1.0, 1e4))
def test_an_unserved_memory_grows_linearly(w, delta, n, tau):
    once = updated_memory(w, delta, 0, n, tau) - w
    twice = updated_memory(w, 2 * delta, 0, n, tau) - w
    assert twice == pytest.approx(2 * once, rel=1e-6, abs=1e-9)
    assert once == pytest.approx(delta / (n * tau), rel=1e-6, abs=1e-9)


@given(st.floats(1e-3, 1e3), st.floats(1.0, 1e3), st.floats(1e-2, 1e2))
def test_the_update_is_continuous_as_service_vanishes(w, delta, n):
    # A very long adaptation time makes one unit a vanishing amount of service.
    tau = 1e12
    none, one = updated_memory(w, delta, 0, n, tau), updated_memory(w, delta, 1, n, tau)
    assert one == pytest.approx(none, rel=1e-6)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e2), st.floats(1e-2, 10))
def test_a_constant_rate_makes_the_memory_converge_to_its_inverse(w, rate, n):
    per_step = 50
    delta = per_step / rate
    for _ in range(2_000):
        w = updated_memory(w, delta, per_step, n, 100.0)
    # k = 50/(n*100) per step; 2,000 steps leave exp(-1000/n), at most exp(-100), of the start.
    assert w == pytest.approx(1 / rate, rel=1e-6)


@given(st.floats(1e-3, 1e3), st.floats(0.1, 1e3), st.integers(1, 64), st.integers(1, 16), st.floats(1e-2, 1e2))
def test_an_evenly_served_interval_equals_the_same_interval_cut_in_pieces(w, delta, unit, pieces, n):
    whole = updated_memory(w, delta * pieces, unit * pieces, n, 100.0)
    cut = w
    for _ in range(pieces):
        cut = updated_memory(cut, delta, unit, n, 100.0)
    assert cut == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize(
    "bad",
    [
        {"interval_ms": 0.0},
        {"interval_ms": 3_600_001.0},
        {"interval_ms": math.nan},
        {"served": -1},
        {"served": 2**31 + 1},
        {"normalizer": 0.0},
        {"normalizer": math.inf},
        {"adaptation_ms": 0.0},
        {"adaptation_ms": math.nan},
    ],
)
def test_inputs_outside_their_range_are_refused(bad):
    good = {"interval_ms": 1.0, "served": 1, "normalizer": 1.0, "adaptation_ms": 100.0}
    assert updated_memory(1.0, **good) > 0
    with pytest.raises(InvalidObservation):
        updated_memory(1.0, **(good | bad))


def newcomer(rule, **changes):
    known = {"phase_rate": 32.0, "decode_rate": 0.125, "residents": 3, "largest_served": 20.0}
    return newcomer_memory(rule, **(known | changes))


def test_newcomer_rules_start_with_what_they_say():
    assert newcomer("decode") == 8.0
    assert newcomer("phase") == 1 / 32
    assert newcomer("fair_share") == 4 / 32
    assert newcomer("deprived") == 20.0
    assert newcomer("deprived", largest_served=0.0) == 8.0


def test_overload_cannot_ratchet_deprived_newcomers_up():
    assert newcomer("deprived", largest_served=1e9) == 4 / 0.125


@pytest.mark.parametrize("rule", ["deprived", "decode", "phase", "fair_share"])
def test_without_a_measured_decode_graph_every_rule_acts_as_phase(rule):
    assert newcomer(rule, decode_rate=None) == 1 / 32
    assert newcomer(rule, decode_rate=None, phase_rate=None) is None
