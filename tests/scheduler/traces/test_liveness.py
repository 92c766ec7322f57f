"""The liveness statement: how long a ready request can go unserved (specification, "Liveness")."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import GraphKind, PolicyConfig, ScoreKind
from tests.scheduler.traces.device import Trace, decode, prefill, synthetic_ms

CAPACITIES = (64, 256, 1024)
SHAPES = (*map(prefill, CAPACITIES), *map(decode, (1, 2, 4)))
ONE_DECODER_MS = synthetic_ms(decode(1))


def own_candidate(remaining):
    """(n / n', H) of a request alone: its best tokens per ms are its normalizer, so the quotient is 1."""
    if remaining <= 0:
        return 1.0, ONE_DECODER_MS
    rates = [(min(c, remaining) / synthetic_ms(prefill(c)), synthetic_ms(prefill(c))) for c in CAPACITIES]
    return 1.0, max(rates)[1]


@settings(max_examples=40)
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
