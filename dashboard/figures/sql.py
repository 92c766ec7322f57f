"""The chart of an operator's own answer: columns of values in, a figure as a dict out."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence
from typing import Any

MOST_MARKS = 5_000
KINDS = ("line", "points", "bars")
COLOURS = ("#3b7ddd", "#d0702c", "#17916b", "#a45fd0")
Value = str | int | float | bool | None


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column of an answer: its name and a value for each row."""

    name: str
    values: Sequence[Value]


def sql_figure(x: Column, series: Sequence[Column], kind: str) -> tuple[dict[str, Any], int]:
    """The figure and how many rows it shows: all, or those that `kept` keeps. `kind` is one of KINDS."""
    numbers = [[number(value) for value in column.values] for column in series]
    rows = kept(numbers, len(x.values), MOST_MARKS // max(1, len(series)))
    is_text = any(isinstance(value, str) for value in x.values)
    places = [_place(x.values[row]) for row in rows]
    data = [
        {
            **_drawing(kind, COLOURS[at % len(COLOURS)]),
            "name": _shown(column.name),
            "x": places,
            "y": [values[row] for row in rows],
            "hovertemplate": "%{x}<br>%{y}<extra>%{fullData.name}</extra>",
        }
        for at, (column, values) in enumerate(zip(series, numbers, strict=True))
    ]
    return {
        "data": data,
        "layout": _layout(x, series, "time" if _are_times(x.values) else "text" if is_text else ""),
    }, len(rows)


def number(value: Value) -> float | int | None:
    """What can be drawn: numbers, and whole numbers that are text because a browser could not hold them."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit():
        return int(value)
    return value if isinstance(value, int | float) else None


def kept(series: Sequence[Sequence[float | int | None]], count: int, most: int) -> list[int]:
    """At most `most` of `count` rows, in order: the first, the last, and of each stretch the lowest and highest.

    The lowest and highest of every series are always among them.
    """
    if count <= most:
        return list(range(count))
    found = {0, count - 1}
    stretches = max(1, (most - 2) // (2 * max(1, len(series))))
    for stretch in range(stretches):
        rows = range(stretch * count // stretches, (stretch + 1) * count // stretches)
        for values in series:
            drawn = [row for row in rows if values[row] is not None]
            if drawn:
                found.add(min(drawn, key=lambda row: _known(values, row)))
                found.add(max(drawn, key=lambda row: _known(values, row)))
    return sorted(found)


def _known(values: Sequence[float | int | None], row: int) -> float:
    value = values[row]
    assert value is not None, "only rows with a value are compared"
    return value


def _are_times(values: Sequence[Value]) -> bool:
    """Whether all texts look like times of the store, on either database."""
    texts = [value for value in values if value is not None]
    return bool(texts) and all(
        isinstance(v, str) and len(v) >= 16 and v[4:5] == v[7:8] == "-" and v[:4].isdigit() for v in texts
    )


def _place(value: Value) -> Value:
    return _shown(value) if isinstance(value, str) else value


def _shown(text: str) -> str:
    """Plotly reads some markup in texts; what the database holds stays text."""
    return html.escape(text[:120], quote=False)


def _drawing(kind: str, colour: str) -> dict[str, Any]:
    if kind == "bars":
        return {"type": "bar", "marker": {"color": colour}}
    if kind == "points":
        return {"type": "scatter", "mode": "markers", "marker": {"color": colour, "size": 5}}
    return {"type": "scatter", "mode": "lines+markers", "line": {"color": colour, "width": 1.5}, "marker": {"size": 3}}


def _layout(x: Column, series: Sequence[Column], kind_of_x: str) -> dict[str, Any]:
    axis = {"automargin": True, "title": {"text": _shown(x.name)}}
    if kind_of_x == "time":
        axis["type"] = "date"
    elif kind_of_x == "text":
        axis["type"] = "category"
    title = _shown(series[0].name) if len(series) == 1 else ""
    return {
        "margin": {"l": 56, "r": 12, "t": 12, "b": 48},
        "height": 420,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": axis,
        "yaxis": {"automargin": True, "title": {"text": title}, "zeroline": True},
        "showlegend": len(series) > 1,
        "legend": {"orientation": "h", "y": 1.08, "x": 0},
        "hovermode": "closest",
        "dragmode": "zoom",
    }
