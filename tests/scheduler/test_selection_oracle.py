"""The plan equals the exhaustive oracle's best choice, tie rules included."""

from __future__ import annotations

import pytest

from scheduler.plans import ScheduledPlan
from scheduler.reference.oracle import OracleState, best_choice, is_ragged
from scheduler.reference.oracle_choices import all_choices
from tests.scheduler.oracle_states import (
    Dice,
    fixed_ragged_state,
    mixed_state,
    pair_state,
    reference_plan,
    separate_state,
)

FAMILIES = {
    "separate": separate_state,
    "mixed": mixed_state,
    "fixed ragged": fixed_ragged_state,
    "pairs": pair_state,
}
STATES = 400


def is_bounded(state: OracleState, plan: ScheduledPlan | None) -> bool:
    """The choice came of the bounded search, which the exact comparison leaves out."""
    return plan is not None and is_ragged(plan.shape) and not state.fixed_width


@pytest.mark.parametrize("family", FAMILIES)
def test_the_choice_is_the_best_of_all_legal_cohorts_with_its_ties(family):
    decided = 0
    for seed in range(STATES):
        state = FAMILIES[family](Dice(seed, dyadic=True))
        best, plan = best_choice(state, all_choices(state)), reference_plan(state)
        if is_bounded(state, plan):
            continue
        if best is None:
            assert plan is None
            continue
        decided += 1
        found = plan.shape, plan.following, tuple(lane.handle.slot for lane in plan.lanes), plan.score
        following = state.shapes[best.following] if best.following >= 0 else None
        assert found == (state.shapes[best.position], following, best.slots, best.score), seed
        p = plan.parts
        assert (p.token_value, p.delivery_value, p.age_relief, p.terminal_relief, p.wait_cost) == best.parts, seed
    assert decided > STATES / 2
