"""Choosing the next token of each lane.

Token i of a request depends on its logits, its seed and i only: neither on its neighbours nor on the batch shape
beyond float rounding. The twin is gpu/reference/sampling.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpu.device import SamplingParameters

_FIRST_CANDIDATES = 256
_SEED_MASK = (1 << 64) - 1

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


def sample(
    logits: Float32, parameters: Sequence[SamplingParameters], draw_indices: Sequence[int]
) -> tuple[int | None, ...]:
    """One token id per row of `logits` [lanes, vocab]; None where a row holds NaN or +inf, or nothing finite."""
    largest = logits.max(axis=1)  # propagates NaN
    return tuple(
        _sample_row(logits[row], float(largest[row]), parameters[row], draw_indices[row])
        if np.isfinite(largest[row])
        else None
        for row in range(len(logits))
    )


def uniform(seed: int, draw_index: int) -> float:
    """The draw in [0, 1) that belongs to output token `draw_index` of a request with this seed (Philox 4x64)."""
    bits = np.random.Philox(key=seed & _SEED_MASK, counter=draw_index)
    return float(np.random.Generator(bits).random())


def _sample_row(logits: Float32, largest: float, parameters: SamplingParameters, draw_index: int) -> int:
    if parameters.temperature == 0.0:
        return int(logits.argmax())
    shifted = logits.astype(np.float64)
    shifted -= largest
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the largest to -inf
        shifted /= parameters.temperature
    weights = np.exp(shifted, out=shifted)
    if parameters.top_p < 1.0:
        weights[weights < _nucleus_threshold(weights, parameters.top_p)] = 0.0
    cumulative = np.cumsum(weights)
    target = uniform(parameters.seed, draw_index) * cumulative[-1]
    token = int(np.searchsorted(cumulative, target, side="right"))
    return min(token, int(np.flatnonzero(weights)[-1])) if token >= len(weights) else token


def _nucleus_threshold(weights: Float64, top_p: float) -> float:
    """The smallest weight of the nucleus: the fewest largest weights whose sum reaches top_p of the whole.

    Weights equal to the smallest one all belong to it. Looks at a few hundred largest weights first, since sorting
    a whole vocabulary costs more than the rest of the draw.
    """
    wanted = top_p * float(weights.sum())
    count = _FIRST_CANDIDATES
    while count < len(weights):
        candidates = np.partition(weights, len(weights) - count)[-count:]
        if float(candidates.sum()) >= wanted:
            return _threshold_among(candidates, wanted)
        count *= 16
    return _threshold_among(weights, wanted)


def _threshold_among(candidates: Float64, wanted: float) -> float:
    descending = np.sort(candidates)[::-1]
    reached = int(np.searchsorted(np.cumsum(descending), wanted, side="left"))
    return float(descending[min(reached, len(descending) - 1)])
