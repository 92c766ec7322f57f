"""Verified tokens have the target's distribution, as a chi-square test sees it, which also sees a planted bias.

Eight tokens; after each, the next token has the same distribution over ranks, with other tokens in them. Whatever was
accepted before, the rank of an emitted token has that distribution. Three drafts a round.
"""

import numpy as np
import pytest
import torch

import gpu.sampling.device_sampler
import gpu.sampling.verification
from gpu.device import SamplingParameters
from gpu.reference.sampling import probabilities
from gpu.sampling import Purpose, SamplingTable, VerifyLane, draft_sample, uniforms, verify_round
from gpu.sampling.device_philox import device_uniforms
from gpu.sampling.device_sampler import DeviceRound, device_draft_sample, device_verify
from gpu.sampling.device_table import DeviceSamplingTable

VOCAB, DEPTH, START = 8, 3, 0
SEEDS = range(20)
DEVICE_ROUNDS = 1500
BIAS = 0.05
CHI_SQUARE_QUANTILE = 27.856  # of 1 - 1e-4 for 7 degrees of freedom: Abramowitz and Stegun, table 26.8
# Options, whether drafts are drawn, rounds on the host: enough to see the bias on every seed, few enough to be quick.
CASES = {
    "drawn": ({}, True, 600),
    "copies": ({}, False, 600),
    "cut": ({"temperature": 0.8, "top_k": 6, "top_p": 0.97}, True, 200),
}

BY_RANK = np.array([0.25, 0.2, 0.17, 0.13, 0.1, 0.08, 0.062, 0.008])
# The draft head likes most what the target likes least.
PROPOSED_BY_RANK = np.append(BY_RANK[:-1] * 0.4 / BY_RANK[:-1].sum(), 0.6)
RANKS = np.array([np.random.default_rng(token).permutation(VOCAB) for token in range(VOCAB)])
TARGET = np.log(BY_RANK[RANKS]).astype(np.float32)
PROPOSED = np.log(PROPOSED_BY_RANK[RANKS]).astype(np.float32)
LEAST, MOST = TARGET.argmin(axis=1), TARGET.argmax(axis=1)


def copied(before, number):
    """A draft that was not drawn: mostly the least likely token, in every fifth round the likeliest."""
    return np.where(number % 5 > 0, LEAST[before], MOST[before])


def host_rounds(parameters, drawn, rounds):
    """Emitted tokens of many rounds from START, int64 [rounds, DEPTH + 1], -1 after each end."""
    table = SamplingTable(1, VOCAB)
    table.open(0, parameters, [])
    starts = [10 * number for number in range(rounds)]
    before, drafts, q = np.full(rounds, START), [], []
    for depth in range(DEPTH):
        proposed = copied(before, np.arange(rounds))
        if drawn:
            indices = [start + depth for start in starts]
            proposed, shares = draft_sample(PROPOSED[before], [0] * rounds, indices, table)
            q.append(shares)
        drafts.append(proposed)
        before = proposed
    drafts = np.stack(drafts, axis=1)
    states = np.concatenate((np.full((rounds, 1), START), drafts), axis=1)
    lanes = [
        VerifyLane(
            0, number * (DEPTH + 1), drafts[number], (None, np.stack([s[number] for s in q])) if drawn else None, start
        )
        for number, start in enumerate(starts)
    ]
    outcomes = verify_round(TARGET[states].reshape(-1, VOCAB), lanes, table)
    return np.array([[*outcome.emitted, *[-1] * (DEPTH - outcome.accepted)] for outcome in outcomes])


