"""Late gaps between outputs: what lateness costs, and which lanes and candidates spare it (decode_late_price).

A gap is late beyond the target G, a step that reads prompts fast and is short enough. Its cost grows with the square of
what it exceeds G by, so that a decision compares where a horizon leaves every stream: served, or waiting on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection

from scheduler.reference.decision import Decision
from scheduler.reference.reading import ReadingTimes, reading_graphs
from scheduler.shapes import GraphKind


@dataclasses.dataclass(frozen=True, slots=True)
class Lateness:
    """`price`: scaled decode_late_price. `target_ms`: G. `ages_ms`: of active decoders by slot, in slot order."""

    price: float
    sigma_ms: float
    target_ms: float
    ages_ms: dict[int, float]

    @classmethod
    def of(cls, decision: Decision, exponent: int, sigma_ms: float, ages_ms: dict[int, float]) -> Lateness:
        """Nobody has an age where lateness costs nothing, or no graph says what a late gap is."""
        price = decision.policy.decode_late_price
        target_ms = _gap_target_ms(decision, len(ages_ms), sigma_ms) if price and ages_ms else None
        if target_ms is None:
            return cls(0.0, 0.0, 0.0, {})
        return cls(math.ldexp(price, -exponent), sigma_ms, target_ms, ages_ms)

    def lane_value(self, slot: int, horizon_ms: float) -> float:
        """What serving the stream is worth when its output arrives after `horizon_ms`; 0.0 for no active decoder."""
        if slot not in self.ages_ms:
            return 0.0
        return self.price / 2.0 * (self._next_gap(self.ages_ms[slot] + horizon_ms) - self._next_gap(0.0))

    def relief(self, served: Collection[int], horizon_ms: float) -> float:
        """Minus the cost of what a candidate makes of all gaps: while it runs, and as it leaves them."""
        if not self.ages_ms:
            return 0.0
        total = 0.0
        for slot, age_ms in self.ages_ms.items():
            left_at_ms = 0.0 if slot in served else age_ms + horizon_ms
            during = _squared(age_ms + horizon_ms - self.target_ms) - _squared(age_ms - self.target_ms)
            total += during + (self._next_gap(left_at_ms) - self._next_gap(age_ms))
        return 0.0 - self.price / 2.0 * total

    def _next_gap(self, age_ms: float) -> float:
        """q(a): what a stream at age a costs until its reference interval has passed once more."""
        return _squared(age_ms + self.sigma_ms - self.target_ms) - _squared(age_ms - self.target_ms)


def _gap_target_ms(decision: Decision, streams: int, sigma_ms: float) -> float | None:
    """G: the step with the most prompt tokens per ms^(1 + decode_gap_weight), the smaller one on a tie.

    A prefill graph makes a gap of its own duration and the reference interval. None without a measured graph.
    """
    graphs = reading_graphs(decision, streams)
    if not graphs:
        return None
    times = ReadingTimes.of(graphs)
    best, target_ms = -math.inf, times.fastest_ms[0]
    for capacity, ms, log_ms in zip(times.capacities, times.fastest_ms, times.log_ms, strict=True):
        efficiency = math.log(capacity) - (1.0 + decision.policy.decode_gap_weight) * log_ms
        if efficiency > best:
            best, target_ms = efficiency, ms
    return (sigma_ms if graphs[0].shape.kind is GraphKind.PREFILL else 0.0) + target_ms


def _squared(excess_ms: float) -> float:
    return excess_ms * excess_ms if excess_ms > 0 else 0.0
