"""The plan equals the exhaustive oracle's best choice, tie rules included."""

from __future__ import annotations

import random

import pytest

from scheduler import Catalog, GraphKind, PolicyConfig, ScoreKind
from scheduler.candidates import enumerate_candidates
from scheduler.plans import LedgerBalances
from scheduler.rates import MeasuredGraphs
from scheduler.records import RequestSpec
from scheduler.reference.oracle import OracleRequest, all_choices, best_choice
from scheduler.residents import ProjectedResident, Slots
from scheduler.selection import make_plan, ranked
from scheduler.value import DecisionContext
from tests.scheduler.conftest import decode, prefill

NOW = 10**12


def random_state(rng: random.Random):
    """Up to 6 requests and 6 shapes; round numbers make exact ties frequent."""
    prefills = rng.sample((64, 128, 192, 256, 512), rng.randint(0, 3))
    decodes = rng.sample((1, 2, 3, 4, 8), rng.randint(0 if prefills else 1, 3))
    shapes = [*map(prefill, prefills), *map(decode, decodes)]
    rng.shuffle(shapes)
    catalog = Catalog(shapes)
    for shape in shapes:
        if rng.random() < 0.75:
            catalog.observe(shape, rng.choice((1, 2, 3, 4, 8, 16)) * 1_000_000, NOW - 1)
    slots = Slots(8)
    for i in range(rng.randint(1, 6)):
        prompt = rng.choice((1, 50, 64, 128, 200, 700))
        resident = slots.occupy(slots.free_slot(), RequestSpec(f"r{i}", prompt, 16, 10_000))
        resident.token_memory = rng.choice((None, 0.5, 1.0, 2.0, rng.uniform(0, 30)))
        resident.last_served_tick = rng.choice((0, 1, 2, i))
        if rng.random() < 0.6:
            resident.consumed = prompt
            if rng.random() < 0.8:
                resident.emitted = 1
                resident.last_visible_ns = NOW - rng.choice((0, 5, 10, rng.randint(0, 500))) * 1_000_000
                resident.delivery_memory = rng.choice((None, 8.0, rng.uniform(0, 50)))
    coefficients = {
        "output_token_value": rng.choice((0.0, 1.0, 64.0)),
        "token_fairness": rng.choice((0.0, 1.0, 16.0)),
        "delivery_fairness": rng.choice((0.0, 4.0)),
        "decode_age_price": rng.choice((0.0, 0.1, 5.0)),
    }
    return catalog, slots, PolicyConfig(**coefficients)


def as_oracle(resident):
    return OracleRequest(
        request_id=resident.spec.request_id,
        slot=resident.handle.slot,
        remaining_prompt=resident.remaining_prompt,
        token_memory=resident.token_memory or 0.0,
        delivery_memory=resident.delivery_memory or 0.0,
        age_ms=(NOW - resident.last_visible_ns) / 1e6 if resident.last_visible_ns is not None else None,
        last_served_tick=resident.last_served_tick,
    )


def decide(catalog, slots, policy):
    views = [ProjectedResident(r, r.last_visible_ns, r.delivery_memory) for r in slots.runnable()]
    context = DecisionContext.of(views, policy, MeasuredGraphs.of(catalog, NOW), NOW)
    ranking = ranked(enumerate_candidates(catalog, context))
    winner = ranking[0] if ranking and ranking[0].eligible else None
    return winner, ranking, context


def oracle_of(catalog, slots, policy):
    durations = [catalog.estimate(s, NOW).duration_ns for s in catalog.shapes]
    return catalog.shapes, durations, [as_oracle(r) for r in slots.runnable()], policy


@pytest.mark.parametrize("block", range(8))
def test_the_choice_is_the_best_of_all_legal_cohorts_prefixes_and_shapes(block):
    rng = random.Random(block)
    decided = 0
    for _ in range(500):
        catalog, slots, policy = random_state(rng)
        winner, _, _ = decide(catalog, slots, policy)
        best = best_choice(*oracle_of(catalog, slots, policy))
        if best is None:
            assert winner is None
            continue
        decided += 1
        assert (winner.shape, winner.cohort) == (best.shape, best.request_ids)
        assert winner.score == best.score
        parts = winner.parts
        assert (parts.token_value, parts.delivery_value, parts.age_relief, parts.wait_cost) == best.parts
    assert decided > 300


def test_recorded_parts_satisfy_the_identity_of_the_score():
    rng = random.Random(99)
    for _ in range(300):
        winner, candidates, context = decide(*random_state(rng))
        if winner is None:
            continue
        plan = make_plan(candidates, context, LedgerBalances())
        for score, kind, parts in [
            (plan.score, plan.score_kind, plan.parts),
            *((a.score, a.score_kind, a.parts) for a in plan.alternatives),
        ]:
            assert parts.work == parts.token_value + parts.delivery_value + parts.age_relief + parts.terminal_relief
            if kind is ScoreKind.WORK:
                assert (score, parts.horizon_ms) == (parts.work, None)
            else:
                assert score == parts.work / parts.horizon_ms - parts.wait_cost


