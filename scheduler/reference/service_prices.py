"""Service memories and prices: the entropy-dual update (S4, S9).

A request remembers, per coordinate, an inverse rate `w`: ms per token, and ms per delivery. Its price is the
fairness coefficient times `w`, so that a live change of the coefficient re-prices everyone and forgets nothing.

Maximising sum f*log(rate) has a dual in which the log-price moves against served rate minus 1/price; over an
interval of `delta` ms in which `s` units were served, against a reference rate `n` units per ms and an adaptation
time tau ms, the exact solution is

    s = 0:   w <- w + delta / (n*tau)
    s > 0:   k = s / (n*tau);   w <- w*exp(-k) + (delta/s) * (1 - exp(-k))
"""

from __future__ import annotations

import math

from scheduler.errors import InvalidObservation

MEMORY_MIN = 1e-12
MEMORY_MAX = 1e12
MAX_SERVED = 2**31
MIN_INTERVAL_MS = 1e-6
MAX_INTERVAL_MS = 3_600_000.0


def updated_memory(memory: float, interval_ms: float, served: float, normalizer: float, adaptation_ms: float) -> float:
    """The memory (ms per unit) after `served` units in `interval_ms`, clamped to [1e-12, 1e12].

    `normalizer`: reference rate, units per ms. Raises InvalidObservation outside: interval 1 ns to one hour,
    served 0 to 2**31, normalizer and adaptation time above 0 and finite.
    """
    if not MIN_INTERVAL_MS <= interval_ms <= MAX_INTERVAL_MS:
        raise InvalidObservation(f"a service interval of {interval_ms!r} ms; allowed are 1 ns to one hour")
    if not 0 <= served <= MAX_SERVED:
        raise InvalidObservation(f"{served!r} units served; allowed are 0 to {MAX_SERVED}")
    if not (0 < normalizer < math.inf and 0 < adaptation_ms < math.inf):
        raise InvalidObservation(f"normalizer {normalizer!r} and adaptation time {adaptation_ms!r} ms must be positive")
    # Divided one after the other: the product of two tiny positive numbers can be 0.
    if served == 0:
        return _clamped(memory + interval_ms / normalizer / adaptation_ms)
    decay = served / normalizer / adaptation_ms
    return _clamped(memory * math.exp(-decay) + (interval_ms / served) * -math.expm1(-decay))


def _clamped(memory: float) -> float:
    return min(max(memory, MEMORY_MIN), MEMORY_MAX)


def newcomer_memory(
    rule: str, *, phase_rate: float | None, decode_rate: float | None, residents: int, largest_served: float
) -> float | None:
    """The token memory that a request starts with, or None while nothing has been measured.

    `phase_rate`: the request's own normalizer, tokens per ms. `decode_rate`: a lone decoder's. `residents`: those
    before it. `largest_served`: the largest token memory among residents that have been served, 0 without one.
    Rules: see scheduler.policy. Without a measured decode graph every rule acts as `phase`.
    """
    if decode_rate is None:
        return None if phase_rate is None else _clamped(1.0 / phase_rate)
    if rule == "deprived":
        # The cap keeps overload from ratcheting each newcomer above the one before.
        return _clamped(min(max(1.0 / decode_rate, largest_served), (residents + 1) / decode_rate))
    if rule == "decode":
        return _clamped(1.0 / decode_rate)
    if phase_rate is None:
        return None
    return _clamped((residents + 1) / phase_rate if rule == "fair_share" else 1.0 / phase_rate)
