"""The median of paired ratios and its interval, by order statistics: nothing is assumed of the distribution."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Median:
    """A median with its interval. `confidence`: the interval's true coverage, at least what was asked for.

    With too few values no interval covers that much: `low`, `high` and `confidence` are None.
    """

    value: float
    low: float | None
    high: float | None
    confidence: float | None
    count: int


def median_interval(values: Sequence[float], confidence: float = 0.95) -> Median:
    """The median of `values`, one at least, and the narrowest symmetric pair of order statistics around it.

    The number of values below the true median is binomial with one half, so the k-th smallest and the k-th largest hold
    it between them with probability 1 - 2 P(fewer than k below), whatever the values' distribution.
    """
    ordered = sorted(values)
    count = len(ordered)
    rank, covered = 0, None
    for k in range(1, count // 2 + 1):
        outside = 2 * sum(math.comb(count, i) for i in range(k)) / 2**count
        if 1 - outside < confidence:
            break
        rank, covered = k, 1 - outside
    if not rank:
        return Median(statistics.median(ordered), None, None, None, count)
    return Median(statistics.median(ordered), ordered[rank - 1], ordered[count - rank], covered, count)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of `values`, one at least, does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
