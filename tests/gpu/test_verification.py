"""A round emits what plain decoding would, says what survived, and agrees with the obvious twin."""

import dataclasses

import numpy as np
import pytest
import torch

from gpu.device import SamplingParameters
from gpu.reference.sampling import sample_one
from gpu.reference.sampling import uniform as twin_uniform
from gpu.reference.verification import verify_drafts
from gpu.sampling import Purpose, SamplingTable, VerifyLane, draft_sample, verify_round

VOCAB = 12


def model(history, spread=2.0):
    """Raw logits [VOCAB] after these tokens: any function of them will do."""
    seed = hash(tuple(history)) % 2**32
    return (np.random.default_rng(seed).normal(size=VOCAB) * spread).astype(np.float32)


def rows_after(history, drafts, spread=2.0):
    return np.stack([model([*history, *drafts[:depth]], spread) for depth in range(len(drafts) + 1)])


def verify(rows, drafts, parameters, index=0, q=None, prompt=(), output=()):
    table = SamplingTable(1, rows.shape[1])
    table.open(0, parameters, prompt, output)
    return verify_round(rows, [VerifyLane(0, 0, np.array(drafts, dtype=np.int64), q, index)], table)[0]


def plain(prompt, parameters, count):
    """The obvious decoding, token by token."""
    output = []
    for index in range(count):
        row = model([*prompt, *output])
        output.append(sample_one(row, parameters, twin_uniform(parameters.seed, index), prompt, output))
    return output


def drawn_q(generator, depth, size):
    """Draft distributions [depth, size], float32."""
    q = generator.random((depth, size)).astype(np.float32) + 0.05
    return q / q.sum(axis=1, keepdims=True)


def whole(q, ids):
    dense = np.zeros((len(q), VOCAB))
    dense[:, range(q.shape[1]) if ids is None else ids] = q
    return dense


PENALISED = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.25, "logit_bias": ((3, 1.5),)}


EQUALITY_OPTIONS = (
    {"temperature": 0.0},
    {"temperature": 0.0, **PENALISED},
    {"reproducible": True},
    {"reproducible": True, "temperature": 0.7, "top_k": 5, **PENALISED},
    {"temperature": 1.3},  # copies: nothing was drawn
    {"temperature": 0.7, "top_p": 0.8, "min_p": 0.05, **PENALISED},
)


@pytest.mark.parametrize("options", EQUALITY_OPTIONS)
@pytest.mark.parametrize("seed", range(4))
def test_rounds_of_any_drafts_emit_plain_decodings_tokens(seed, options):
    """The seeds' guarantee: `right` drafts are what plain decoding emits, others are anything."""
    generator = np.random.default_rng(seed)
    parameters = SamplingParameters(seed=int(generator.integers(2**63)), **options)
    prompt = [1, 4, 4]
    expected = plain(prompt, parameters, 40)
    table = SamplingTable(1, VOCAB)
    table.open(0, parameters, prompt)
    output = []
    while len(output) < 30:
        start = len(output)
        right = generator.random(generator.integers(0, 6)) < 0.7
        drafts = [
            expected[start + depth] if good else int(generator.integers(VOCAB)) for depth, good in enumerate(right)
        ]
        # A drawn distribution must make no difference to lanes that verify by equality.
        q = (None, drawn_q(generator, len(drafts), VOCAB)) if table.of(0).by_equality else None
        lane = VerifyLane(0, 0, np.array(drafts, dtype=np.int64), q, start)
        outcome = verify_round(rows_after([*prompt, *output], drafts), [lane], table)[0]
        agreeing = [draft == expected[start + depth] for depth, draft in enumerate(drafts)]
        assert outcome.accepted == [*agreeing, False].index(False)
        assert len(outcome.emitted) == outcome.accepted + 1
        output += outcome.emitted
        table.record(0, outcome.emitted)
    assert output == expected[: len(output)]


def random_round(case):
    """Seeded arguments of a round: (rows, drafts, parameters, index, (ids, q) or None, prompt, output)."""
    generator = np.random.default_rng(case)
    parameters = SamplingParameters(
        temperature=float(generator.choice([0.0, 0.5, 1.0, 3.0])),
        top_p=float(generator.choice([0.6, 1.0])),
        seed=int(generator.integers(2**63)),
        top_k=int(generator.choice([0, 4])),
        reproducible=bool(generator.random() < 0.2),
        **(PENALISED if generator.random() < 0.5 else {}),
    )
    ids = None if generator.random() < 0.5 else np.array([0, 2, 3, 5, 8, 9, 11])
    depth, history = int(generator.integers(0, 5)), generator.integers(0, VOCAB, 9).tolist()
    q = drawn_q(generator, depth, VOCAB if ids is None else len(ids))
    drawn = [generator.choice(VOCAB if ids is None else ids, p=row / row.sum()) for row in q.astype(np.float64)]
    drafts = [int(token) for token in drawn]
    rows = rows_after(history, drafts, spread=1.0)
    return rows, drafts, parameters, case, None if generator.random() < 0.3 else (ids, q), history[:4], history[4:]


def test_rounds_are_those_of_the_reference():
    accepted, replaced = 0, 0
    for case in range(700):
        rows, drafts, parameters, index, q, prompt, output = random_round(case)
        outcome = verify(rows, drafts, parameters, index, q, prompt, output)
        dense = None if q is None else whole(q[1], q[0]).tolist()
        expected = verify_drafts(rows, drafts, dense, parameters, index, prompt, output)
        np.testing.assert_allclose(outcome.survival, expected.survival, rtol=1e-5, atol=1e-12)
        assert outcome.emitted == expected.emitted, case
        assert outcome.accepted == expected.accepted, case
        if q is not None:
            accepted += outcome.accepted
            replaced += outcome.accepted < len(drafts)
    assert accepted > 100
    assert replaced > 100


