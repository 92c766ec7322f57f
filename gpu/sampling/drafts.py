"""Draws of drafts from a draft head's logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from gpu.sampling.philox import Purpose, uniforms
from gpu.sampling.processors import tempered_weights, weighted_position
from gpu.sampling.table import SamplingTable

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


def draft_sample(
    logits: Float32 | torch.Tensor, slots: Sequence[int], indices: Sequence[int], table: SamplingTable
) -> tuple[Int64, Float32 | None]:
    """(positions [lanes] in the draft vocabulary, q float32 [lanes, Vd]) for draft logits float32 [lanes, Vd].

    `indices`: the output token's number that each draft stands for. Greedy and reproducible lanes take the likeliest;
    others draw from softmax(logits / temperature), their row of q. A row that is not finite gives the position 0.
    Rows of q with one 1 are exact for what was not drawn; q is None where no lane drew.
    """
    rows = np.asarray(logits)
    tokens = rows.argmax(axis=1)
    largest = rows[np.arange(len(rows)), tokens]
    finite = np.isfinite(largest)
    tokens[~finite] = 0
    samplings = [table.of(slot) for slot in slots]
    drawn = [lane for lane, sampling in enumerate(samplings) if not sampling.by_equality]
    if not drawn:
        return tokens, None
    seeds = [samplings[lane].parameters.seed for lane in drawn]
    shares = uniforms(seeds, [indices[lane] for lane in drawn], [Purpose.DRAFT] * len(drawn))
    q = np.zeros(rows.shape, dtype=np.float32)
    for lane, share in zip(drawn, shares.tolist(), strict=True):
        if finite[lane]:
            weights = tempered_weights(rows[lane], float(largest[lane]), samplings[lane].parameters.temperature)
            tokens[lane] = weighted_position(weights, share)
            np.divide(weights, weights.sum(), out=q[lane])
    for lane in range(len(rows)):
        if samplings[lane].by_equality or not finite[lane]:
            q[lane, tokens[lane]] = 1.0
    return tokens, q
