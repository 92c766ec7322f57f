"""The timeline: plans as bars on a time axis, one row and one colour per graph kind. Rows in, plain dict figure out.

Every point has an id (`run/fence`), and every per-point array has one entry per id, so that a browser can merge a
figure of newer plans into the one that it shows.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from dashboard.formatting import (
    against_prediction,
    count,
    milliseconds,
    predicted,
    score,
    shape_words,
    some_names,
    utc_clock,
    words,
)
from dashboard.palette import KIND_COLOURS, kind_colour
from dashboard.score import Row

MAX_MARKS = 5000
OPEN_BAR_MS = 1000.0
OPEN_BAR_COSTS = 4
HATCHED_OUTCOMES = ("failed", "abandoned", "lost")
ROW_HEIGHT_PX = 64
MARGINS_PX = 64

HOVER = (
    "<b>%{customdata[0]}</b>  %{customdata[1]}<br>"
    "committed %{customdata[2]} UTC · %{customdata[3]}<br>"
    "predicted %{customdata[4]} · observed %{customdata[5]}<br>"
    "score %{customdata[6]} · reason %{customdata[7]}<br>"
    "%{customdata[8]}<extra></extra>"
)


def start_ms(row: Row) -> float:
    """When the device began, ms since 1970; the commit time while the start is unknown."""
    committed = float(row["committed_at"].timestamp()) * 1e3
    if row["started_ns"] is None:
        return committed
    return committed + float(row["started_ns"] - row["committed_ns"]) / 1e6


def length_ms(row: Row, now_ms: float) -> float:
    """How long the device was busy; the predicted time where the end was never seen.

    While a plan runs, up to now, but not beyond OPEN_BAR_MS or OPEN_BAR_COSTS predicted durations: a record whose
    end is late must not squeeze all others.
    """
    if row["completed_ns"] is not None:
        begun_ns = row["started_ns"] if row["started_ns"] is not None else row["committed_ns"]
        return max(0.0, float(row["completed_ns"] - begun_ns) / 1e6)
    if row["outcome"] == "in_flight":
        longest = max(OPEN_BAR_MS, OPEN_BAR_COSTS * float(row["selected_cost_ms"]))
        return min(max(0.0, now_ms - start_ms(row)), longest)
    return float(row["selected_cost_ms"])


def timeline_figure(rows: Sequence[Row], now_ms: float) -> dict[str, Any]:
    """At most MAX_MARKS bars, the newest ones. assets/timeline.js adds the range of the time axis and policy marks.

    Rows carry the SQL columns of `plans` and `request_ids`, a list of str.
    """
    shown = sorted(rows, key=start_ms)[-MAX_MARKS:]
    kinds = [kind for kind in KIND_COLOURS if any(row["kind"] == kind for row in shown)]
    kinds += sorted({row["kind"] for row in shown} - set(kinds))
    traces = [_trace(kind, [row for row in shown if row["kind"] == kind], now_ms) for kind in kinds]
    return {"data": traces, "layout": _layout(kinds)}


def _trace(kind: str, rows: Sequence[Row], now_ms: float) -> dict[str, Any]:
    colour = kind_colour(kind)
    return {
        "type": "bar",
        "orientation": "h",
        "name": words(kind),
        "uid": kind,
        "ids": [f"{row['run_id']}/{row['fence']}" for row in rows],
        "base": [start_ms(row) for row in rows],
        "x": [length_ms(row, now_ms) for row in rows],
        "y": [words(kind)] * len(rows),
        "customdata": [hover_fields(row) for row in rows],
        "hovertemplate": HOVER,
        "marker": {
            "color": colour,
            "opacity": [0.4 if row["outcome"] == "in_flight" else 1.0 for row in rows],
            "line": {"width": 0.7, "color": colour},
            "pattern": {
                "shape": ["/" if row["outcome"] in HATCHED_OUTCOMES else "" for row in rows],
                "fillmode": "replace",
                "size": 5,
                "solidity": 0.35,
            },
        },
    }


def hover_fields(row: Row) -> list[str]:
    """What HOVER shows of one plan. Names are escaped: Plotly reads a few HTML tags."""
    observed = milliseconds(row["device_ms"])
    compared = against_prediction(row["device_ms"], row["selected_cost_ms"], row["cost_state"])
    rows = f"{count(row['active_rows'])} active row{'' if row['active_rows'] == 1 else 's'}"
    requests = html.escape(some_names(row["request_ids"])) or "no request"
    return [
        html.escape(shape_words(row)),
        f"plan {count(row['fence'])} · {html.escape(words(row['outcome']))}",
        utc_clock(row["committed_at"]),
        rows,
        predicted(row["selected_cost_ms"], row["cost_state"]),
        observed if compared == "–" else f"{observed} ({compared})",
        score(row),
        html.escape(words(row["reason"])),
        requests,
    ]


def _layout(kinds: Sequence[str]) -> dict[str, Any]:
    return {
        "height": MARGINS_PX + ROW_HEIGHT_PX * max(len(kinds), 1) + 32,
        "margin": {"l": 8, "r": 12, "t": 20, "b": 40},
        "barmode": "overlay",
        "bargap": 0.25,
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {"align": "left"},
        "dragmode": "zoom",
        "uirevision": "timeline",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": {
            "type": "date",
            "automargin": True,
            "title": {"text": "time of day, UTC", "font": {"size": 12}},
            # A date axis without data would show the year 2000.
            "visible": bool(kinds),
        },
        "yaxis": {
            "type": "category",
            "automargin": True,
            "fixedrange": True,
            "ticksuffix": "  ",
            "categoryorder": "array",
            "categoryarray": [words(kind) for kind in reversed(kinds)],
        },
    }
