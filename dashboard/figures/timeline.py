"""The timeline as a figure: the device's frame slots on top, requests as lanes under them, one axis of time.

Single plans are bars as long as the device was busy with them, and gaps are bars between them. Where there are too
many, a bin of time shows the share that the device was busy, and below it, on a logarithmic scale, the longest plan
and the longest gap of each bin stay marks of their own: no plan is too rare to be seen.

A mark's id says what selecting it does: `run/fence` opens a plan, `zoom:since/until` (ms since 1970) shows that time.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dashboard.bins import Binned
from dashboard.figures.axes import UNMEASURED
from dashboard.figures.lanes import life_labels, life_traces
from dashboard.figures.timeline_bins import ROW_HEIGHT, bin_traces, extreme_traces
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
from dashboard.palette import kind_colour
from dashboard.score import Row
from dashboard.timeline_records import Events, Picture

MAX_MARKS = 5000
MAX_GAPS = 400
OPEN_BAR_MS = 1000.0
OPEN_BAR_COSTS = 4
HATCHED_OUTCOMES = ("failed", "abandoned", "lost")
SLOT_ROW_PX, SHARE_ROWS_PX, EXTREMES_PX, LIFE_ROW_PX, AROUND_PX, BETWEEN_PX = 46, 120, 130, 17, 76, 22
LABELLED_SHARE = 0.05
CLIPPED_SHARE = 0.1  # a label that began this near to the end would be cut off, so it ends at its line instead
MOST_LABELS = 14
IDLE_ROW = -2
DECADES = ["1 µs", "10 µs", "0.1 ms", "1 ms", "10 ms", "0.1 s", "1 s", "10 s", "100 s", "17 min", "2.8 h"]
REASON_COLOURS = {
    "ordinary": "#3b7ddd",
    "discovery": "#d0702c",
    "timing_refresh": "#a45fd0",
    "acceptance_learning": "#17916b",
    "solo_prefill": "#2f93a8",
    "token_budget": "#8a7f5c",
}
IDLE_COLOUR = "#98a1ab"
HOLE_COLOUR = "#d9534f"
CHANGE_COLOUR = "#8089e0"
PLAN_HOVER = (
    "<b>%{customdata[0]}</b>  %{customdata[1]}<br>"
    "committed %{customdata[2]} UTC · %{customdata[3]}<br>"
    "predicted %{customdata[4]} · observed %{customdata[5]}<br>"
    "score %{customdata[6]} · reason %{customdata[7]}<br>"
    "%{customdata[8]}<extra></extra>"
)


def group_colour(by: str) -> Callable[[str], str]:
    """The colours of kinds, or of reasons; grey for those that this version does not know."""
    return kind_colour if by == "kind" else lambda reason: REASON_COLOURS.get(reason, "#808894")


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


def timeline_figure(picture: Picture, by: str, now_ms: float) -> dict[str, Any]:
    """The figure of a picture; `by`: kind or reason. At most MAX_MARKS marks."""
    since_ms, until_ms = picture.since.timestamp() * 1e3, picture.until.timestamp() * 1e3
    colour = group_colour(by)
    if picture.binned is None:
        rows = sorted(picture.rows, key=start_ms)
        slots = sorted({int(row["frame_slot"]) for row in rows}) or [0]
        gaps = gap_rows(rows)
        traces = [*plan_traces(rows, by, now_ms), *_gap_traces(gaps, until_ms - since_ms)]
        device_rows = [*(f"slot {slot}" for slot in slots), "idle"]
        extremes_px, bands = 0, []
    else:
        slots = sorted({one.slot for one in picture.binned.bins if one.slot is not None})
        traces = [*bin_traces(picture.binned, colour), *extreme_traces(picture.binned, colour)]
        device_rows = [f"slot {slot}" for slot in slots] or ["device"]
        extremes_px, bands = EXTREMES_PX, [_band(-row) for row in range(len(device_rows))]
    left = MAX_MARKS - sum(len(trace["ids"]) for trace in traces)
    lives = life_traces(picture.lives, by, colour, picture.until, left)
    layout = _layout(device_rows, extremes_px, life_labels(picture.lives))
    layout["xaxis"]["range"] = [since_ms, until_ms]
    layout["uirevision"] = f"{since_ms}/{until_ms}"
    layout["annotations"], events = _event_shapes(picture.events, since_ms, until_ms)
    layout["shapes"] = [*bands, *events]
    if picture.binned is not None:
        layout["yaxis2"]["range"] = _decades(picture.binned)
    return {"data": [*traces, *lives], "layout": layout}


def row_of_slot(slot: int | None) -> int:
    """Where a slot is drawn: 0 on top, 1 below it; the gaps are a row further below."""
    return -(slot or 0)


def plan_traces(rows: Sequence[Row], by: str, now_ms: float) -> list[dict[str, Any]]:
    """Plans as bars in the row of their slot: a trace for each kind or reason and look.

    Traces of one colour are drawn several times as fast as one trace that gives each bar its own.
    """
    looks: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        look = "ended" if row["outcome"] in HATCHED_OUTCOMES else "open" if row["outcome"] == "in_flight" else "done"
        looks.setdefault((str(row[by]), look), []).append(row)
    colour = group_colour(by)
    return [
        _plan_trace(some, f"plans-{group}-{look}", colour(group), look, now_ms) for (group, look), some in looks.items()
    ]


def _plan_trace(rows: Sequence[Row], uid: str, colour: str, look: str, now_ms: float) -> dict[str, Any]:
    hatched = {"pattern": {"shape": "/", "fillmode": "replace", "size": 5, "solidity": 0.35}} if look == "ended" else {}
    return {
        "type": "bar",
        "orientation": "h",
        "uid": uid,
        "name": "plans",
        "ids": [f"{row['run_id']}/{row['fence']}" for row in rows],
        "base": [start_ms(row) for row in rows],
        "x": [length_ms(row, now_ms) for row in rows],
        "y": [row_of_slot(row["frame_slot"]) for row in rows],
        "width": 0.76,
        "customdata": [hover_fields(row) for row in rows],
        "hovertemplate": PLAN_HOVER,
        "marker": {
            "color": colour,
            "opacity": 0.4 if look == "open" else 1.0,
            "line": {"width": 0.7, "color": colour},
            **hatched,
        },
    }


def gap_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Where the device waited between two plans that follow each other in their run: `base` and `length` in ms.

    A gap whose plan before it is not among the rows is not known.
    """
    by_key = {(row["run_id"], row["fence"]): row for row in rows}
    found = []
    for row in rows:
        before = by_key.get((row["run_id"], row["fence"] - 1))
        if before is None or before["completed_ns"] is None or row["started_ns"] is None:
            continue
        length = (row["started_ns"] - before["completed_ns"]) / 1e6
        if length > 0:
            found.append({"row": row, "base": start_ms(row) - length, "length": length})
    return found


