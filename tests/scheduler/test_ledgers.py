"""Exploration ledgers (S7, S8): exact funding, debts, and their invariants."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.ledgers import Ledgers
from scheduler.plans import LedgerBalances, Reason

MS = 1_000_000
PROBES = {Reason.TIMING_REFRESH: (2, 998), Reason.ACCEPTANCE_LEARNING: (1, 99)}


@pytest.mark.parametrize(("reason", "needed_ms"), [(Reason.TIMING_REFRESH, 2495), (Reason.ACCEPTANCE_LEARNING, 495)])
def test_the_first_episode_needs_exactly_so_much_ordinary_execution(reason, needed_ms):
    ledgers = Ledgers()
    ledgers.earn(needed_ms * MS - 1)
    assert not ledgers.may_open(reason)
    assert ledgers.credit_ns(reason) == 5 * MS - 1
    ledgers.earn(1)
    assert ledgers.may_open(reason)
    assert ledgers.credit_ns(reason) == 5 * MS


def test_credit_is_capped_at_five_milliseconds():
    ledgers = Ledgers()
    ledgers.earn(3_600_000 * MS)
    assert ledgers.timing.credit_ns == 5 * MS
    assert ledgers.acceptance.credit_ns == 5 * MS
    assert ledgers.balances().timing_ordinary_ms == 3_600_000


def test_an_episode_is_charged_once_to_its_own_ledger_and_may_leave_a_debt():
    ledgers = Ledgers()
    ledgers.earn(2495 * MS)
    ledgers.open(Reason.ACCEPTANCE_LEARNING, fence=7)
    assert not ledgers.may_open(Reason.TIMING_REFRESH)
    ledgers.close(6, 100 * MS)
    assert ledgers.acceptance.spent_ns == 0
    ledgers.close(7, 12 * MS)
    ledgers.close(7, 12 * MS)
    assert ledgers.acceptance.credit_ns == -7 * MS
    assert ledgers.timing.credit_ns == 5 * MS
    assert ledgers.may_open(Reason.TIMING_REFRESH)
    assert not ledgers.may_open(Reason.ACCEPTANCE_LEARNING)


def test_ordinary_plans_open_no_episode_and_have_no_credit():
    ledgers = Ledgers()
    for reason in (Reason.ORDINARY, Reason.SOLO_PREFILL, Reason.DISCOVERY):
        assert ledgers.may_open(reason)
        ledgers.open(reason, fence=1)
        assert ledgers.episode is None
        assert ledgers.credit_ns(reason) == 0


def test_idle_time_discards_credit_and_preserves_debt():
    ledgers = Ledgers()
    ledgers.earn(495 * MS)
    ledgers.idle()
    assert ledgers.acceptance.credit_ns == 0
    ledgers.earn(495 * MS)
    ledgers.open(Reason.ACCEPTANCE_LEARNING, 1)
    ledgers.close(1, 8 * MS)
    ledgers.idle()
    assert ledgers.acceptance.credit_ns == -3 * MS
    assert ledgers.timing.credit_ns < MS


def test_discovery_has_a_total_of_its_own():
    ledgers = Ledgers()
    ledgers.discover(3 * MS)
    assert ledgers.balances() == LedgerBalances(discovery_ms=3.0)


def test_credit_below_a_nanosecond_is_rounded_down_also_in_debt():
    ledgers = Ledgers()
    ledgers.earn(1)
    assert ledgers.timing.credit_ns == 0
    ledgers.timing.charge(1)
    assert ledgers.timing.credit_ns == -1


step = st.one_of(
    st.tuples(st.just("earn"), st.integers(0, 4_000 * MS)),
    st.tuples(st.just("idle"), st.just(0)),
    st.tuples(st.just("open"), st.sampled_from(list(PROBES))),
    st.tuples(st.just("close"), st.integers(0, 40 * MS)),
)


def check_totals(ledgers, last):
    """At every instant: spent <= rate * ordinary + the last or open episode's duration."""
    for reason, (numerator, denominator) in PROBES.items():
        ledger = ledgers.ledger(reason)
        earned = Fraction(numerator, denominator) * ledger.ordinary_ns
        assert ledger.spent_ns <= earned + last[reason]
        assert ledger.credit_ns <= 5 * MS
        assert ledger.credit_ns <= earned - ledger.spent_ns


@given(steps=st.lists(step, max_size=60))
def test_spending_stays_within_the_share_and_one_overrun(steps):
    ledgers, last = Ledgers(), dict.fromkeys(PROBES, 0)
    for fence, (name, value) in enumerate(steps, start=1):
        if name == "earn":
            ledgers.earn(value)
        elif name == "idle":
            ledgers.idle()
        elif name == "open" and ledgers.may_open(value):
            ledger, (numerator, denominator) = ledgers.ledger(value), PROBES[value]
            assert ledger.spent_ns + 5 * MS <= Fraction(numerator, denominator) * ledger.ordinary_ns
            ledgers.open(value, fence)
        elif name == "close" and ledgers.episode is not None:
            last[ledgers.episode.reason] = value
            ledgers.close(ledgers.episode.fence, value)
        check_totals(ledgers, last)