def test_survival_multiplies_shares_and_goes_on_after_a_rejection():
    p = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.25, 0.25, 0.5], [0.2, 0.2, 0.6]])
    q = np.array([[0.25, 0.25, 0.5], [0.4, 0.4, 0.2], [0.5, 0.25, 0.25]], dtype=np.float32)
    rows = np.log(p).astype(np.float32)
    drafts = [2, 2, 0]
    np.testing.assert_allclose(verify(rows, drafts, SamplingParameters(), q=(None, q)).survival, [0.4, 0.4, 0.2], 1e-5)
    np.testing.assert_allclose(verify(rows, drafts, SamplingParameters()).survival, [0.2, 0.16, 0.04], 1e-5)
    assert verify(rows, [0, 0, 2], SamplingParameters(0.0)).survival.tolist() == [1.0, 0.0, 0.0]
    cut = verify(rows, [0, 0, 2], SamplingParameters(top_k=1))
    assert cut.survival.tolist() == [1.0, 0.0, 0.0]
    assert verify(rows[:1], [], SamplingParameters()).survival.shape == (0,)


def test_a_draft_that_cannot_be_is_never_emitted():
    rows = np.zeros((2, VOCAB), dtype=np.float32)
    rows[0, 5] = -np.inf
    q = np.full((1, VOCAB), 1 / VOCAB, dtype=np.float32)
    for seed in range(200):
        outcome = verify(rows, [5], SamplingParameters(seed=seed), q=(None, q))
        assert outcome.accepted == 0
        assert outcome.emitted[0] != 5


def test_an_empty_residual_falls_back_to_the_target():
    rows = np.log(np.array([[0.5, 0.5], [0.5, 0.5]])).astype(np.float32)
    q = np.array([[0.6, 0.6]], dtype=np.float32)  # as rounding may leave it: above p everywhere
    tokens = {verify(rows, [0], SamplingParameters(seed=seed), q=(None, q)).emitted[0] for seed in range(40)}
    assert tokens == {0, 1}


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"temperature": 0.0, "presence_penalty": 0.1}, {}, {"seed": 1}]
)
@pytest.mark.parametrize("with_q", [False, True])
def test_only_rows_that_are_needed_must_be_finite(options, with_q):
    parameters = SamplingParameters(**options)
    rows = np.zeros((4, VOCAB), dtype=np.float32)
    rows[:, 3] = 60.0
    rows[2, 0] = np.nan
    q = (None, np.full((3, VOCAB), 1 / VOCAB, dtype=np.float32)) if with_q else None
    reached = verify(rows, [3, 3, 3], parameters, q=q)
    assert not reached.finite
    assert reached.emitted == ()
    assert reached.accepted == 0
    assert reached.logprobs == ()
    missed = verify(rows, [3, 7, 3], parameters, q=q)
    assert missed.finite
    assert missed.emitted == (3, 3)
    assert missed.survival[0] == 1.0
    assert missed.survival[1] < 1e-20
    assert np.isnan(missed.survival[2])


def test_a_failed_lane_leaves_the_others_and_the_counts_alone():
    rows = np.concatenate([rows_after([1], [2, 3]), rows_after([5], [6])])
    rows[0, 0] = np.inf
    table = SamplingTable(2, VOCAB)
    for slot in range(2):
        table.open(slot, SamplingParameters(seed=9, **PENALISED), [1, 2])
    lanes = [VerifyLane(0, 0, np.array([2, 3]), None, 0), VerifyLane(1, 3, np.array([6]), None, 4)]
    first, second = verify_round(rows, lanes, table)
    assert not first.finite
    assert second.finite
    assert second == dataclasses.replace(
        verify(rows[3:], [6], SamplingParameters(seed=9, **PENALISED), 4, prompt=[1, 2]), survival=second.survival
    )
    for slot in range(2):
        counts = table.of(slot).counts
        assert counts.distinct.tolist() == [1, 2]
        assert not counts.output_counts(np.arange(VOCAB)).any()


def test_drafts_are_the_likeliest_or_drawn_at_the_lanes_temperature():
    logits = np.stack([model([lane], 3.0) for lane in range(5)])
    logits[3] = np.nan
    logits[4, :6] = -np.inf
    table = SamplingTable(5, VOCAB)
    for slot, options in enumerate([{"temperature": 0.0}, {"reproducible": True}, {"temperature": 0.5}, {}, {}]):
        table.open(slot, SamplingParameters(seed=3, **options), [])
    tokens, q = draft_sample(torch.from_numpy(logits), range(5), [7] * 5, table)
    again, q_again = draft_sample(logits, range(5), [7] * 5, table)
    np.testing.assert_array_equal(tokens, again)
    np.testing.assert_array_equal(q, q_again)
    np.testing.assert_array_equal(tokens[:2], logits[:2].argmax(axis=1))
    assert tokens[3] == 0
    np.testing.assert_array_equal(q[[0, 1, 3]], np.eye(VOCAB)[tokens[[0, 1, 3]]])
    for lane, temperature in ((2, 0.5), (4, 1.0)):
        weights = np.exp((logits[lane].astype(np.float64) - logits[lane].max()) / temperature)
        np.testing.assert_allclose(q[lane], weights / weights.sum(), rtol=1e-5)
        share = twin_uniform(3, 7, int(Purpose.DRAFT))
        assert tokens[lane] == np.searchsorted(np.cumsum(weights), share * weights.sum(), side="right")
    greedy_alone = draft_sample(logits[:2], [0, 1], [0, 0], table)
    assert greedy_alone[1] is None
    np.testing.assert_array_equal(greedy_alone[0], tokens[:2])
