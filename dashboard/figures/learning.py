"""Acceptance, forecasts, ledgers and the time spent on exploring. Rows in, plain dict figure out."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from dashboard.formatting import milliseconds, percent, words
from dashboard.learned import FULL_MS, Bound
from dashboard.score import Row

SOURCE_COLOURS = {"learned": "#a45fd0", "copy": "#2795a5"}
LEDGER_COLOURS = {"timing": "#3b7ddd", "acceptance": "#a45fd0"}
REASON_COLOURS = {"discovery": "#d0702c", "timing_refresh": "#3b7ddd", "acceptance_learning": "#a45fd0"}
OTHER = "#808894"
_PLAIN = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "hovermode": "closest"}
_LEGEND = {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"}


def depth_figure(rows: Sequence[Row]) -> dict[str, Any]:
    """The share of drafts that were right up to each depth, bars by source; rows of learned.by_depth."""
    traces = []
    for source in dict.fromkeys(row["source"] for row in rows):
        own = [row for row in rows if row["source"] == source]
        shares = [row["accepted"] / row["offered"] for row in own]
        traces.append(
            {
                "type": "bar",
                "name": html.escape(words(source)),
                "x": [row["depth"] for row in own],
                "y": shares,
                "text": [percent(share) for share in shares],
                "textposition": "outside",
                "cliponaxis": False,
                "customdata": [f"{row['accepted']:,} of {row['offered']:,} rounds" for row in own],
                "hovertemplate": "depth %{x}: %{customdata}<extra></extra>",
                "marker": {"color": SOURCE_COLOURS.get(source, OTHER)},
            }
        )
    layout = _layout("depth of the draft", "share accepted")
    layout["xaxis"] |= {"dtick": 1, "fixedrange": True}
    layout["yaxis"] |= {"range": [0, 1.08], "tickformat": ".0%", "fixedrange": True}
    return {"data": traces, "layout": layout}


def reliability_figure(rows: Sequence[Row]) -> dict[str, Any]:
    """The share that was right over the share that was forecast; on the line they are equal. Areas grow with lanes."""
    most = max((row["lanes"] for row in rows), default=1)
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "as forecast",
            "x": [0, 1],
            "y": [0, 1],
            "hoverinfo": "skip",
            "line": {"color": OTHER, "width": 1.4, "dash": "dot"},
        }
    ]
    for source in dict.fromkeys(row["source"] for row in rows):
        own = [row for row in rows if row["source"] == source]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": html.escape(words(source)),
                "x": [row["forecast"] for row in own],
                "y": [row["accepted"] for row in own],
                "customdata": [
                    f"forecast {percent(row['forecast'])}, right {percent(row['accepted'])}, {row['lanes']:,} lanes"
                    for row in own
                ],
                "hovertemplate": "%{customdata}<extra></extra>",
                "marker": {
                    "color": SOURCE_COLOURS.get(source, OTHER),
                    "size": [6 + 16 * (row["lanes"] / most) ** 0.5 for row in own],
                },
                "line": {"color": SOURCE_COLOURS.get(source, OTHER), "width": 1.2},
            }
        )
    layout = _layout("forecast share of drafts", "share that was right")
    layout["xaxis"] |= {"range": [-0.04, 1.06], "tickformat": ".0%", "fixedrange": True}
    layout["yaxis"] |= {"range": [-0.04, 1.06], "tickformat": ".0%", "fixedrange": True}
    return {"data": traces, "layout": layout}


def credit_figure(points: Sequence[Row]) -> dict[str, Any]:
    """Each ledger's credit over time, and the credit at which a probe may open."""
    at = [row["committed_at"].isoformat() for row in points]
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": words(ledger),
            "x": at,
            "y": [row[f"{ledger}_credit_ms"] for row in points],
            "customdata": [milliseconds(row[f"{ledger}_credit_ms"]) for row in points],
            "hovertemplate": f"{ledger}: %{{customdata}} of credit<extra>%{{x}}</extra>",
            "line": {"color": colour, "width": 1.8},
        }
        for ledger, colour in LEDGER_COLOURS.items()
    ]
    full = {
        "type": "scatter",
        "mode": "lines",
        "name": f"full at {milliseconds(FULL_MS)}",
        "x": at[:1] + at[-1:],
        "y": [FULL_MS] * len(at[:1] + at[-1:]),
        "hoverinfo": "skip",
        "line": {"color": OTHER, "width": 1.2, "dash": "dot"},
    }
    return {"data": [*traces, full], "layout": _time_layout("credit, ms")}


