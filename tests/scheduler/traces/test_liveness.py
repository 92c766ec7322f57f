"""The liveness statement: how long a ready request can go unserved (specification, "Liveness")."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import GraphKind, PolicyConfig, ScoreKind
from scheduler.reference.lateness import Lateness
from tests.scheduler.differential.scenario import INTERACTIVE
from tests.scheduler.traces.device import MS, Trace, decode, mixed, prefill, synthetic_ms

CAPACITIES = (64, 256, 1024)
SHAPES = (*map(prefill, CAPACITIES), *map(decode, (1, 2, 4)))
ONE_DECODER_MS = synthetic_ms(decode(1))


def own_candidate(remaining):
    """(n / n', H) of a request alone: its best tokens per ms are its normalizer, so the quotient is 1."""
    if remaining <= 0:
        return 1.0, ONE_DECODER_MS
    rates = [(min(c, remaining) / synthetic_ms(prefill(c)), synthetic_ms(prefill(c))) for c in CAPACITIES]
    return 1.0, max(rates)[1]


@settings(max_examples=25)
@given(
    prompts=st.lists(st.integers(1, 5000), min_size=2, max_size=6),
    fairness=st.sampled_from((0.5, 4.0, 16.0)),
    ages=st.sampled_from((0.0, 0.1, 1.0)),
    adaptation=st.sampled_from((20.0, 100.0)),
    output_value=st.sampled_from((1.0, 64.0)),
)
def test_no_ready_request_waits_beyond_the_bound(prompts, fairness, ages, adaptation, output_value):
    policy = PolicyConfig(
        token_fairness=fairness, decode_age_price=ages, adaptation_ms=adaptation, output_token_value=output_value
    )
    trace = Trace(SHAPES, policy=policy)
    left = {}
    for i, prompt in enumerate(prompts):
        trace.admit(f"r{i}", prompt=prompt, output=100_000)
        left[f"r{i}"] = prompt
    unserved = dict.fromkeys(left, 0.0)
    strongest = dict.fromkeys(left, 0.0)
    longest = max(map(synthetic_ms, SHAPES))
    for _ in range(250):
        plan = trace.step()
        assert plan.score_kind is ScoreKind.RATE
        assert plan.log_scale == 0.0
        served = {lane.request_id for lane in plan.lanes}
        for name, remaining in left.items():
            strongest[name] = max(strongest[name], plan.score)
            ratio, horizon = own_candidate(remaining)
            age_prices = ages * len(left)
            bound = adaptation * ratio * (strongest[name] + horizon * age_prices / 2) / fairness + longest
            if name in served:
                unserved[name], strongest[name] = 0.0, 0.0
            else:
                unserved[name] += synthetic_ms(plan.shape)
            assert unserved[name] <= bound, (name, unserved[name], bound)
        if plan.shape.kind is GraphKind.PREFILL:
            left[plan.lanes[0].request_id] -= plan.lanes[0].prompt_tokens


PREFERENCES = (
    {"decode_cadence": "on"},
    {"decode_late_price": 0.002, "decode_gap_weight": 0.7},
    {"decode_late_price": 0.02, "decode_cadence": "on"},
    {"prompt_wait_price": 50.0, "prompt_rank_age_ms": 30.0},
    {"token_budget": 100},
    INTERACTIVE,
)
JOINT = (*SHAPES, *(mixed(batch, capacity, 2) for batch in (2, 4) for capacity in (64, 256)))


class Watched(Trace):
    """Keeps the candidates of each decision, and how long each request has gone unserved."""

    def __init__(self, policy):
        super().__init__(JOINT, policy=policy)
        self.policy, self.left, self.slot_of = policy, {}, {}
        self.unserved_ms, self.decisions = {}, 0

    def bring(self, name, prompt):
        self.left[name], self.unserved_ms[name] = prompt, 0.0
        self.slot_of[name] = self.admit(name, prompt=prompt, output=100_000).slot

    def decide(self):
        """One decision: every eligible candidate of an unserved request explains why it does not win yet."""
        plan = self.scheduler.plan()
        candidates = [c for c in self.scheduler.all_candidates() if c[6] == "none"]
        served = {lane.request_id for lane in plan.lanes}
        for name, unserved in self.unserved_ms.items():
            for label, _, slots, rows, known, _, _, _ in candidates:
                if name not in served and self.slot_of[name] in slots:
                    assert known
                    tokens = rows[slots.index(self.slot_of[name])]
                    bound = self.bound_ms(name, LABELLED[label], tokens, slots, plan.score)
                    assert unserved <= bound, (name, label, unserved, bound)
        assert self.step().shape == plan.shape
        for lane in plan.lanes:
            self.left[lane.request_id] -= lane.prompt_tokens
        for name in self.unserved_ms:
            self.unserved_ms[name] = 0.0 if name in served else self.unserved_ms[name] + synthetic_ms(plan.shape)

    def bound_ms(self, name, shape, tokens, slots, winner):
        """The statement's bound, for this candidate of the request."""
        policy, horizon = self.policy, synthetic_ms(shape)
        ages = {
            self.slot_of[n]: (self.now_ns - self.visible[n][-1]) / MS
            for n, left in self.left.items()
            if not left and self.visible[n]
        }
        answered = set(slots) & set(ages) if shape.kind is not GraphKind.PREFILL else set()
        waiting = policy.decode_age_price * len(ages)
        lateness = max(0.0, -late_relief(policy, ages, answered, horizon))
        pressure = winner + horizon * waiting / 2 + lateness / horizon
        return policy.adaptation_ms * self.normalizer(name) * horizon / tokens * pressure / policy.token_fairness

    def normalizer(self, name):
        left = self.left[name]
        reading = [shape for shape in JOINT if shape.prefill_capacity]
        if left:
            return max(min(shape.prefill_capacity, left) / synthetic_ms(shape) for shape in reading)
        return 1.0 / ONE_DECODER_MS


LABELLED = {shape.label: shape for shape in JOINT}


def late_relief(policy, ages, answered, horizon):
    """decode_late_relief by its formula."""
    if not ages:
        return 0.0
    streams = len(ages)
    generating = [shape for shape in JOINT if shape.kind is not GraphKind.PREFILL]
    sigma = min(synthetic_ms(s) * streams / min(s.batch_capacity, streams) for s in generating)
    beside = [s for s in JOINT if s.kind is GraphKind.MIXED and s.batch_capacity > streams]
    reading = beside or [s for s in JOINT if s.kind is GraphKind.PREFILL]
    least = {
        s.prefill_capacity: min(synthetic_ms(o) for o in reading if o.prefill_capacity >= s.prefill_capacity)
        for s in reading
    }
    knee = max(least, key=lambda c: (math.log(c) - (1 + policy.decode_gap_weight) * math.log(least[c]), -c))
    target = least[knee] + (0.0 if beside else sigma)
    return Lateness(policy.decode_late_price, sigma, target, ages).relief(answered, horizon)


@pytest.mark.parametrize("preferences", PREFERENCES, ids=" ".join)
@settings(max_examples=6)
@given(
    prompts=st.lists(st.integers(1, 3000), min_size=2, max_size=6),
    fairness=st.sampled_from((0.5, 16.0)),
    ages=st.sampled_from((0.0, 0.1)),
)
def test_under_each_preference_a_request_s_own_candidates_win_within_the_bound(preferences, prompts, fairness, ages):
    trace = Watched(PolicyConfig(token_fairness=fairness, decode_age_price=ages).merged(preferences))
    for i, prompt in enumerate(prompts):
        trace.bring(f"r{i}", prompt)
    for _ in range(120):
        trace.decide()
    unserved = {name: ms for name, ms in trace.unserved_ms.items() if not trace.left[name]}
    if preferences in (PREFERENCES[0], INTERACTIVE) and not any(trace.left.values()) and len(prompts) <= 4:
        assert not any(unserved.values())
