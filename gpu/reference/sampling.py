"""The obvious twin of gpu/sampling.py: sort everything, one token at a time."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from gpu.device import SamplingParameters


def sample_one(logits: npt.NDArray[np.float32], parameters: SamplingParameters, draw: float) -> int:
    """The token that `draw` in [0, 1) selects from `logits` [vocab], all finite or -inf."""
    values = [float(value) for value in logits]
    largest = max(values)
    if parameters.temperature == 0:
        return values.index(largest)
    weights = [math.exp((value - largest) / parameters.temperature) for value in values]
    if parameters.top_p < 1:
        weights = _keep_nucleus(weights, parameters.top_p)
    target = draw * sum(weights)
    passed = 0.0
    for token, weight in enumerate(weights):
        passed += weight
        if passed > target:
            return token
    return max(token for token, weight in enumerate(weights) if weight > 0)


def _keep_nucleus(weights: list[float], top_p: float) -> list[float]:
    wanted, reached, smallest = top_p * sum(weights), 0.0, 0.0
    for weight in sorted(weights, reverse=True):
        reached += weight
        smallest = weight
        if reached >= wanted:
            break
    return [weight if weight >= smallest else 0.0 for weight in weights]
