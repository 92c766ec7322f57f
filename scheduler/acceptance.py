"""Acceptance estimates of every slot (S3): the arrays, and the constants that kernels must not compute."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scheduler.shapes import MAX_TARGET_WIDTH

Floats = npt.NDArray[np.float64]


def decay_table() -> Floats:
    """decay[n] = 2^(-n/128), the ageing of a weight by n emitted tokens, 0 <= n <= the widest lane.

    A table, because compilers turn pow(2, x) into exp2, whose last bit can differ.
    """
    return np.array([2.0 ** (-n / 128) for n in range(MAX_TARGET_WIDTH + 1)])


class Acceptance:
    """S = request_slots, D = draft_capacity, the catalog's largest draft depth (at least 1).

    estimates [S, source, estimator, D, (mean, weight)]; prior [source, D], at first 0.5^d; pool [source, (first,
    later), (mean, weight)], what verification found in all requests, at first 0.5 of weight 2; derived, for each slot's
    active source: survival [S, estimator, D], the running minimum of the means; yields [S, estimator, (raw, score,
    optimistic), D + 2], expected output tokens by rows (index 0 is unused). decay: see decay_table().
    """

    def __init__(self, request_slots: int, draft_capacity: int) -> None:
        self.estimates: Floats = np.zeros((request_slots, 2, 2, draft_capacity, 2))
        self.prior: Floats = np.array([[0.5**d for d in range(1, draft_capacity + 1)] for _ in range(2)])
        self.pool: Floats = np.array([[[0.5, 2.0] for _ in range(2)] for _ in range(2)])
        self.survival: Floats = np.zeros((request_slots, 2, draft_capacity))
        self.yields: Floats = np.zeros((request_slots, 2, 3, draft_capacity + 2))
        self.decay: Floats = decay_table()
        self.no_survival: Floats = np.zeros((0, 0))
        self.no_confidence: npt.NDArray[np.float32] = np.zeros((0, 0), np.float32)