def _gap_traces(gaps: Sequence[Mapping[str, Any]], span_ms: float) -> list[dict[str, Any]]:
    if not gaps:
        return []
    shown = sorted(sorted(gaps, key=lambda gap: -gap["length"])[:MAX_GAPS], key=lambda gap: gap["base"])
    return [
        {
            "type": "bar",
            "orientation": "h",
            "uid": "gaps",
            "name": "idle",
            "ids": [f"{gap['row']['run_id']}/{gap['row']['fence']}" for gap in shown],
            "base": [gap["base"] for gap in shown],
            "x": [gap["length"] for gap in shown],
            "y": [IDLE_ROW] * len(shown),
            "width": 0.5,
            "text": [milliseconds(gap["length"]) if gap["length"] > LABELLED_SHARE * span_ms else "" for gap in shown],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "cliponaxis": True,
            "customdata": [[milliseconds(gap["length"]), count(gap["row"]["fence"])] for gap in shown],
            "hovertemplate": "<b>device idle %{customdata[0]}</b><br>before plan %{customdata[1]}<extra></extra>",
            "marker": {"color": IDLE_COLOUR, "opacity": 0.55, "line": {"width": 0.7, "color": IDLE_COLOUR}},
        }
    ]


def hover_fields(row: Row) -> list[str]:
    """What PLAN_HOVER shows of one plan. Names are escaped: Plotly reads a few HTML tags."""
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


def _decades(binned: Binned) -> list[int]:
    """The powers of ten, of ms, that hold every extreme."""
    lengths = [max(mark.length_ns, 1000) / 1e6 for mark in (*binned.longest, *binned.gaps)] or [1.0]
    return [math.floor(math.log10(min(lengths)) - 0.1), math.ceil(math.log10(max(lengths)) + 0.1)]


def _band(row: int) -> dict[str, Any]:
    """The height of a row that stands for all of the time, behind the share that was busy."""
    place = {"xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": row - ROW_HEIGHT / 2, "y1": row + ROW_HEIGHT / 2}
    return {"type": "rect", "layer": "below", **place, "fillcolor": "rgba(128,136,148,0.12)", "line": {"width": 0}}


