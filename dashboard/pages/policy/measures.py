"""What a preview says about a policy, one measure at a time, and differences between policies in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

from dashboard.formatting import NOTHING, count, milliseconds, percent, quantity
from service.control.preview.messages import FigureError, Figures

Better = Literal["lower", "higher", "neither"]
SAME = 0.005
"""Differences below this share are said to be none."""


@dataclasses.dataclass(frozen=True, slots=True)
class Measure:
    """One number of a policy. `form` says it with its unit; `difference`: as a share of it, or in percentage points."""

    key: str
    words: str
    read: Callable[[Figures], float | None]
    form: Callable[[float | None], str]
    better: Better
    difference: Literal["share", "points"] = "share"
    meaning: str = ""


def quantile(curve: Sequence[tuple[float, float]], wanted: float) -> float | None:
    """The value at a quantile of a curve, or None where there is none."""
    return next((value for at, value in curve if abs(at - wanted) < 1e-9), None)


def rate(value: float | None) -> str:
    """Tokens per second: `412 tokens/s`; a dash for None."""
    return NOTHING if value is None else f"{quantity(value)} tokens/s"


def index(value: float | None) -> str:
    """An index from 0 to 1 with two digits; a dash for None."""
    return NOTHING if value is None else f"{value:.2f}"


def whole(value: float | None) -> str:
    """A count; a dash for None."""
    return NOTHING if value is None else count(round(value))


MEASURES: tuple[Measure, ...] = (
    Measure("ttft_p50_ms", "first token p50", lambda f: quantile(f.ttft_ms, 0.5), milliseconds, "lower",
            meaning="Half of the requests had their first token sooner than this after they arrived."),
    Measure("ttft_p90_ms", "first token p90", lambda f: quantile(f.ttft_ms, 0.9), milliseconds, "lower"),
    Measure("ttft_p99_ms", "first token p99", lambda f: quantile(f.ttft_ms, 0.99), milliseconds, "lower",
            meaning="One request in a hundred waited longer than this for its first token."),
    Measure("time_per_token_p50_ms", "time per token p50", lambda f: quantile(f.time_per_token_ms, 0.5), milliseconds,
            "lower", meaning="An answer's time from its first token to its last, by its tokens; half were faster."),
    Measure("time_per_token_p99_ms", "time per token p99", lambda f: quantile(f.time_per_token_ms, 0.99), milliseconds,
            "lower"),
    Measure("inter_token_p99_ms", "inter-token p99", lambda f: quantile(f.inter_token_ms, 0.99), milliseconds, "lower",
            meaning="Every time between two visible pieces of an answer; one in a hundred was longer. "
            "A trial's inter-token limit is of this, too."),
    Measure("largest_gap_ms", "longest gap", lambda f: f.largest_gap_ms, milliseconds, "lower"),
    Measure("tokens_per_s", "throughput", lambda f: f.tokens_per_s, rate, "higher",
            meaning="Output tokens per second over the whole window."),
    Measure("fairness_requests", "fairness, requests", lambda f: f.fairness_requests, index, "higher",
            meaning="Jain's index over the requests' service rates: 1 when all are served alike."),
    Measure("fairness_groups", "fairness, groups", lambda f: f.fairness_groups, index, "higher",
            meaning="The same over groups of requests that share a cached prefix or a model."),
    Measure("exploration_share", "exploration", lambda f: f.exploration_share, percent, "neither", "points",
            meaning="Share of device time spent on measuring graphs and on learning acceptance."),
    Measure("busy_share", "device busy", lambda f: f.busy_share, percent, "neither", "points"),
    Measure("completed", "answers completed", lambda f: float(f.completed), whole, "higher"),
)  # fmt: skip
MEASURE_BY_KEY = {measure.key: measure for measure in MEASURES}
HEADLINE = ("ttft_p50_ms", "ttft_p99_ms", "inter_token_p99_ms", "tokens_per_s")
AXES = tuple(m.key for m in MEASURES if m.key not in ("completed",))
"""The measures that a trade-off curve may have on an axis."""


def signed(share: float) -> str:
    """A signed share in percent: `+4 %`, `−18 %`, `+0.6 %`."""
    size = abs(share) * 100
    return f"{'+' if share > 0 else '−'}{size:,.0f} %" if size >= 1 else f"{'+' if share > 0 else '−'}{size:.1f} %"


def difference(measure: Measure, before: float | None, after: float | None) -> str:
    """How `after` differs from `before`: `−18 %`, `no difference`, `+2 points`; a dash where one is missing."""
    if before is None or after is None:
        return NOTHING
    if measure.difference == "points":
        points = (after - before) * 100
        return "no difference" if abs(points) < 0.05 else f"{'+' if points > 0 else '−'}{abs(points):.1f} points"
    if before == 0:
        return "no difference" if after == 0 else f"from 0 to {measure.form(after)}"
    share = after / before - 1
    return "no difference" if abs(share) < SAME else signed(share)


def verdict(measure: Measure, before: float | None, after: float | None) -> Literal["better", "worse", ""]:
    """Whether the difference is for the better; empty where there is none or none can be said."""
    if measure.better == "neither" or before is None or after is None:
        return ""
    if difference(measure, before, after) == "no difference":
        return ""
    return "better" if (after < before) == (measure.better == "lower") else "worse"


def in_words(before: Figures, after: Figures) -> str:
    """The few differences that people ask for first: `first token p50 −12 %, first token p99 −18 %, …`."""
    changed, same = [], []
    for measure in (MEASURE_BY_KEY[key] for key in HEADLINE):
        text = difference(measure, measure.read(before), measure.read(after))
        if text == "no difference":
            same.append(measure.words)
        elif text != NOTHING:
            changed.append(f"{measure.words} {text}")
    unchanged = ", ".join(same)
    return ", ".join([*changed, *([f"no difference in {unchanged}"] if same else [])])


def within_error(before: Figures, after: Figures, errors: Sequence[FigureError]) -> list[str]:
    """The measures of `in_words` whose difference is smaller than the simulator's own error, which says nothing."""
    off = {error.name: abs(error.ratio - 1) for error in errors if error.ratio is not None}
    found = []
    for measure in (MEASURE_BY_KEY[key] for key in HEADLINE):
        was, now = measure.read(before), measure.read(after)
        if was and now is not None and SAME <= abs(now / was - 1) < off.get(measure.key, 0.0):
            found.append(measure.words)
    return found


_ERROR_WORDS = {
    "ttft_p50_ms": "p50 first token",
    "ttft_p99_ms": "p99 first token",
    "time_per_token_p50_ms": "p50 time per token",
    "time_per_token_p99_ms": "p99 time per token",
    "inter_token_p50_ms": "p50 inter-token time",
    "inter_token_p99_ms": "p99 inter-token time",
    "tokens_per_s": "throughput",
    "busy_share": "device's busy share",
}


def error_words(error: FigureError) -> str | None:
    """`p50 first token 4 % above`; None where nothing can be compared."""
    if error.ratio is None:
        return None
    name = _ERROR_WORDS.get(error.name, error.name)
    if abs(error.ratio - 1) < SAME:
        return f"{name} as it was"
    size = abs(error.ratio - 1) * 100
    return f"{name} {size:,.0f} % {'above' if error.ratio > 1 else 'below'}" if size >= 1 else f"{name} within 1 %"
