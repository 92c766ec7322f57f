"""Distributions of a preview as curves of quantiles on a logarithmic axis. Rows in, plain dict figure out."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

from dashboard.formatting import milliseconds

Curve = Sequence[tuple[float, float]]

HEIGHT_PX = 260
SMALLEST_MS = 0.001
"""A logarithmic axis has no zero; shorter times are drawn here."""
STYLES: dict[str, dict[str, Any]] = {
    "really happened": {"color": "#808894", "dash": "dot"},
    "policy in force": {"color": "#3b7ddd", "dash": "solid"},
    "draft": {"color": "#d0702c", "dash": "solid"},
}


def quantile_name(share: float) -> str:
    """`p50`, `p99`, `p99.9`."""
    return f"p{share * 100:g}"


def quantile_figure(curves: Sequence[tuple[str, Curve]], what: str) -> dict[str, Any]:
    """One line for each (name, [(quantile, ms)]); empty ones are left out. `what` names the axis."""
    shown = [(name, curve) for name, curve in curves if curve]
    values = [max(value, SMALLEST_MS) for _, curve in shown for _, value in curve]
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": html.escape(name),
            "x": [quantile_name(share) for share, _ in curve],
            "y": [max(value, SMALLEST_MS) for _, value in curve],
            "customdata": [milliseconds(value) for _, value in curve],
            "hovertemplate": "%{x}: %{customdata}<extra>%{fullData.name}</extra>",
            "line": STYLES.get(name, {}) | {"width": 2},
            "marker": {"size": 6, "symbol": "diamond" if name == "draft" else "circle"},
        }
        for name, curve in shown
    ]
    return {"data": traces, "layout": _layout(values, what)}


def log_ticks(lowest: float, highest: float, most: int = 7) -> list[float]:
    """Values 1, 2 and 5 times powers of ten from below `lowest` to above `highest`; fewer when they are many."""
    first, last = math.floor(math.log10(lowest)), math.ceil(math.log10(highest))
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        inside = [tick for tick in ticks if lowest / 1.5 <= tick <= highest * 1.5]
        if len(inside) <= most:
            return inside
    return inside[:: math.ceil(len(inside) / most)]


def _layout(values: Sequence[float], what: str) -> dict[str, Any]:
    axis: dict[str, Any] = {"type": "log", "automargin": True, "title": {"text": what, "font": {"size": 12}}}
    if values:
        ticks = log_ticks(min(values), max(values))
        low, high = min([*values, *ticks]), max([*values, *ticks])
        axis |= {
            "tickvals": ticks,
            "ticktext": [tick_words(tick) for tick in ticks],
            "range": [math.log10(low / 1.15), math.log10(high * 1.15)],
        }
    return {
        "height": HEIGHT_PX,
        "margin": {"l": 8, "r": 12, "t": 30, "b": 32},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "showlegend": True,
        "hovermode": "closest",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": {"type": "category", "fixedrange": True, "visible": bool(values)},
        "yaxis": axis | {"fixedrange": True, "visible": bool(values)},
    }


def tick_words(value_ms: float) -> str:
    """A round number of ms on an axis: `20 µs`, `5 ms`, `200 ms`, `1 s`."""
    if value_ms >= 1000:
        return f"{value_ms / 1000:,g} s"
    return f"{value_ms:g} ms" if value_ms >= 1 else f"{value_ms * 1000:g} µs"
