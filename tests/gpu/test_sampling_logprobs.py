"""Log-probabilities are those of the raw logits, likeliest first, in rounds and in scored prompts."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.device import SamplingParameters
from gpu.reference import sampling as twin
from gpu.sampling import SamplingTable, VerifyLane, row_logprobs, token_logprobs, verify_round


def assert_close(found, expected):
    assert found.token_id == expected.token_id
    assert [token for token, _ in found.top] == [token for token, _ in expected.top]
    np.testing.assert_allclose(
        [found.logprob, *(value for _, value in found.top)],
        [expected.logprob, *(value for _, value in expected.top)],
        rtol=1e-6,
        atol=2e-6,
    )


@given(
    vocab=st.integers(1, 900),
    alternatives=st.integers(0, 20),
    offset=st.sampled_from([0.0, 1000.0, -1000.0]),
    levels=st.sampled_from([3, 10_000]),
    masked=st.booleans(),
)
def test_log_probabilities_are_those_of_the_reference(vocab, alternatives, offset, levels, masked):
    generator = np.random.default_rng(vocab)
    row = (generator.integers(0, levels, vocab) * (12 / levels) + offset).astype(np.float32)
    if masked:
        row[generator.integers(0, vocab, vocab)] = -np.inf
        row[vocab // 2] = offset
    token = int(generator.integers(0, vocab))
    assert_close(token_logprobs(row, token, alternatives), twin.token_logprobs(row, token, alternatives))


def test_a_masked_vocabulary_gives_minus_infinity_and_equals_go_by_id():
    row = np.full(2000, -np.inf, dtype=np.float32)
    row[[7, 1500]] = 2.0
    found = token_logprobs(row, 3, 5)
    assert found.logprob == -math.inf
    assert [token for token, _ in found.top] == [7, 1500, 0, 1, 2]
    assert [value for _, value in found.top] == pytest.approx([-math.log(2)] * 2 + [-math.inf] * 3)


def test_no_more_than_twenty_and_no_more_than_the_vocabulary():
    assert len(token_logprobs(np.zeros(3000, dtype=np.float32), 0, 50).top) == 20
    assert len(token_logprobs(np.zeros(3, dtype=np.float32), 0, 20).top) == 3


def test_rows_of_a_prompt_give_the_same_in_any_chunks():
    logits = np.random.default_rng(1).normal(size=(9, 700)).astype(np.float32) * 4
    tokens = np.arange(9) * 70
    whole = row_logprobs(logits, tokens, 3)
    assert whole == tuple(token_logprobs(row, int(token), 3) for row, token in zip(logits, tokens, strict=True))
    assert row_logprobs(logits[:4], tokens[:4], 3) + row_logprobs(logits[4:], tokens[4:], 3) == whole
    logits[5, 5] = np.nan
    assert row_logprobs(logits, tokens, 3) is None


@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_a_round_reports_each_emitted_token_under_the_models_own_distribution(temperature):
    rows = np.random.default_rng(2).normal(size=(3, 40)).astype(np.float32)
    rows[:, 11] = 9.0
    options = {"temperature": temperature, "logit_bias": ((11, 3.0),), "repetition_penalty": 1.1, "top_k": 2}
    for wanted in (None, 0, 2):
        table = SamplingTable(1, 40)
        table.open(0, SamplingParameters(**options, logprobs=wanted), [11])
        outcome = verify_round(rows, [VerifyLane(0, 0, np.array([11, 4]), None, 0)], table)[0]
        assert outcome.emitted == (11, 11)
        expected = () if wanted is None else tuple(token_logprobs(rows[row], 11, wanted) for row in range(2))
        assert outcome.logprobs == expected
