"""Log-probabilities under the model's own distribution: of raw logits, before penalties, bias and temperature.

They are computed on the host from downloaded logits, also where the device samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpu.device import TokenLogprobs
from gpu.sampling.processors import likeliest

MOST_ALTERNATIVES = 20

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


def token_logprobs(row: Float32, token: int, alternatives: int) -> TokenLogprobs:
    """`token` and the likeliest `alternatives` (at most 20) of one row of raw logits [vocab], its largest finite.

    Likeliest first, the lower id first among equals. Natural logarithms; -inf where the logit is -inf.
    """
    log_total = _log_of_total(row)
    ids = likeliest(row, min(alternatives, MOST_ALTERNATIVES, len(row))) if alternatives > 0 else ()
    top = tuple((int(found), float(row[found]) - log_total) for found in ids)
    return TokenLogprobs(token, float(row[token]) - log_total, top)


def row_logprobs(
    logits: Float32, token_ids: Sequence[int] | Int64, alternatives: int
) -> tuple[TokenLogprobs, ...] | None:
    """One entry per row of raw logits [rows, vocab] and its token [rows]; None where a row has no finite largest.

    For prompts: row i holds the logits after prompt token i, token i is prompt token i + 1. Rows may come in chunks.
    """
    if not np.isfinite(logits.max(axis=1)).all():
        return None
    return tuple(token_logprobs(row, int(token), alternatives) for row, token in zip(logits, token_ids, strict=True))


def _log_of_total(row: Float32) -> float:
    """Natural logarithm of the sum of exp(logit): largest first, so that nothing overflows."""
    largest = row.max()
    weights = row - largest
    np.exp(weights, out=weights)
    return float(largest) + float(np.log(np.float64(weights.sum(dtype=np.float64))))
