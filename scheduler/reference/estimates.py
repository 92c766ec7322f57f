"""Acceptance and forecast estimates of one request, the population prior, and the pooled acceptance (S3)."""

from __future__ import annotations

import dataclasses
import math

SOURCES = ("learned", "copy")
START_WEIGHT = 2.0
LARGEST_WEIGHT = 128.0
SMALLEST_WEIGHT = 2.0**-20
HALF_LIFE_TOKENS = 128
PRIOR_SHARE = 64.0
POOLED_START_WEIGHT = 8.0
LARGEST_POOL_WEIGHT = 256.0
LN20 = math.log(20.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Derived:
    """Tables of one estimator. `survival[d - 1]`; yields by rows: `raw[r]`, index 0 unused."""

    survival: list[float]
    raw: list[float]
    score: list[float]
    optimistic: list[float]


class Prior:
    """The population's mean survival per source and depth; it starts at 0.5^d."""

    def __init__(self, depths: int) -> None:
        self.means = {source: [0.5**d for d in range(1, depths + 1)] for source in SOURCES}

    def observe(self, depth: int, confidence: float) -> None:
        """Moves the LEARNED prior at `depth` by one sixty-fourth towards a completed confidence value."""
        means = self.means["learned"]
        means[depth - 1] += (confidence - means[depth - 1]) / PRIOR_SHARE

    def expected(self, rows: int) -> float:
        """prior_yield(rows) of LEARNED: 1 + the means below `rows`."""
        return 1.0 + left_sum(self.means["learned"][: rows - 1])


class Pool:
    """Of each source [mean, weight] of a first draft's acceptance, p, and of a later one's after an accepted one, q."""

    def __init__(self) -> None:
        self.chances = {source: {"first": [0.5, 2.0], "later": [0.5, 2.0]} for source in SOURCES}

    def observe(self, source: str, accepted: list[bool]) -> None:
        """The drafts of one round up to the first that was not accepted; shorter where the round ended before."""
        for i, hit in enumerate(accepted):
            cell = self.chances[source]["later" if i else "first"]
            cell[1] = min(LARGEST_POOL_WEIGHT, cell[1] + 1.0)
            cell[0] += (float(hit) - cell[0]) / cell[1]

    def curve(self, source: str, depths: int) -> list[float]:
        """Survival at depth d = 1..: p * q^(d - 1), geometric with a first step of its own."""
        p, q = self.chances[source]["first"][0], self.chances[source]["later"][0]
        found = [p]
        while len(found) < depths:
            found.append(found[-1] * q)
        return found


class Estimates:
    """Per source and estimator (acceptance, or forecast) a mean and a weight for each depth."""

    def __init__(self, prior: Prior, alpha: float, pool: Pool | None = None) -> None:
        """`pool`: where acceptance starts under acceptance_model "pooled"."""
        self.alpha = alpha
        self._means = {(s, f): list(prior.means[s]) for s in SOURCES for f in (False, True)}
        self._weights = {key: [START_WEIGHT] * len(means) for key, means in self._means.items()}
        self._derived: dict[tuple[str, bool], Derived] = {}
        if pool is not None:
            for source in SOURCES:
                depths = len(prior.means[source])
                self.load(source, False, pool.curve(source, depths), [POOLED_START_WEIGHT] * depths)

    def weight(self, source: str | None, forecast: bool, depth: int) -> float:
        """The weight at depth 1..; a request without a source has the LEARNED tables (it never drafts)."""
        return self._weights[source or "learned", forecast][depth - 1]

    def age(self, emitted: int) -> None:
        """Every weight halves with each 128 generated tokens."""
        factor = 2.0 ** (-emitted / HALF_LIFE_TOKENS)
        for weights in self._weights.values():
            weights[:] = [max(SMALLEST_WEIGHT, weight * factor) for weight in weights]
        self._derived.clear()

    def observe(self, source: str, forecast: bool, depth: int, value: float) -> None:
        """Adds one observation in [0, 1] at `depth`."""
        means, weights, i = self._means[source, forecast], self._weights[source, forecast], depth - 1
        weights[i] = min(LARGEST_WEIGHT, weights[i] + 1.0)
        means[i] += (value - means[i]) / weights[i]
        self._derived.clear()

    def load(self, source: str, forecast: bool, means: list[float], weights: list[float]) -> None:
        """Takes over every mean and weight of one estimator."""
        self._means[source, forecast], self._weights[source, forecast] = list(means), list(weights)
        self._derived.clear()

    def set_alpha(self, alpha: float) -> None:
        """Uses another exponent for scores."""
        self.alpha = alpha
        self._derived.clear()

    def dump(self) -> dict[str, list[float]]:
        """Every mean and weight, for comparison with the fast side."""
        return {
            f"{s} {'forecast' if f else 'acceptance'}": self._means[s, f] + self._weights[s, f]
            for s in SOURCES
            for f in (False, True)
        }

    def derived(self, source: str | None, forecast: bool) -> Derived:
        """The tables of one estimator, computed when first asked for after a change."""
        key = (source or "learned", forecast)
        found = self._derived.get(key)
        if found is None:
            found = self._derived[key] = self._compute(self._means[key], self._weights[key])
        return found

    def _compute(self, means: list[float], weights: list[float]) -> Derived:
        bounds = [min(1.0, m + math.sqrt(LN20 / (2.0 * w))) for m, w in zip(means, weights, strict=True)]
        survival, optimistic = running_minimum(means), running_minimum(bounds)
        return Derived(
            survival,
            yields(survival),
            yields(self._powers(survival)),
            yields(self._powers(optimistic)),
        )

    def _powers(self, values: list[float]) -> list[float]:
        return values if self.alpha == 1.0 else [math.pow(value, self.alpha) for value in values]


def running_minimum(values: list[float]) -> list[float]:
    """The smallest value so far, at each place."""
    found: list[float] = []
    for value in values:
        found.append(min(found[-1], value) if found else value)
    return found


def yields(survival: list[float]) -> list[float]:
    """1 + the sum of survival below r, for r = 1 .. depths + 1; index 0 is unused."""
    found, total = [0.0, 1.0], 0.0
    for value in survival:
        total += value
        found.append(1.0 + total)
    return found


def left_sum(values: list[float]) -> float:
    """The sum from left to right; sum() of Python 3.12 and later compensates."""
    total = 0.0
    for value in values:
        total += value
    return total
