"""What a draft head believes of its drafts, corrected by what verification finds.

A head's confidence was fitted to one way of sampling. Others accept less: at temperature 1 a seeded request accepts a
draft only where plain decoding would draw the very same token. A scheduler that believes the head then pays for rows
that are rejected. So what is accepted is compared with what was believed, for each way of sampling apart.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu.device import SamplingParameters

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

_MEMORY = 256
"""Verified drafts of a depth after which an older one counts 1/e."""
_TRUST = 4.0
"""The head is believed as if it had been right about this many accepted drafts."""

_Sums = npt.NDArray[np.float64]


class ConfidenceCalibration:
    """Running sums of believed and found survival by depth, for greedy, seeded and other requests apart."""

    def __init__(self, depths: int) -> None:
        self._depths = depths
        self._sums: dict[tuple[bool, bool], _Sums] = {}

    def corrected(self, sampling: SamplingParameters, conditional: Float32, survival: Float64) -> Float32:
        """Float32 [2, D]: conditional and joint confidence of one round of a request, D at most `depths`.

        `conditional` [D]: the head's own, 0 throughout for a round that it did not draft. `survival` [D]: what
        verification found of each prefix, NaN where it did not look. The correction rests on the rounds before.
        """
        depth = len(conditional)
        believed = np.cumprod(conditional, dtype=np.float64)
        way = _way(sampling)
        if way not in self._sums:
            self._sums[way] = np.full((2, self._depths), _TRUST)
        sums = self._sums[way]
        joint = np.minimum.accumulate(np.minimum(1.0, believed * (sums[1, :depth] / sums[0, :depth])))
        before = np.concatenate(([1.0], joint[:-1]))
        found = np.isfinite(survival) & (believed > 0.0)
        seen = sums[:, :depth]
        seen[:, found] *= 1.0 - 1.0 / _MEMORY
        seen[0, found] += believed[found]
        seen[1, found] += survival[found]
        alone = np.divide(joint, before, out=np.zeros(depth), where=before > 0.0).astype(np.float32)
        return np.stack((alone, np.cumprod(alone, dtype=np.float32)))


def _way(sampling: SamplingParameters) -> tuple[bool, bool]:
    """(greedy, verified by equality): how drafts are accepted."""
    return sampling.temperature <= 0.0, sampling.reproducible
