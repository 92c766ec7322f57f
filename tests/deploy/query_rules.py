"""What is wrong with a query or a panel before anything is asked: wrong averages, added percentages."""

from __future__ import annotations

import re
from collections.abc import Iterator

_AVERAGES = re.compile(r"\b(avg|avg_over_time|quantile|quantile_over_time)\b")
_MEAN = re.compile(
    r"sum(?P<by> by \([^)]*\))? \(rate\((?P<metric>\w+)_sum(?P<labels>\{[^}]*\})\[(?P<window>[^\]]+)\]\)\)"
    r" / sum(?P=by)? \(rate\((?P=metric)_count(?P=labels)\[(?P=window)\]\)\)"
)
_RATIO_GAUGE = re.compile(r"_ratio\b(?!_)")
_SHARE_WORD = re.compile(r"percent|ratio|share|mean|_p\d\d", re.IGNORECASE)
PERCENT_UNITS = ("percent", "percentunit")
HONEST_CALCULATIONS = {"lastNotNull", "max", "min"}
"""Of a legend or a large number: what can be said of any series, averages and shares among them."""


def wrong_promql(text: str) -> Iterator[str]:
    """Averages that are not rate(sum) / rate(count), and sums of what is a share already."""
    if (found := _AVERAGES.search(text)) is not None:
        yield f"{found[0]} of series: an average is rate(_sum) / rate(_count)"
    means = _MEAN.sub("", text)
    if re.search(r"\w_sum\b", means):
        yield "a _sum that is not divided by the _count of the same series"
    for argument in calls(text, "sum"):
        if "/" in _without_strings(argument) or "histogram_quantile" in argument:
            yield f"a sum of shares: {argument}"
        if any(_RATIO_GAUGE.search(name) for name in re.findall(r"\w+(?=\{)", argument)):
            yield f"a sum of a ratio: {argument}"


def wrong_sql(text: str) -> Iterator[str]:
    """Averages of averages, and sums of shares."""
    if re.search(r"\bavg\s*\(", text, re.IGNORECASE):
        yield "avg: of rows that stand for many plans it weighs wrongly; use sum / sum or sum / count"
    for argument in calls(text, "sum"):
        if "/" in argument or _SHARE_WORD.search(argument):
            yield f"a sum of shares: {argument}"


def wrong_panel(panel: dict) -> Iterator[str]:
    """Calculations over series that are not true of shares or averages, and stacked percentages."""
    options = panel.get("options", {})
    used = {*options.get("legend", {}).get("calcs", ()), *options.get("reduceOptions", {}).get("calcs", ())}
    if not used <= HONEST_CALCULATIONS:
        yield f"calculates {sorted(used - HONEST_CALCULATIONS)}"
    defaults = panel.get("fieldConfig", {}).get("defaults", {})
    stacking = defaults.get("custom", {}).get("stacking", {}).get("mode", "none")
    if defaults.get("unit") in PERCENT_UNITS and stacking != "none":
        yield "stacks percentages"
    if panel.get("transformations"):
        yield "transforms its answer, which no test sees"


def calls(text: str, function: str) -> Iterator[str]:
    """The arguments of each call of `function`, also of PromQL's `sum by (…) (…)`."""
    for found in re.finditer(rf"\b{function}\s*(?:(?:by|without)\s*\([^)]*\)\s*)?\(", text, re.IGNORECASE):
        depth, at = 1, found.end()
        while depth and at < len(text):
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        yield text[found.end() : at - 1]


def _without_strings(text: str) -> str:
    return re.sub(r'"[^"]*"', '""', text)
