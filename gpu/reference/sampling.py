"""The obvious twin of gpu/sampling: whole numbers, lists and dictionaries, one token at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpu.device import SamplingParameters, TokenLogprobs


def uniform(seed: int, index: int, purpose: int = 0) -> float:
    """Philox4x32-10 keyed by the seed, at counter (index, purpose): the number in [0, 1) with 53 random bits."""
    word = 2**32
    key = [seed % word, seed // word % word]
    counter = [index % word, index // word, purpose, 0]
    for _ in range(10):
        first, second = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [
            second // word ^ counter[1] ^ key[0],
            second % word,
            first // word ^ counter[3] ^ key[1],
            first % word,
        ]
        key = [(key[0] + 0x9E3779B9) % word, (key[1] + 0xBB67AE85) % word]
    return (counter[0] // 32 * 2**26 + counter[1] // 64) / 2**53


def adjusted_logits(
    logits: npt.NDArray[np.float32],
    parameters: SamplingParameters,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
) -> list[np.float32]:
    """Logits [vocab] after penalties and bias, rounded to float32 in each step as the fast code does."""
    emitted = Counter(output_ids)
    values = []
    for token, logit in enumerate(logits):
        value = np.float32(logit)
        if token in emitted or token in prompt_ids:
            repetition = np.float32(parameters.repetition_penalty)
            value = value / repetition if value > 0 else value * repetition
        value -= np.float32(parameters.frequency_penalty) * np.float32(emitted[token])
        value -= np.float32(parameters.presence_penalty) if token in emitted else np.float32(0)
        bias = sum(addend for biased, addend in parameters.logit_bias if biased == token)
        values.append(value + np.float32(bias))
    return values


def probabilities(
    logits: npt.NDArray[np.float32],
    parameters: SamplingParameters,
    prompt_ids: Sequence[int] = (),
    output_ids: Sequence[int] = (),
) -> list[float]:
    """What the next token is drawn from [vocab], for raw logits [vocab] of which the largest is finite."""
    values = [float(value) for value in adjusted_logits(logits, parameters, prompt_ids, output_ids)]
    largest = max(values)
    if parameters.temperature == 0:
        return [1.0 if token == values.index(largest) else 0.0 for token in range(len(values))]
    weights = [math.exp((value - largest) / parameters.temperature) for value in values]
    if 0 < parameters.top_k < len(values):
        kept = sorted(range(len(values)), key=lambda token: (-values[token], token))[: parameters.top_k]
        weights = [weight if token in set(kept) else 0.0 for token, weight in enumerate(weights)]
    likely = _nucleus(weights, parameters.top_p) if parameters.top_p < 1 else set(range(len(weights)))
    weights = [
        weight if token in likely and weight >= parameters.min_p else 0.0 for token, weight in enumerate(weights)
    ]
    return [weight / sum(weights) for weight in weights]


def token_at(shares: Sequence[float], draw: float) -> int:
    """The token in whose interval `draw` in [0, 1) falls, where `shares` [vocab] lie end to end."""
    target = draw * sum(shares)
    passed = 0.0
    for token, share in enumerate(shares):
        passed += share
        if passed > target:
            return token
    return max(token for token, share in enumerate(shares) if share > 0)


def sample_one(
    logits: npt.NDArray[np.float32],
    parameters: SamplingParameters,
    draw: float,
    prompt_ids: Sequence[int] = (),
    output_ids: Sequence[int] = (),
) -> int:
    """The token that `draw` in [0, 1) selects from `logits` [vocab], all finite or -inf."""
    return token_at(probabilities(logits, parameters, prompt_ids, output_ids), draw)


def token_logprobs(logits: npt.NDArray[np.float32], token: int, alternatives: int) -> TokenLogprobs:
    """Natural logarithms of softmax(logits [vocab]): of the token and of the likeliest `alternatives`."""
    values = [float(value) for value in logits]
    largest = max(values)
    total = largest + math.log(math.fsum(math.exp(value - largest) for value in values))
    ranked = sorted(range(len(values)), key=lambda entry: (-values[entry], entry))[:alternatives]
    return TokenLogprobs(token, values[token] - total, tuple((entry, values[entry] - total) for entry in ranked))


def _nucleus(weights: list[float], top_p: float) -> set[int]:
    """The fewest likeliest tokens whose sum reaches top_p of the whole, and all that equal the last of them."""
    wanted, reached, smallest = top_p * sum(weights), 0.0, 0.0
    for weight in sorted(weights, reverse=True):
        reached += weight
        smallest = weight
        if reached >= wanted:
            break
    return {token for token, weight in enumerate(weights) if weight >= smallest}
