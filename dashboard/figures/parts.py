"""A score's parts as stacked bars, the winner above its runner-ups. Rows in, plain dict figure out."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from dashboard.formatting import quantity, shape_words
from dashboard.palette import PART_COLOURS
from dashboard.score import PARTS, Row, bars, is_rate, signed_parts

ROW_HEIGHT_PX = 34
MARGINS_PX = 96
MAX_BARS = 50


def parts_figure(plan: Row, alternatives: Sequence[Row]) -> dict[str, Any]:
    """Stacked bars of the plan and the alternatives whose score has the same unit, best first, MAX_BARS at most."""
    rows = bars(plan, alternatives)[:MAX_BARS]
    names = [_name(index, row) for index, row in enumerate(rows)]
    signed = [signed_parts(row) for row in rows]
    unit = "per ms" if is_rate(plan) else "undivided"
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": part.heading,
            "y": names,
            "x": [values[part.column] for values in signed],
            "customdata": [quantity(values[part.column]) for values in signed],
            "hovertemplate": f"{part.heading}: %{{customdata}} {unit}<extra>%{{y}}</extra>",
            "marker": {
                "color": PART_COLOURS[part.column],
                "opacity": [1.0 if row is plan or row["barred_by"] == "none" else 0.45 for row in rows],
            },
        }
        for part in PARTS
        if any(values[part.column] for values in signed)
    ]
    return {"data": [*traces, _totals(rows, names, unit)], "layout": _layout(names, unit)}


def _name(index: int, row: Row) -> str:
    # The rank keeps two alternatives of one shape (with different cohorts) on rows of their own.
    text = html.escape(shape_words(row))
    return f"<b>{text}</b>" if index == 0 else f"{row['rank']}. {text}"


def _totals(rows: Sequence[Row], names: Sequence[str], unit: str) -> dict[str, Any]:
    """A tick at each score: what the parts to the right and to the left of zero add up to."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "Score",
        "y": list(names),
        "x": [row["value_rate"] for row in rows],
        "customdata": [quantity(row["value_rate"]) for row in rows],
        "hovertemplate": f"score: %{{customdata}} {unit}<extra>%{{y}}</extra>",
        "marker": {
            "symbol": "diamond",
            "size": 10,
            "color": "#ffffff",
            "line": {"width": 2, "color": "#343a40"},
        },
    }


def _layout(names: Sequence[str], unit: str) -> dict[str, Any]:
    return {
        "height": MARGINS_PX + ROW_HEIGHT_PX * len(names),
        "margin": {"l": 8, "r": 12, "t": 34, "b": 40},
        "barmode": "relative",
        "bargap": 0.35,
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"},
        "hovermode": "closest",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": {"automargin": True, "zeroline": True, "title": {"text": f"value, {unit}", "font": {"size": 12}}},
        "yaxis": {
            "type": "category",
            "automargin": True,
            "ticksuffix": "  ",
            "categoryorder": "array",
            "categoryarray": list(reversed(names)),
            "fixedrange": True,
        },
    }
