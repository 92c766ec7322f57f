"""One plain token per lane, where nothing is drafted and no earlier token counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpu.device import SamplingParameters
from gpu.sampling.table import SamplingTable
from gpu.sampling.verification import VerifyLane, verify_round

Float32 = npt.NDArray[np.float32]

_NO_DRAFTS = np.empty(0, dtype=np.int64)


def sample(
    logits: Float32, parameters: Sequence[SamplingParameters], draw_indices: Sequence[int]
) -> tuple[int | None, ...]:
    """One token id per row of `logits` [lanes, vocab]; None where a row holds NaN or +inf, or nothing finite.

    Penalties find no tokens to count; lanes with a history use a SamplingTable and verify_round().
    """
    table = SamplingTable(len(parameters), logits.shape[1])
    lanes = []
    for row, chosen in enumerate(parameters):
        table.open(row, chosen, ())
        lanes.append(VerifyLane(row, row, _NO_DRAFTS, None, draw_indices[row]))
    outcomes = verify_round(logits, lanes, table)
    return tuple(outcome.emitted[0] if outcome.finite else None for outcome in outcomes)
