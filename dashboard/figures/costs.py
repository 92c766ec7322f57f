"""Graph durations over time, and how far observed ones lie from predicted ones. Rows in, plain dict figure out."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from dashboard.extremes import keep_extremes
from dashboard.figures.axes import UNMEASURED
from dashboard.formatting import milliseconds, percent, utc
from dashboard.score import Row

BINS = 600
"""Of more than 2 * BINS rows the smallest and largest of each of BINS runs are drawn: 1,200 marks, and a line."""
MOST_GRAPHS = 24
LEAST_ERROR = 0.02
OBSERVED, ESTIMATE, LARGEST = "#17916b", "#6478e0", "#d9534f"
_PLAIN = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}


def drift_figure(rows: Sequence[Row], by_minute: bool) -> dict[str, Any]:
    """Observations, or the mean and the largest of each minute, against the estimate; rows of a Drift."""
    shown = keep_extremes(rows, BINS)
    at = [row["at"].isoformat() for row in shown]
    if by_minute:
        traces = [
            _marks("largest of a minute", at, [row["most_ms"] for row in shown], LARGEST, "markers"),
            _marks("mean of a minute", at, [row["mean_ms"] for row in shown], OBSERVED, "lines"),
        ]
    else:
        traces = [_marks("observed", at, [row["most_ms"] for row in shown], OBSERVED, "markers")]
    traces.append(_marks("estimate", at, [row["estimate_ms"] for row in shown], ESTIMATE, "lines"))
    return {"data": traces, "layout": _drift_layout()}


def _marks(name: str, at: list[str], values: list[float | None], colour: str, mode: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": mode,
        "name": name,
        "x": at,
        "y": values,
        "customdata": [milliseconds(value) for value in values],
        "hovertemplate": f"{name}: %{{customdata}}<extra>%{{x}}</extra>",
        "marker": {"size": 4, "color": colour, "opacity": 0.75},
        "line": {"color": colour, "width": 1.8, "shape": "hv" if name == "estimate" else "linear"},
    }


def _drift_layout() -> dict[str, Any]:
    return {
        "height": 270,
        "margin": {"l": 8, "r": 12, "t": 30, "b": 40},
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        "hovermode": "closest",
        "dragmode": "zoom",
        **_PLAIN,
        "xaxis": {"type": "date", "automargin": True, "title": {"text": "time of day, UTC", "font": {"size": 12}}},
        "yaxis": {
            "automargin": True,
            "rangemode": "tozero",
            "title": {"text": "ms", "font": {"size": 12}},
            **UNMEASURED,
        },
    }


def drift_words(rows: Sequence[Row], by_minute: bool) -> str:
    """What the picture shows, for whoever cannot see it."""
    if not rows:
        return "It has no observation in this span."
    largest = max(rows, key=lambda row: row["most_ms"])
    if by_minute:
        first, last = rows[0]["mean_ms"], rows[-1]["mean_ms"]
        text = f"The mean of a minute went from {milliseconds(first)} to {milliseconds(last)}"
    else:
        least = min(row["least_ms"] for row in rows)
        text = f"Observations went from {milliseconds(least)} to {milliseconds(largest['most_ms'])}"
    return f"{text}; the longest, {milliseconds(largest['most_ms'])}, was at {utc(largest['at'])}."


def errors_figure(rows: Sequence[Row]) -> dict[str, Any]:
    """From the median to the 90th percentile of observed over predicted, one line for each graph with both.

    The MOST_GRAPHS with the most device time, the one with the most on top.
    """
    shown = sorted((row for row in rows if row["median_ratio"] is not None), key=lambda row: -row["device_ms_sum"])
    shown = shown[:MOST_GRAPHS][::-1]
    names = [html.escape(row["shape"]) for row in shown]
    spans_x: list[float | None] = []
    spans_y: list[str | None] = []
    for name, row in zip(names, shown, strict=True):
        spans_x += [row["median_ratio"] - 1, row["p90_ratio"] - 1, None]
        spans_y += [name, name, None]
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": spans_x,
        "y": spans_y,
        "hoverinfo": "skip",
        "line": {"color": ESTIMATE, "width": 3},
    }
    ends = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [row[key] - 1 for row in shown],
            "y": names,
            "customdata": [_signed(row[key] - 1) for row in shown],
            "hovertemplate": f"{name}: %{{customdata}}<extra>%{{y}}</extra>",
            "marker": {"size": size, "color": colour, "symbol": symbol},
        }
        for name, key, size, colour, symbol in (
            ("median", "median_ratio", 9, OBSERVED, "circle"),
            ("90th percentile", "p90_ratio", 10, LARGEST, "line-ns-open"),
        )
    ]
    layout = _error_layout(names)
    edges = [value - 1 for row in shown for value in (row["median_ratio"], row["p90_ratio"])]
    # Where every prediction is exact the axis would be all of what is possible.
    least, most = min([-LEAST_ERROR, *edges]), max([LEAST_ERROR, *edges])
    pad = (most - least) * 0.04
    layout["xaxis"]["range"] = [least - pad, most + pad]
    return {"data": [line, *ends], "layout": layout}


def _signed(share: float) -> str:
    return f"{percent(abs(share))} {'longer' if share > 0 else 'shorter'} than predicted"


def _error_layout(names: Sequence[str]) -> dict[str, Any]:
    return {
        "height": 84 + 24 * len(names),
        "margin": {"l": 8, "r": 12, "t": 10, "b": 40},
        "showlegend": False,
        "hovermode": "closest",
        "dragmode": False,
        **_PLAIN,
        "xaxis": {
            "automargin": True,
            "tickformat": "+.0%",
            "zeroline": True,
            "title": {"text": "observed against predicted: median and 90th percentile", "font": {"size": 12}},
        },
        "yaxis": {
            "type": "category",
            "automargin": True,
            "fixedrange": True,
            "ticksuffix": "  ",
            "categoryorder": "array",
            "categoryarray": list(names),
        },
    }
