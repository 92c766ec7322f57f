"""The plan equals the exhaustive oracle's best choice with its ties, on the fast path and in the plain planner."""

from __future__ import annotations

import pytest

from scheduler.plans import ScheduledPlan
from scheduler.reference.oracle import OracleChoice, OracleState, is_ragged
from scheduler.reference.oracle_choices import all_choices
from scheduler.reference.oracle_choosing import best_choice
from tests.scheduler.oracle_fast import fast_plan
from tests.scheduler.oracle_states import (
    Dice,
    fixed_ragged_state,
    mixed_state,
    pair_state,
    preferring,
    reference_plan,
    separate_state,
    several_prompts_state,
)

FAMILIES = {
    "separate": separate_state,
    "mixed": mixed_state,
    "fixed ragged": fixed_ragged_state,
    "pairs": pair_state,
    "several prompts": several_prompts_state,
}
PLANNERS = {"fast": fast_plan, "plain": reference_plan}
STATES = 500


def state_of(family: str, seed: int, dyadic: bool) -> OracleState:
    """One of the family's states; every other one under preferences beyond the specification."""
    dice = Dice(seed, dyadic)
    state = FAMILIES[family](dice)
    return preferring(dice, state) if seed % 2 else state


def is_bounded(state: OracleState, plan: ScheduledPlan | None) -> bool:
    """The choice came of the bounded search, which the exact comparison leaves out."""
    return plan is not None and is_ragged(plan.shape) and not state.fixed_width


def assert_same(state: OracleState, plan: ScheduledPlan | None, best: OracleChoice | None, seed: int) -> None:
    """The plan is the oracle's choice, to the last bit of its score's parts."""
    if best is None:
        assert plan is None, seed
        return
    found = plan.shape, plan.following, tuple(lane.handle.slot for lane in plan.lanes), plan.score
    following = state.shapes[best.following] if best.following >= 0 else None
    assert found == (state.shapes[best.position], following, best.slots, best.score), seed
    p = plan.parts
    parts = p.token_value, p.delivery_value, p.age_relief, p.terminal_relief, p.wait_cost
    assert (*parts, p.prompt_wait_relief, p.decode_late_relief) == best.parts, seed


@pytest.mark.parametrize("family", FAMILIES)
def test_the_choice_is_the_best_of_all_legal_cohorts_with_its_ties(family):
    """Dyadic values: sums are exact in any order, and ties are frequent."""
    compared = 0
    for seed in range(STATES):
        state = state_of(family, seed, dyadic=True)
        best = best_choice(state, all_choices(state))
        plans = [planner(state) for planner in PLANNERS.values()]
        if not any(is_bounded(state, plan) for plan in plans):
            compared += best is not None
            for plan in plans:
                assert_same(state, plan, best, seed)
    assert compared > STATES / 2


@pytest.mark.parametrize("family", FAMILIES)
def test_no_legal_choice_scores_higher_with_any_values(family):
    compared = 0
    for seed in range(STATES // 2):
        state = state_of(family, seed, dyadic=False)
        best, plan = best_choice(state, all_choices(state)), fast_plan(state)
        if best is None or is_bounded(state, plan):
            continue
        compared += 1
        assert plan.score == pytest.approx(best.score, rel=1e-12, abs=1e-12), seed
        assert plan.shape == state.shapes[best.position], seed
    assert compared > STATES / 4


def test_the_states_reach_every_kind_that_the_oracle_enumerates():
    reached = set()
    for family in FAMILIES.values():
        for seed in range(STATES // 2):
            plan = reference_plan(family(Dice(seed, dyadic=True)))
            if plan is not None:
                reached.add((plan.shape.kind.value, plan.following.kind.value if plan.following else None))
    followers = {"prefill", "decode", "speculative", "mixed", None}
    assert {(kind, None) for kind in ("prefill", "scored_prefill", "decode", "mixed", "terminal_snapshot")} <= reached
    assert {("snapshot", follower) for follower in followers} <= reached
    assert {("init", "prefill"), ("init", "mixed"), ("restore", "prefill"), ("restore", "mixed")} <= reached
