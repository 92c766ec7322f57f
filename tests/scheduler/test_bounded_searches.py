"""Adaptive ragged rounds and longer chains are bounded searches: never above the exhaustive best, and near it."""

from __future__ import annotations

import pytest

from scheduler.reference.oracle_bounds import chain_choices, ragged_allocations, ragged_cohorts, sequence_rate
from tests.scheduler.oracle_fast import fast_scheduler
from tests.scheduler.oracle_states import Dice, chain_state, preferring, ragged_state

STATES = 400


def state_of(family, seed, dyadic):
    """One of the family's states; every other one under preferences beyond the specification."""
    dice = Dice(seed, dyadic)
    state = family(dice)
    return preferring(dice, state) if seed % 2 else state


@pytest.mark.parametrize("dyadic", [True, False])
def test_an_adaptive_ragged_round_is_a_cohort_of_the_exhaustive_enumeration_and_mostly_its_best(dyadic):
    found_best = decided = 0
    for seed in range(STATES):
        state = state_of(ragged_state, seed, dyadic)
        plan = fast_scheduler(state).plan()
        cohorts = {choice.slots: choice.score for choice in ragged_cohorts(state, 0)}
        assert (plan is None) == (not cohorts)
        if plan is not None:
            decided += 1
            chosen = tuple(lane.handle.slot for lane in plan.lanes)
            assert plan.score == pytest.approx(cohorts[chosen], rel=1e-9, abs=1e-9), seed
            found_best += plan.score >= max(cohorts.values()) - 1e-9
    assert decided > STATES / 2
    assert found_best > 0.9 * decided


def test_no_division_of_rows_beats_the_exhaustive_best_that_the_loss_is_measured_against():
    for seed in range(STATES // 4):
        state = ragged_state(Dice(seed, dyadic=True))
        causal = [choice.score for choice in ragged_cohorts(state, 0)]
        free = [choice.score for choice in ragged_allocations(state, 0)]
        assert max(causal, default=0.0) <= max(free, default=0.0)


@pytest.mark.parametrize("dyadic", [True, False])
def test_a_longer_chain_serves_the_cohort_with_the_highest_index(dyadic):
    compared = 0
    for seed in range(STATES):
        state = state_of(chain_state, seed, dyadic)
        best = max((choice.score for choice in chain_choices(state, 0)), default=None)
        scheduler = fast_scheduler(state)
        scheduler.plan()
        label = state.shapes[0].label
        chains = [c for c in scheduler.all_candidates() if c[0] == label and c[1] is None and not is_alone(state, c)]
        if best is not None:
            compared += 1
            assert chains[-1][5] == pytest.approx(best, rel=1e-9, abs=1e-9), seed
            assert sequence_rate(state, 0, chains[-1][2]) <= sequence_rate(state, 0, tuple(range(8))), seed
    assert compared > STATES / 4


def is_alone(state, candidate) -> bool:
    """The candidate retires terminal rows; it is no chain."""
    terminal = {request.slot for request in state.requests if request.stage == "terminal"}
    return bool(terminal & set(candidate[2]))