def test_runner_ups_begin_with_the_best_of_every_other_kind_and_repeat_nothing():
    rng = random.Random(7)
    seen_other_kind = 0
    for _ in range(300):
        catalog, slots, policy = random_state(rng)
        winner, candidates, context = decide(catalog, slots, policy)
        if winner is None:
            continue
        plan = make_plan(candidates, context, LedgerBalances())
        identities = [(plan.shape, tuple(lane.request_id for lane in plan.lanes))]
        identities += [(a.shape, a.request_ids) for a in plan.alternatives]
        assert len(set(identities)) == len(identities)
        assert [a.rank for a in plan.alternatives] == list(range(1, len(plan.alternatives) + 1))
        others = [c for c in all_choices(*oracle_of(catalog, slots, policy)) if c.shape.kind is not plan.shape.kind]
        if others:
            seen_other_kind += 1
            best = min(others, key=lambda c: c.key)
            assert (plan.alternatives[0].shape, plan.alternatives[0].request_ids) == (best.shape, best.request_ids)
    assert seen_other_kind > 50


@pytest.mark.parametrize(
    "coefficient", ["output_token_value", "token_fairness", "decode_age_price", "delivery_fairness"]
)
def test_huge_coefficients_keep_scores_finite_and_say_their_scale(coefficient):
    rng = random.Random(3)
    for _ in range(100):
        catalog, slots, policy = random_state(rng)
        winner, candidates, context = decide(catalog, slots, policy.merged({coefficient: 1e300}))
        if winner is None:
            continue
        assert all(abs(c.score) < float("inf") for c in candidates)
        assert context.log_scale < 0


def test_a_common_power_of_two_on_all_values_changes_neither_order_nor_ties():
    """Above the free range every coefficient doubles without moving the decision or its scaled score."""
    rng = random.Random(5)
    compared = 0
    for _ in range(200):
        catalog, slots, policy = random_state(rng)
        for r in slots.runnable():
            r.consumed = min(r.consumed, r.spec.prompt_tokens)
        names = ("token_fairness", "delivery_fairness", "decode_age_price", "output_token_value")
        big = {n: getattr(policy, n) * 2.0**200 for n in names}
        bigger = {n: getattr(policy, n) * 2.0**201 for n in names}
        if not any(big.values()):
            continue
        one, _, first = decide(catalog, slots, policy.merged(big))
        two, _, second = decide(catalog, slots, policy.merged(bigger))
        if one is None:
            continue
        compared += 1
        assert (one.shape, one.cohort) == (two.shape, two.cohort)
        assert first.log_scale >= second.log_scale
    assert compared > 100


def test_ordinary_decisions_have_factor_one():
    rng = random.Random(6)
    for _ in range(100):
        catalog, slots, policy = random_state(rng)
        _, _, context = decide(catalog, slots, policy)
        assert context.log_scale == 0.0
        assert context.prompt_value == 1.0


def test_padding_never_wins_even_when_it_was_measured_faster():
    catalog = Catalog([decode(2), decode(4)])
    catalog.observe(decode(2), 9_000_000, NOW)
    catalog.observe(decode(4), 1_000_000, NOW)
    slots = Slots(4)
    for i in range(2):
        r = slots.occupy(i, RequestSpec(f"r{i}", 8, 8, 100))
        r.consumed, r.emitted, r.last_visible_ns = 8, 1, NOW
    winner, candidates, _ = decide(catalog, slots, PolicyConfig())
    assert winner.shape == decode(2)
    assert [c.barred_by.value for c in candidates] == ["none", "pruned"]


def test_a_larger_unmeasured_prefill_is_not_explored_where_a_smaller_one_does_the_same():
    catalog = Catalog([prefill(512), prefill(128), prefill(64)])
    slots = Slots(2)
    slots.occupy(0, RequestSpec("r", 100, 8, 1000))
    winner, candidates, _ = decide(catalog, slots, PolicyConfig())
    assert winner.shape == prefill(128)
    assert {c.shape.prefill_capacity: c.barred_by.value for c in candidates}[512] == "unmeasured"


def test_a_measured_larger_prefill_competes_by_its_cost_there_is_no_smallest_fit_rule():
    catalog = Catalog([prefill(512), prefill(128)])
    catalog.observe(prefill(512), 1_000_000, NOW)
    catalog.observe(prefill(128), 5_000_000, NOW)
    slots = Slots(2)
    slots.occupy(0, RequestSpec("r", 100, 8, 1000))
    winner, _, _ = decide(catalog, slots, PolicyConfig())
    assert winner.shape == prefill(512)


def test_every_kind_of_the_vocabulary_has_a_lower_snake_name():
    assert all(k.value == k.value.lower() and k.value.replace("_", "").isalpha() for k in GraphKind)
