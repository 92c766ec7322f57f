"""Draws depend on seed, index and logits only; every processor agrees with its obvious twin and keeps its promise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.device import InvalidRequest, SamplingParameters
from gpu.reference import sampling as twin
from gpu.reference.sampling import sample_one
from gpu.sampling import Purpose, SamplingTable, VerifyLane, uniform, uniforms, verify_round
from gpu.sampling.processors import likeliest, target_distribution, weighted_position

NO_DRAFTS = np.empty(0, dtype=np.int64)


def sample(rows, parameters, indices, prompt=(), output=()):
    """One plain token per row of logits, or None."""
    table = SamplingTable(len(rows), rows.shape[1])
    for slot, chosen in enumerate(parameters):
        table.open(slot, chosen, prompt, output)
    lanes = [VerifyLane(slot, slot, NO_DRAFTS, None, index) for slot, index in enumerate(indices)]
    return tuple(outcome.emitted[0] if outcome.finite else None for outcome in verify_round(rows, lanes, table))


def one(logits, parameters, index=0, prompt=(), output=()):
    """The token after `prompt` and `output`, or None."""
    return sample(np.asarray(logits, dtype=np.float32)[None], [parameters], [index], prompt, output)[0]


def kept(logits, **options):
    """Ids and normalised probabilities that a lane draws from."""
    row = np.asarray(logits, dtype=np.float32)
    found = target_distribution(row, float(row.max()), SamplingParameters(**options))
    ids = np.arange(len(row)) if found.ids is None else found.ids
    return dict(zip(ids.tolist(), (found.weights / found.weights.sum()).tolist(), strict=True))


def random_logits(vocab, spread, masked=False):
    generator = np.random.default_rng(vocab)
    logits = (generator.normal(size=vocab) * spread).astype(np.float32)
    if masked:
        logits[generator.integers(0, vocab, size=vocab // 2)] = -np.inf
        logits[vocab // 2] = 1.0
    return logits


def neighbours(parameters):
    """The parameters moved by what float32 rounding may move."""
    for top_p in (parameters.top_p - 1e-5, parameters.top_p + 1e-5):
        for min_p in (parameters.min_p * (1 - 1e-5), parameters.min_p * (1 + 1e-5)):
            yield SamplingParameters(
                parameters.temperature,
                min(max(top_p, 0.0), 1.0) if parameters.top_p < 1 else 1.0,
                parameters.seed,
                parameters.top_k,
                min_p,
            )


@settings(max_examples=250)
@given(
    vocab=st.integers(1, 700),
    temperature=st.sampled_from([0.0, 1e-300, 0.01, 0.7, 1.0, 2.0, 100.0]),
    top_p=st.sampled_from([0.0, 1e-9, 0.1, 0.5, 0.9, 0.999, 1.0]),
    top_k=st.sampled_from([0, 1, 2, 40, 1000]),
    min_p=st.sampled_from([0.0, 0.001, 0.1, 1.0]),
    seed=st.integers(-(2**63), 2**64),
    index=st.integers(0, 10_000),
    spread=st.sampled_from([0.0, 0.5, 5.0, 50.0]),
    masked=st.booleans(),
)
def test_a_draw_is_that_of_the_reference(vocab, temperature, top_p, top_k, min_p, seed, index, spread, masked):
    logits = random_logits(vocab, spread, masked)
    parameters = SamplingParameters(temperature, top_p, seed, top_k, min_p)
    draw = twin.uniform(seed, index)
    actual = one(logits, parameters, index)
    if actual != sample_one(logits, parameters, draw):  # float32 sums may part at the edge of a token's interval
        assert actual in {
            sample_one(logits, moved, min(max(draw + by, 0), 1))
            for moved in neighbours(parameters)
            for by in (-1e-5, 0, 1e-5)
        }
    assert logits[actual] > -np.inf


@given(
    vocab=st.integers(2, 60),
    repetition=st.sampled_from([1.0, 1.3, 0.5]),
    presence=st.sampled_from([0.0, 1.5, -2.0]),
    frequency=st.sampled_from([0.0, 0.25, -1.0]),
    biased=st.lists(st.tuples(st.integers(0, 1), st.sampled_from([-100.0, -1.0, 5.0])), max_size=3),
    prompt=st.lists(st.integers(0, 59), max_size=20),
    output=st.lists(st.integers(0, 59), max_size=20),
)
def test_penalties_and_bias_are_those_of_the_reference_to_the_bit(
    vocab, repetition, presence, frequency, biased, prompt, output
):
    prompt, output = [token % vocab for token in prompt], [token % vocab for token in output]
    logits = random_logits(vocab, 3.0, masked=True)
    parameters = SamplingParameters(
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=tuple(biased),
    )
    table = SamplingTable(1, vocab)
    table.open(0, parameters, prompt, output[:5])
    table.record(0, output[5:])
    before = logits.copy()
    adjusted = table.of(0).adjusted(logits)
    np.testing.assert_array_equal(adjusted, twin.adjusted_logits(logits, parameters, prompt, output))
    np.testing.assert_array_equal(logits, before)


def test_each_penalty_sees_the_tokens_that_it_should():
    logits = np.array([2.0, -2.0, 1.0, 1.0], dtype=np.float32)

    def adjusted(**options):
        table = SamplingTable(1, 4)
        table.open(0, SamplingParameters(**options), [0, 1], [2, 2])
        return table.of(0).adjusted(logits).tolist()

    assert adjusted(repetition_penalty=2.0) == [1.0, -4.0, 0.5, 1.0]
    assert adjusted(presence_penalty=0.5) == [2.0, -2.0, 0.5, 1.0]
    assert adjusted(frequency_penalty=0.5) == [2.0, -2.0, 0.0, 1.0]
    assert adjusted(logit_bias=((3, -100.0), (3, 1.0))) == [2.0, -2.0, 1.0, -98.0]


def test_a_bias_of_minus_100_bans_and_of_100_forces_a_token():
    logits = random_logits(50, 4.0)
    best = int(logits.argmax())
    assert one(logits, SamplingParameters(0.0, logit_bias=((best, -100.0),))) == int(np.argsort(logits)[-2])
    drawn = {one(logits, SamplingParameters(1.0, logit_bias=((best, -100.0),)), index) for index in range(300)}
    assert best not in drawn
    assert {one(logits, SamplingParameters(1.0, logit_bias=((7, 100.0),)), index) for index in range(50)} == {7}


@pytest.mark.parametrize("bias", [((9, 1.0),), ((-1, 1.0),), ((0, np.nan),), ((0, np.inf),)])
def test_a_bias_that_cannot_be_applied_is_refused(bias):
    with pytest.raises(InvalidRequest, match="logit_bias"):
        SamplingTable(1, 9).open(0, SamplingParameters(logit_bias=bias), [])


@given(vocab=st.integers(1, 1500), count=st.integers(1, 1500), levels=st.sampled_from([1, 2, 5, 10_000]))
def test_top_k_keeps_exactly_k_and_the_lower_ids_among_equals(vocab, count, levels):
    logits = np.random.default_rng(vocab).integers(0, levels, size=vocab).astype(np.float32)
    expected = sorted(range(vocab), key=lambda token: (-logits[token], token))[:count]
    assert likeliest(logits, count).tolist() == expected
    assert sorted(kept(logits, top_k=count)) == sorted(expected)


@given(vocab=st.integers(1, 900), top_p=st.floats(0.0, 1.0), spread=st.sampled_from([0.3, 3.0, 30.0]))
def test_top_p_keeps_the_fewest_that_reach_it(vocab, top_p, spread):
    logits = random_logits(vocab, spread)
    shares = twin.probabilities(logits, SamplingParameters())
    inside = kept(logits, top_p=top_p)
    reached = sum(shares[token] for token in inside)
    smallest = min(shares[token] for token in inside)
    assert reached >= top_p - 1e-5
    assert reached - smallest < top_p + 1e-5
    assert smallest >= max((share for token, share in enumerate(shares) if token not in inside), default=0.0)


def test_top_p_keeps_all_that_equal_the_last():
    assert sorted(kept([0.0, 0.0, 0.0, -9.0], top_p=0.4)) == [0, 1, 2]


def test_top_p_counts_what_top_k_left():
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    assert sorted(kept(logits, top_p=0.69)) == [0, 1]
    assert sorted(kept(logits, top_p=0.55, top_k=2)) == [0]  # 0.4 of 0.7


@given(vocab=st.integers(1, 300), min_p=st.floats(0.001, 1.0), temperature=st.sampled_from([0.5, 1.0, 2.0]))
def test_min_p_is_a_share_of_the_likeliest_after_temperature(vocab, min_p, temperature):
    logits = random_logits(vocab, 3.0)
    shares = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    inside = kept(logits, min_p=min_p, temperature=temperature)
    assert set(inside) >= set(np.flatnonzero(shares >= min_p * (1 + 1e-5)).tolist()) | {int(logits.argmax())}
    assert set(inside) <= set(np.flatnonzero(shares >= min_p * (1 - 1e-5)).tolist())


@given(size=st.integers(1, 6000), share=st.floats(0.0, 1.0), empty=st.integers(0, 5000))
def test_a_position_of_weight_zero_is_never_drawn(size, share, empty):
    weights = np.random.default_rng(size).random(size).astype(np.float32)
    weights[:empty] = 0.0
    weights[size // 2 :: 3] = 0.0
    weights[size // 3] = 1e-30
    position = weighted_position(weights, share)
    assert weights[position] > 0
    target = share * float(weights.sum(dtype=np.float64))
    before, after = weights[:position].sum(dtype=np.float64), weights[: position + 1].sum(dtype=np.float64)
    assert before - 1e-3 <= target <= after + 1e-3


def test_greedy_takes_the_first_of_the_largest():
    assert one([0.0, 3.0, 3.0, -1.0], SamplingParameters(temperature=0.0)) == 1


def test_a_token_does_not_depend_on_its_neighbours():
    logits = np.random.default_rng(0).normal(size=(6, 1000)).astype(np.float32) * 3
    parameters = [SamplingParameters(0.8, 0.9, seed, top_k=70 * seed) for seed in range(6)]
    indices = [4, 9, 0, 1, 2, 3]
    together = sample(logits, parameters, indices)
    assert together == tuple(one(logits[row], parameters[row], indices[row]) for row in range(6))


def test_numbers_are_philox_4x32_10():
    known = 0x6627E8D5, 0xE169C58D  # random123's known answer for key 0 and counter 0
    assert uniform(0, 0) == (known[0] // 32 * 2**26 + known[1] // 64) / 2**53
    cases = [
        (seed, index, purpose)
        for seed in (-1, 0, 1, 2**64 + 5, 2**63)
        for index in (0, 1, 2, 2**31, 2**32, 2**40 + 3)
        for purpose in Purpose
    ]
    numbers = uniforms(*(list(column) for column in zip(*cases, strict=True)))
    assert numbers.tolist() == [twin.uniform(*case) for case in cases]
    assert len(set(numbers)) == len(cases)
    assert all(0 <= number < 1 for number in numbers)


@pytest.mark.parametrize("top_p", [1.0, 0.6])
def test_draws_follow_the_distribution(top_p):
    probabilities = np.array([0.05, 0.4, 0.25, 0.1, 0.2])
    logits = np.tile(np.log(probabilities).astype(np.float32), (4000, 1))
    draws = sample(logits, [SamplingParameters(1.0, top_p, 11)] * 4000, range(4000))
    kept_shares = probabilities if top_p == 1.0 else np.array([0, 0.4, 0.25, 0, 0])
    shares = np.bincount(draws, minlength=5) / len(draws)
    np.testing.assert_allclose(shares, kept_shares / kept_shares.sum(), atol=0.03)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_gives_no_token_and_leaves_its_neighbours(bad, temperature):
    logits = np.zeros((3, 50), dtype=np.float32)
    logits[1, 49] = bad
    logits[2, 7] = 90.0
    tokens = sample(logits, [SamplingParameters(temperature)] * 3, [0, 0, 0])
    assert tokens[1] is None
    assert tokens[2] == 7
    assert tokens[0] is not None


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_minus_infinity_gives_no_token(temperature):
    assert one([-np.inf] * 4, SamplingParameters(temperature)) is None
    everything = tuple((token, -np.inf) for token in range(4))
    assert one([1.0] * 4, SamplingParameters(temperature, logit_bias=everything)) is None


def test_a_slot_without_a_request_is_a_mistake():
    table = SamplingTable(2, 4)
    table.open(1, SamplingParameters(), [])
    table.close(1)
    table.close(1)
    with pytest.raises(KeyError, match="slot 1"):
        table.of(1)