def _event_shapes(
    events: Events, since_ms: float, until_ms: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Notes and shapes: policy changes and starts as lines over the whole height, holes of the trace as bands."""
    shapes: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    span_ms = until_ms - since_ms
    last_ms = float("-inf")
    for change in events.changes:
        at_ms = change.at.timestamp() * 1e3
        line = {"color": CHANGE_COLOUR, "width": 1.4, "dash": "dash" if change.at_start else "solid"}
        shapes.append({"type": "line", "x0": at_ms, "x1": at_ms, "y0": 0, "y1": 1, "yref": "paper", "line": line})
        late = at_ms > until_ms - span_ms * CLIPPED_SHARE
        room = LABELLED_SHARE + (CLIPPED_SHARE if late else 0)
        if at_ms - last_ms > span_ms * room and len(notes) < MOST_LABELS:
            note = _note(at_ms, f"{'start, ' if change.at_start else ''}policy {change.version}")
            notes.append(note | ({"xanchor": "right"} if late else {}))
            last_ms = at_ms
    for hole in events.holes:
        x0, x1 = hole.since.timestamp() * 1e3, hole.until.timestamp() * 1e3
        band = {"x0": x0, "x1": max(x1, x0 + span_ms / 500), "y0": 0, "y1": 1, "yref": "paper", "layer": "below"}
        shapes.append({"type": "rect", **band, "fillcolor": HOLE_COLOUR, "opacity": 0.22, "line": {"width": 0}})
    if events.holes:
        first = events.holes[-1]
        notes.append(_note(first.since.timestamp() * 1e3, "trace gap") | {"y": 0})
    return notes, shapes


def _note(at_ms: float, text: str) -> dict[str, Any]:
    place = {"x": at_ms, "y": 1, "yref": "paper", "yanchor": "bottom", "xanchor": "left", "showarrow": False}
    return {**place, "text": text, "font": {"size": 11}}


def _layout(device_rows: Sequence[str], extremes_px: int, lives: Sequence[str]) -> dict[str, Any]:
    """Three areas under each other, as high as what they hold."""
    parts = [SHARE_ROWS_PX if extremes_px else SLOT_ROW_PX * len(device_rows), extremes_px, LIFE_ROW_PX * len(lives)]
    inside = sum(parts) + BETWEEN_PX * (sum(part > 0 for part in parts) - 1)
    domains = []
    top = float(inside)
    for part in parts:
        domains.append([max(0.0, (top - part) / inside), top / inside])
        top -= part + BETWEEN_PX if part else 0
    names = list(device_rows)
    places = [IDLE_ROW if name == "idle" else -index for index, name in enumerate(names)]
    return {
        "height": AROUND_PX + inside,
        "margin": {"l": 8, "r": 12, "t": 24, "b": 40},
        "barmode": "overlay",
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {"align": "left"},
        "dragmode": "zoom",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": {
            "type": "date",
            "automargin": True,
            "anchor": "free",
            "position": 0,
            "title": {"text": "time, UTC", "font": {"size": 12}},
            "showgrid": True,
        },
        "yaxis": {
            **_rows_axis(names, places, domains[0]),
            "range": [min(places) - 0.5, 0.5],
            "showgrid": False,
        },
        "yaxis2": {
            "type": "log",
            "domain": domains[1],
            "visible": extremes_px > 0,
            **UNMEASURED,
            "fixedrange": True,
            "automargin": True,
            "tickmode": "array",
            "tickvals": [10.0**power for power in range(-3, 8)],
            "ticktext": DECADES,
            "ticksuffix": "  ",
            "title": {"text": "longest", "font": {"size": 12}},
        },
        "yaxis3": {
            **_rows_axis(lives, [-index for index in range(len(lives))], domains[2]),
            "range": [0.5 - max(len(lives), 1), 0.5],
            "visible": bool(lives),
            "showgrid": False,
        },
    }


def _rows_axis(names: Sequence[str], places: Sequence[float], domain: Sequence[float]) -> dict[str, Any]:
    return {
        "domain": list(domain),
        "tickmode": "array",
        "tickvals": list(places),
        "ticktext": list(names),
        "ticksuffix": "  ",
        "automargin": True,
        "fixedrange": True,
        "zeroline": False,
        **UNMEASURED,
    }
