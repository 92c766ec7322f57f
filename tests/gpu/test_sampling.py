"""Draws depend on seed, index and logits only, and agree with the obvious twin."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.device import SamplingParameters
from gpu.reference.sampling import sample_one
from gpu.sampling import sample, uniform


def one(logits, parameters, index=0):
    return sample(np.asarray(logits, dtype=np.float32)[None], [parameters], [index])[0]


@settings(deadline=None)
@given(
    vocab=st.integers(1, 700),
    temperature=st.sampled_from([0.0, 1e-300, 0.01, 0.7, 1.0, 2.0, 100.0]),
    top_p=st.sampled_from([0.0, 1e-9, 0.1, 0.5, 0.9, 0.999, 1.0]),
    seed=st.integers(-(2**63), 2**64),
    index=st.integers(0, 10_000),
    spread=st.sampled_from([0.0, 0.5, 5.0, 50.0]),
    masked=st.booleans(),
)
def test_a_draw_is_that_of_the_reference(vocab, temperature, top_p, seed, index, spread, masked):
    generator = np.random.default_rng(vocab)
    logits = (generator.normal(size=vocab) * spread).astype(np.float32)
    if masked:
        logits[generator.integers(0, vocab, size=vocab // 2)] = -np.inf
        logits[vocab // 2] = 1.0
    parameters = SamplingParameters(temperature, top_p, seed)
    expected = sample_one(logits, parameters, uniform(seed, index))
    actual = one(logits, parameters, index)
    if actual != expected:  # sums in another order may part at the edge of a token's interval
        moved = [sample_one(logits, parameters, min(max(uniform(seed, index) + by, 0), 1)) for by in (-1e-9, 1e-9)]
        assert actual in moved
    assert logits[actual] > -np.inf


def test_greedy_takes_the_first_of_the_largest():
    assert one([0.0, 3.0, 3.0, -1.0], SamplingParameters(temperature=0.0)) == 1


def test_a_token_does_not_depend_on_its_neighbours():
    logits = np.random.default_rng(0).normal(size=(6, 1000)).astype(np.float32) * 3
    parameters = [SamplingParameters(0.8, 0.9, seed) for seed in range(6)]
    indices = [4, 9, 0, 1, 2, 3]
    together = sample(logits, parameters, indices)
    assert together == tuple(one(logits[row], parameters[row], indices[row]) for row in range(6))


def test_seed_and_index_both_move_the_draw_and_repeat_it():
    draws = {(seed, index): uniform(seed, index) for seed in (-1, 0, 1, 2**64 + 5, 2**63) for index in range(50)}
    assert len(set(draws.values())) == len(draws)
    assert all(uniform(*key) == value for key, value in draws.items())
    assert all(0 <= value < 1 for value in draws.values())


@pytest.mark.parametrize("top_p", [1.0, 0.6])
def test_draws_follow_the_distribution(top_p):
    probabilities = np.array([0.05, 0.4, 0.25, 0.1, 0.2])
    logits = np.log(probabilities)
    draws = [one(logits, SamplingParameters(1.0, top_p, 11), index) for index in range(4000)]
    kept = probabilities if top_p == 1.0 else np.array([0, 0.4, 0.25, 0, 0])
    shares = np.bincount(draws, minlength=5) / len(draws)
    np.testing.assert_allclose(shares, kept / kept.sum(), atol=0.03)


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


def test_a_row_of_minus_infinity_gives_no_token():
    assert one([-np.inf] * 4, SamplingParameters()) is None
