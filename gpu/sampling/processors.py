"""From one row of logits to the distribution that its token is drawn from.

Order: repetition, presence and frequency penalties, logit bias, temperature, top_k, top_p, min_p. Everything is
float32, as in gpu/sampling/device_sampler.py; the twin is gpu/reference/sampling.py.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from gpu.device import SamplingParameters

# Below this the division by the temperature overflows where it should give 0; such a temperature is greedy in effect.
LOWEST_TEMPERATURE = 1e-30
_BLOCK = 256
_FEW = 8 * _BLOCK
_NUCLEUS_SHARES = (2.0**-10, 2.0**-14)

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class TokenDistribution:
    """`weights` [n] float32, not normalised, of the tokens `ids` [n], ascending; None: of the whole vocabulary."""

    ids: Int64 | None
    weights: Float32

    def probability(self, token: int) -> float:
        """The share of this token among all."""
        position = self._position(token)
        return 0.0 if position is None else float(self.weights[position]) / float(self.weights.sum())

    def token_at(self, share: float) -> int:
        """The token in whose interval `share` in [0, 1) falls when weights are laid end to end in order of ids."""
        position = weighted_position(self.weights, share)
        return position if self.ids is None else int(self.ids[position])

    def _position(self, token: int) -> int | None:
        if self.ids is None:
            return token
        position = int(self.ids.searchsorted(token))
        return position if position < len(self.ids) and self.ids[position] == token else None


def target_distribution(row: Float32, largest: float, parameters: SamplingParameters) -> TokenDistribution:
    """What a lane with temperature above 0 draws from. `row` [vocab]: logits after penalties, `largest` of them finite.

    top_k keeps exactly k tokens, the lower ids among equals. top_p keeps the fewest likeliest tokens of those left
    whose sum reaches it, and all that equal the last of them. min_p is a share of the likeliest token's probability.
    """
    ids = None
    if 0 < parameters.top_k < len(row):
        ids = np.sort(likeliest(row, parameters.top_k))
        row = row[ids]
    weights = tempered_weights(row, largest, parameters.temperature)
    floor = min(parameters.min_p, 1.0)
    if parameters.top_p < 1.0:
        floor = max(floor, _nucleus_floor(weights, parameters.top_p))
    if floor > 0.0:
        kept = np.flatnonzero(weights >= np.float32(floor))
        ids = kept if ids is None else ids[kept]
        weights = weights[kept]
    return TokenDistribution(ids, weights)


def tempered_weights(row: Float32, largest: float, temperature: float) -> Float32:
    """exp((row - largest) / temperature): float32 [n], 1 for the largest."""
    weights: Float32 = row - np.float32(largest)
    if temperature != 1.0:
        with np.errstate(over="ignore"):  # a tiny temperature sends all but the largest to -inf
            weights /= np.float32(max(temperature, LOWEST_TEMPERATURE))
    np.exp(weights, out=weights)
    return weights


def likeliest(values: Float32, count: int) -> Int64:
    """Positions of the `count` largest values, largest first, the lower position first among equals."""
    candidates = np.flatnonzero(values >= _lower_bound(values, count))
    order: Int64 = np.argsort(-values[candidates], kind="stable")[:count]
    return candidates[order]


def weighted_position(weights: Float32, share: float) -> int:
    """The position in whose interval `share` in [0, 1) falls; never one of weight 0, so long as any weight is not.

    Of many weights blocks are summed first: a running sum over a whole vocabulary costs more than the rest of a draw.
    """
    if len(weights) <= _FEW:
        ends = weights.cumsum(dtype=np.float64)
        return _position_in(ends, share * float(ends[-1]), weights)
    full = len(weights) // _BLOCK * _BLOCK
    sums = np.empty(full // _BLOCK + 1, dtype=np.float64)
    sums[:-1] = weights[:full].reshape(-1, _BLOCK).sum(axis=1)
    sums[-1] = weights[full:].sum()
    ends = sums.cumsum()
    target = share * float(ends[-1])
    block = _position_in(ends, target, sums)
    inside = weights[block * _BLOCK : (block + 1) * _BLOCK]
    before = float(ends[block - 1]) if block else 0.0
    return block * _BLOCK + _position_in(inside.cumsum(dtype=np.float64) + before, target, inside)


def _position_in(ends: Float64, target: float, weights: Float32 | Float64) -> int:
    """The first of `ends` above the target; where rounding leaves none, the last position with a weight."""
    position = int(ends.searchsorted(target, side="right"))
    return position if position < len(ends) else int(weights.nonzero()[0][-1])


def _lower_bound(values: Float32, count: int) -> np.float32:
    """A value that at least `count` entries reach, and not many more."""
    size = len(values)
    if count >= size:
        return np.float32(-np.inf)
    blocks = size // _BLOCK
    if count <= blocks:  # as many blocks hold an entry that reaches the count-th largest of their maxima
        maxima = values[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1)
        return np.float32(np.partition(maxima, blocks - count)[blocks - count])
    return np.float32(np.partition(values, size - count)[size - count])


def _nucleus_floor(weights: Float32, top_p: float) -> float:
    """The smallest weight of the nucleus.

    Sorts as few of the largest weights as hold it: those above a share of the whole, the last share being one below
    which the whole vocabulary together cannot reach what top_p leaves out.
    """
    total = float(weights.sum())
    wanted = top_p * total
    for share in (*_NUCLEUS_SHARES, 0.5 * (1.0 - top_p) / len(weights)):
        candidates = weights[weights > np.float32(share * total)]
        descending = np.sort(candidates)[::-1]
        sums = descending.cumsum(dtype=np.float64)
        if len(sums) and float(sums[-1]) >= wanted:
            break
    reached = int(sums.searchsorted(wanted, side="left"))
    return float(descending[min(reached, len(descending) - 1)])