def device_rounds(parameters, drawn, _):
    table = DeviceSamplingTable(1, VOCAB)
    table.open(0, parameters, [])
    slots = torch.zeros(DEVICE_ROUNDS, dtype=torch.int64)
    starts = torch.arange(DEVICE_ROUNDS) * 10
    target, proposed = torch.from_numpy(TARGET), torch.from_numpy(PROPOSED)
    states, q = [torch.full_like(slots, START)], []
    for depth in range(DEPTH):
        if drawn:
            tokens, shares = device_draft_sample(proposed[states[-1]], slots, starts + depth, table)
            q.append(shares)
        else:
            tokens = torch.from_numpy(copied(states[-1].numpy(), np.arange(DEVICE_ROUNDS)))
        states.append(tokens)
    inputs = DeviceRound(
        slots=slots,
        first_row=torch.arange(DEVICE_ROUNDS) * (DEPTH + 1),
        rows=torch.full_like(slots, DEPTH + 1),
        drafts=torch.stack(states[1:], dim=1),
        indices=starts,
        copies=torch.full_like(slots, not drawn, dtype=torch.bool),
        q=torch.stack(q, dim=1) if drawn else None,
    )
    rows = target[torch.stack(states, dim=1)].reshape(-1, VOCAB)
    return device_verify(rows, inputs, table).emitted.numpy()


def is_rejected(emitted, parameters):
    """Whether a chi-square test at the level 1e-4 finds the ranks unlike the target's."""
    before = np.concatenate((np.full((len(emitted), 1), START), emitted[:, :-1]), axis=1)
    drawn = emitted >= 0
    observed = np.bincount(RANKS[before[drawn], emitted[drawn]], minlength=VOCAB)
    expected = np.empty(VOCAB)
    expected[RANKS[START]] = probabilities(TARGET[START], parameters)
    possible = expected > 0
    expected *= observed.sum()
    if observed[~possible].any():
        return True
    statistic = ((observed - expected)[possible] ** 2 / expected[possible]).sum()
    return bool(statistic > CHI_SQUARE_QUANTILE)


def plant_bias(monkeypatch):
    """Every draft stands with a probability that is higher by BIAS, at most 1, on host and device."""

    def host_uniforms(seeds, indices, purposes):
        accepts = np.array(purposes) == Purpose.ACCEPT
        return uniforms(seeds, indices, purposes) - BIAS * accepts

    def biased_uniforms(seed_low, seed_high, indices, purpose):
        return device_uniforms(seed_low, seed_high, indices, purpose) - BIAS * (purpose is Purpose.ACCEPT)

    extra = np.random.default_rng(0).random(99_991)
    token, judge = gpu.sampling.verification._token, gpu.sampling.device_sampler._judge

    def biased_token(p, draft, row, ratios, lane, slot, draws):
        if draft is None or lane.q is not None:
            return token(p, draft, row, ratios, lane, slot, draws)
        number = extra[(lane.index + row + 7919 * slot.parameters.seed) % len(extra)]
        wrongly = number * (1 - ratios[row]) < BIAS
        return draft if wrongly else token(p, draft, row, ratios, lane, slot, draws)

    def biased_judge(weights, rows, inputs, table):
        ratio, stands, tokens = judge(weights, rows, inputs, table)
        if inputs.q is not None:
            return ratio, stands, tokens
        seeds = table.seed_low[rows.slot], table.seed_high[rows.slot]
        numbers = device_uniforms(*seeds, inputs.indices[rows.lane] + rows.depth, Purpose.ACCEPT)
        return ratio, stands | (rows.judges & (numbers * (1 - ratio) < BIAS)), tokens

    monkeypatch.setattr(gpu.sampling.verification, "uniforms", host_uniforms)
    monkeypatch.setattr(gpu.sampling.verification, "_token", biased_token)
    monkeypatch.setattr(gpu.sampling.device_sampler, "device_uniforms", biased_uniforms)
    monkeypatch.setattr(gpu.sampling.device_sampler, "_judge", biased_judge)


def verdicts(rounds, case):
    options, drawn, count = CASES[case]
    results = []
    for seed in SEEDS:
        parameters = SamplingParameters(seed=seed, **options)
        results.append(is_rejected(rounds(parameters, drawn, count), parameters))
    return results


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rounds", [host_rounds, device_rounds])
def test_tokens_have_the_targets_distribution_on_every_seed(rounds, case):
    assert verdicts(rounds, case) == [False] * len(SEEDS)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rounds", [host_rounds, device_rounds])
def test_a_planted_bias_in_the_acceptance_is_rejected_on_every_seed(rounds, case, monkeypatch):
    plant_bias(monkeypatch)
    assert verdicts(rounds, case) == [True] * len(SEEDS)