def spent_figure(points: Sequence[Row], found: Sequence[Bound]) -> dict[str, Any]:
    """What each ledger has been charged, and what its share of ordinary time and one probe allow, over time."""
    at = [row["committed_at"].isoformat() for row in points]
    traces = []
    for bound in found:
        ledger, colour = bound.ledger, LEDGER_COLOURS[bound.ledger]
        rate = bound.share_ms / bound.ordinary_ms if bound.ordinary_ms else 0.0
        allowed = [row[f"{ledger}_ordinary_ms"] * rate + bound.largest_ms for row in points]
        for name, values, dash in (
            (f"{ledger}, charged", [row[f"{ledger}_spent_ms"] for row in points], "solid"),
            (f"{ledger}, allowed", allowed, "dot"),
        ):
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": name,
                    "x": at,
                    "y": values,
                    "customdata": [milliseconds(value) for value in values],
                    "hovertemplate": f"{name}: %{{customdata}}<extra>%{{x}}</extra>",
                    "line": {"color": colour, "width": 1.8, "dash": dash},
                }
            )
    return {"data": traces, "layout": _time_layout("since the run began, ms")}


def exploring_figure(minutes: Sequence[Row]) -> dict[str, Any]:
    """The share of device time spent on exploring over time, by reason; `minutes` are `at`, `reason` and `ms`."""
    totals: dict[Any, float] = {}
    for row in minutes:
        totals[row["at"]] = totals.get(row["at"], 0.0) + row["ms"]
    traces = []
    for reason, colour in REASON_COLOURS.items():
        own = [row for row in minutes if row["reason"] == reason and totals[row["at"]] > 0]
        if not own:
            continue
        shares = [row["ms"] / totals[row["at"]] for row in own]
        traces.append(
            {
                "type": "bar",
                "name": words(reason),
                "x": [row["at"].isoformat() for row in own],
                "y": shares,
                "customdata": [
                    f"{milliseconds(row['ms'])}, {percent(share)}" for row, share in zip(own, shares, strict=True)
                ],
                "hovertemplate": f"{words(reason)}: %{{customdata}}<extra>%{{x}}</extra>",
                "marker": {"color": colour},
            }
        )
    layout = _time_layout("share of device time")
    layout["barmode"] = "stack"
    layout["yaxis"] |= {"tickformat": ".1%"}
    return {"data": traces, "layout": layout}


def _layout(x_title: str, y_title: str) -> dict[str, Any]:
    return {
        "height": 290,
        "margin": {"l": 8, "r": 12, "t": 34, "b": 40},
        "showlegend": True,
        "legend": dict(_LEGEND),
        "dragmode": False,
        **_PLAIN,
        "xaxis": {"automargin": True, "zeroline": False, "title": {"text": x_title, "font": {"size": 12}}},
        "yaxis": {"automargin": True, "zeroline": False, "title": {"text": y_title, "font": {"size": 12}}},
    }


def _time_layout(y_title: str) -> dict[str, Any]:
    layout = _layout("time of day, UTC", y_title) | {"height": 250, "dragmode": "zoom"}
    layout["xaxis"]["type"] = "date"
    layout["yaxis"] |= {"rangemode": "tozero", "zeroline": True}
    return layout
