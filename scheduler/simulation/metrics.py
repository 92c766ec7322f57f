"""Figures of a simulation, as values that JSON holds exactly: the same result gives the same bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.simulation.results import Outcome, SimulationResult, Tally

NS_PER_MS = 1e6
PERCENTILES = (("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("max", 100.0))


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Limits in ms of a good answer: its time to first token, and every gap between two visible outputs."""

    ttft_ms: float | None = None
    gap_ms: float | None = None


def percentiles(values: Sequence[float] | npt.NDArray[np.float64]) -> dict[str, float | None]:
    """p50, p90, p99 and the largest, by linear interpolation; None without values."""
    if len(values) == 0:
        return {name: None for name, _ in PERCENTILES}
    found = np.percentile(np.asarray(values, dtype=np.float64), [share for _, share in PERCENTILES])
    return {name: round(float(value), 6) for (name, _), value in zip(PERCENTILES, found, strict=True)}


def jain(rates: Sequence[float]) -> float | None:
    """Jain's fairness index (sum x)^2 / (n sum x^2): 1 when all are equal, 1/n when one has everything."""
    values = np.asarray(rates, dtype=np.float64)
    squares = float((values * values).sum())
    return round(float(values.sum()) ** 2 / (len(values) * squares), 9) if squares else None


def ttft_ms(outcome: Outcome) -> float:
    """Arrival to first visible output."""
    return (outcome.first_ns - outcome.arrived_ns) / NS_PER_MS


def time_per_output_token_ms(outcome: Outcome) -> float | None:
    """Time from the first visible output to the last, per output token after the first; None for one-token answers."""
    if outcome.output_tokens < 2:
        return None
    return (outcome.finished_ns - outcome.first_ns) / NS_PER_MS / (outcome.output_tokens - 1)


def summary(result: SimulationResult, limits: Limits | None = None) -> dict[str, Any]:
    """Every figure of `result`. Times in ms, rates per second of simulated time from first arrival to last output."""
    span_ns = result.end_ns - result.first_arrival_ns
    outcomes = result.outcomes
    per_token = [value for value in map(time_per_output_token_ms, outcomes) if value is not None]
    return {
        "requests": {
            "finished": len(outcomes),
            "refused": result.refused,
            "truncated": result.truncated,
            "left": result.left,
        },
        "span_ms": span_ns / NS_PER_MS,
        "ttft_ms": percentiles([ttft_ms(outcome) for outcome in outcomes]),
        "gap_ms": percentiles(np.asarray(result.gaps_ns, dtype=np.float64) / NS_PER_MS),
        "time_per_output_token_ms": percentiles(per_token),
        "queue_ms": percentiles([(o.admitted_ns - o.arrived_ns) / NS_PER_MS for o in outcomes]),
        "throughput": _throughput(outcomes, span_ns),
        "goodput": _goodput(outcomes, limits or Limits(), span_ns),
        "fairness": _fairness(outcomes),
        "busy_share": round(result.busy_ns / span_ns, 9) if span_ns else None,
        "plans": result.plans,
        "lanes_per_plan": round(result.lanes / result.plans, 6) if result.plans else None,
        "speculation": _speculation(result),
        "launches": {name: _tally(tally) for name, tally in sorted(result.kinds.items())},
        "reasons": {name: _tally(tally) for name, tally in sorted(result.reasons.items())},
        "exploration_share": _exploration_share(result),
        "shapes": {name: _tally(tally) for name, tally in sorted(result.shapes.items())},
    }


def _throughput(outcomes: Sequence[Outcome], span_ns: int) -> dict[str, Any]:
    seconds = span_ns / 1e9
    counts = {
        "requests_per_s": len(outcomes),
        "prompt_tokens_per_s": sum(o.prompt_tokens for o in outcomes),
        "computed_prompt_tokens_per_s": sum(o.prompt_tokens - o.cached_tokens for o in outcomes),
        "output_tokens_per_s": sum(o.output_tokens for o in outcomes),
    }
    return {name: round(count / seconds, 6) if seconds else None for name, count in counts.items()}


def _goodput(outcomes: Sequence[Outcome], limits: Limits, span_ns: int) -> dict[str, Any]:
    """Answers within every given limit: per second, and their share."""
    good = sum(
        (limits.ttft_ms is None or ttft_ms(outcome) <= limits.ttft_ms)
        and (limits.gap_ms is None or outcome.largest_gap_ns / NS_PER_MS <= limits.gap_ms)
        for outcome in outcomes
    )
    return {
        "ttft_limit_ms": limits.ttft_ms,
        "gap_limit_ms": limits.gap_ms,
        "requests_per_s": round(good / (span_ns / 1e9), 6) if span_ns else None,
        "share": round(good / len(outcomes), 9) if outcomes else None,
    }


def _fairness(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """Jain's index over service rates: computed prompt and output tokens per time from arrival to the end.

    `requests`: one rate per request. `clients`: one per client, the mean over its requests; None without clients.
    """
    rates = [
        (o.prompt_tokens - o.cached_tokens + o.output_tokens) / max(1, o.finished_ns - o.arrived_ns) for o in outcomes
    ]
    by_client: dict[str, list[float]] = {}
    for outcome, rate in zip(outcomes, rates, strict=True):
        if outcome.client:
            by_client.setdefault(outcome.client, []).append(rate)
    means = [sum(of_client) / len(of_client) for of_client in by_client.values()]
    return {"requests": jain(rates), "clients": jain(means)}


def _speculation(result: SimulationResult) -> dict[str, Any]:
    offered, accepted = result.offered_tokens, result.accepted_tokens
    share = round(accepted / offered, 9) if offered else None
    return {"offered_tokens": offered, "accepted_tokens": accepted, "accepted_share": share}


def _exploration_share(result: SimulationResult) -> float | None:
    """Device time of discovery, timing refresh and acceptance learning, over all device time."""
    explored = ("discovery", "timing_refresh", "acceptance_learning")
    spent = sum(tally.device_ns for name, tally in result.reasons.items() if name in explored)
    return round(spent / result.busy_ns, 9) if result.busy_ns else None


def _tally(tally: Tally) -> dict[str, Any]:
    return {"launches": tally.launches, "device_ms": tally.device_ns / NS_PER_MS}
