"""Late gaps between outputs: what lateness costs, and which lanes and candidates spare it (decode_late_price).

A gap is late beyond G = sigma + decode_gap_slack * (the step of a lone decoder). Its cost grows with the square of what
it exceeds G by, so that a decision compares where a horizon leaves every stream: served, or waiting on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection

from scheduler.policy import PolicyConfig
from scheduler.reference.decision import Graph


@dataclasses.dataclass(frozen=True, slots=True)
class Lateness:
    """`price`: scaled decode_late_price. `target_ms`: G. `ages_ms`: of active decoders by slot, in slot order."""

    price: float
    sigma_ms: float
    target_ms: float
    ages_ms: dict[int, float]

    @classmethod
    def of(
        cls, policy: PolicyConfig, exponent: int, sigma_ms: float, generation: list[Graph], ages_ms: dict[int, float]
    ) -> Lateness:
        """`generation`: usable generation and MIXED graphs. Nobody has an age where lateness costs nothing."""
        if policy.decode_late_price == 0.0:
            return cls(0.0, 0.0, 0.0, {})
        lone_ms = min((graph.duration_ms for graph in generation if graph.known), default=0.0)
        target_ms = sigma_ms + policy.decode_gap_slack * lone_ms
        return cls(math.ldexp(policy.decode_late_price, -exponent), sigma_ms, target_ms, ages_ms)

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


def _squared(excess_ms: float) -> float:
    return excess_ms * excess_ms if excess_ms > 0 else 0.0
