"""A sweep as a trade-off curve: one measure against another, one point for each set of values. Plain dict figure out.

Each point carries, as its last custom field, the text that puts it into the draft.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence
from typing import Any

LINE_COLOURS = ("#a45fd0", "#2795a5", "#b5831d", "#5f8fb8", "#c25b7f", "#17916b", "#6478e0", "#8a7f5c")
RUNNING_COLOUR = "#3b7ddd"
DRAFT_COLOUR = "#d0702c"
HEIGHT_PX = 380
MOST_LABELS = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """`line`: which curve it is on, empty for the only one; `label`: its value on the curve; x and y may be unknown."""

    label: str
    line: str
    x: float | None
    y: float | None
    x_words: str
    y_words: str
    draft: str


def sweep_figure(points: Sequence[Point], running: Point, draft: Point, x_title: str, y_title: str) -> dict[str, Any]:
    """Curves of `points`, with the policy in force and the draft marked."""
    lines = list(dict.fromkeys(point.line for point in points))
    labelled = len(points) <= MOST_LABELS
    traces = [
        _curve([p for p in points if p.line == line], line, LINE_COLOURS[at % len(LINE_COLOURS)], labelled=labelled)
        for at, line in enumerate(lines)
    ]
    traces.append(_mark(running, "policy in force", RUNNING_COLOUR, "square"))
    traces.append(_mark(draft, "draft", DRAFT_COLOUR, "diamond"))
    return {"data": traces, "layout": _layout(x_title, y_title)}


def _curve(points: Sequence[Point], line: str, colour: str, *, labelled: bool) -> dict[str, Any]:
    known = [point for point in points if point.x is not None and point.y is not None]
    return {
        "type": "scatter",
        "mode": "lines+markers+text" if labelled else "lines+markers",
        "name": html.escape(line or "sweep"),
        "x": [point.x for point in known],
        "y": [point.y for point in known],
        "text": _labels(known),
        "textposition": "top center",
        "textfont": {"size": 11},
        "customdata": [_custom(point) for point in known],
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{customdata[2]}<extra></extra>",
        "line": {"width": 1.5, "color": colour},
        "marker": {"size": 9, "color": colour},
        "cliponaxis": False,
    }


def _labels(points: Sequence[Point]) -> list[str]:
    """One label for each place: points that lie on one another share that of the first of them."""
    together: dict[tuple[float | None, float | None], list[str]] = {}
    for point in points:
        together.setdefault((point.x, point.y), []).append(html.escape(point.label))
    return [", ".join(together.pop((point.x, point.y), [])) for point in points]


def _mark(point: Point, name: str, colour: str, symbol: str) -> dict[str, Any]:
    known = point.x is not None and point.y is not None
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [point.x] if known else [],
        "y": [point.y] if known else [],
        "customdata": [_custom(point)] if known else [],
        "hovertemplate": f"<b>{name}</b><br>%{{customdata[1]}}<br>%{{customdata[2]}}<extra></extra>",
        "marker": {"size": 15, "symbol": f"{symbol}-open", "color": colour, "line": {"width": 3, "color": colour}},
        "cliponaxis": False,
    }


def _custom(point: Point) -> list[str]:
    name = f"{point.label}, {point.line}" if point.line else point.label
    return [html.escape(name), html.escape(point.x_words), html.escape(point.y_words), point.draft]


def _layout(x_title: str, y_title: str) -> dict[str, Any]:
    axis = {"automargin": True, "zeroline": False, "fixedrange": True, "tickformat": ",.5~r"}
    return {
        "height": HEIGHT_PX,
        "margin": {"l": 8, "r": 24, "t": 34, "b": 40},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "showlegend": True,
        "hovermode": "closest",
        "dragmode": False,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": axis | {"title": {"text": html.escape(x_title), "font": {"size": 12}}},
        "yaxis": axis | {"title": {"text": html.escape(y_title), "font": {"size": 12}}},
    }
