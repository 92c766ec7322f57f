"""One request's life as a picture: phases and plans in time, and the gaps between outputs. Rows in, plain dict out."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from dashboard.formatting import milliseconds, shape_words, words
from dashboard.palette import kind_colour
from dashboard.score import Row

PHASES = (
    ("tokenize_ms", "tokenize", "#8a7f5c"),
    ("queue_ms", "queue", "#b5831d"),
    ("prefill_ms", "prefill", "#3b7ddd"),
    ("decode_ms", "decode", "#17916b"),
    ("publish_ms", "publish", "#808894"),
)
WAIT_COLOUR = "#d9534f"
MAX_MARKS = 4000
PHASE_ROW, PLAN_ROW, WAIT_ROW = "phases", "its plans", "waits"


def phases_of(request: Row) -> list[tuple[str, str, float]]:
    """(name, colour, ms) of the phases that are known, in their order; they add up to the request's time."""
    return [(name, colour, float(request[key])) for key, name, colour in PHASES if request[key] is not None]


def life_figure(
    request: Row, lanes: Sequence[Row], waits: Sequence[tuple[float, float, str]], arrived_ns: int
) -> dict[str, Any]:
    """Phases, plans and waits over the ms since arrival.

    `lanes` are the request's with the columns of their plans, `waits` (start, length, words) in ms since arrival;
    `arrived_ns` is its arrival on the clock of the lanes. Of more than MAX_MARKS plans the longest are drawn.
    """
    ran = [lane for lane in lanes if lane["started_ns"] is not None and lane["completed_ns"] is not None]
    if len(ran) > MAX_MARKS:
        kept = sorted(ran, key=lambda lane: lane["started_ns"] - lane["completed_ns"])[:MAX_MARKS]
        ran = sorted(kept, key=lambda lane: lane["started_ns"])
    traces = [*_phase_traces(request), *_plan_traces(ran, arrived_ns)]
    if waits:
        traces.append(
            _bars(
                WAIT_ROW,
                "waits",
                WAIT_COLOUR,
                [(start, length) for start, length, _ in waits],
                [html.escape(text) for _, _, text in waits],
            )
        )
    rows = [WAIT_ROW, PLAN_ROW, PHASE_ROW] if waits else [PLAN_ROW, PHASE_ROW]
    return {"data": traces, "layout": _life_layout(rows)}


def _phase_traces(request: Row) -> list[dict[str, Any]]:
    traces, start = [], 0.0
    for name, colour, length in phases_of(request):
        label = f"{name} {milliseconds(length)}"
        trace = _bars(PHASE_ROW, name, colour, [(start, length)], [label])
        traces.append(trace)
        start += length
    return traces


def _plan_traces(lanes: Sequence[Row], arrived_ns: int) -> list[dict[str, Any]]:
    traces = []
    for kind in dict.fromkeys(lane["kind"] for lane in lanes):
        of_kind = [lane for lane in lanes if lane["kind"] == kind]
        spans = [
            ((lane["started_ns"] - arrived_ns) / 1e6, (lane["completed_ns"] - lane["started_ns"]) / 1e6)
            for lane in of_kind
        ]
        texts = [
            f"plan {lane['fence']:,}: {html.escape(shape_words(lane))}<br>{_work(lane)} · {milliseconds(span[1])}"
            for lane, span in zip(of_kind, spans, strict=True)
        ]
        trace = _bars(PLAN_ROW, words(kind), kind_colour(kind), spans, texts)
        trace["ids"] = [f"{lane['run_id']}/{lane['fence']}" for lane in of_kind]
        traces.append(trace)
    return traces


def _work(lane: Row) -> str:
    if lane["prompt_tokens"]:
        return f"{lane['prompt_tokens']:,} prompt tokens"
    return f"{lane['committed_tokens']:,} output token{'' if lane['committed_tokens'] == 1 else 's'}"


def _bars(
    row: str, name: str, colour: str, spans: Sequence[tuple[float, float]], texts: Sequence[str]
) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "base": [start for start, _ in spans],
        "x": [length for _, length in spans],
        "y": [row] * len(spans),
        "customdata": list(texts),
        "hovertemplate": "%{customdata}<br>%{base:,.1f} ms after arrival<extra></extra>",
        "marker": {"color": colour, "line": {"width": 0.7, "color": colour}},
    }


def _life_layout(rows: Sequence[str]) -> dict[str, Any]:
    return {
        "height": 60 + 46 * len(rows),
        "margin": {"l": 8, "r": 12, "t": 6, "b": 40},
        "barmode": "overlay",
        "bargap": 0.3,
        # Phases stand in the list above with their colours, waits have a row of their own.
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {"align": "left"},
        "dragmode": "zoom",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": {
            "automargin": True,
            "rangemode": "tozero",
            "title": {"text": "ms since arrival", "font": {"size": 12}},
        },
        "yaxis": {
            "type": "category",
            "automargin": True,
            "fixedrange": True,
            "ticksuffix": "  ",
            "categoryorder": "array",
            "categoryarray": list(rows),
        },
    }


def gaps_figure(gaps: Sequence[tuple[float, float, int]]) -> dict[str, Any]:
    """The gap before each output, (ms since arrival, gap in ms, fence), the worst one marked.

    Of more than MAX_MARKS gaps the longest are drawn.
    """
    shown = sorted(sorted(gaps, key=lambda gap: -gap[1])[:MAX_MARKS])
    worst = max(shown, key=lambda gap: gap[1], default=None)
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines+markers" if len(shown) <= 200 else "lines",
            "name": "gap before an output",
            "x": [at for at, _, _ in shown],
            "y": [gap for _, gap, _ in shown],
            "customdata": [f"plan {fence:,}: {milliseconds(gap)}" for _, gap, fence in shown],
            "hovertemplate": "%{customdata}<extra></extra>",
            "line": {"color": "#17916b", "width": 1.4},
            "marker": {"size": 4, "color": "#17916b"},
        }
    ]
    if worst is not None:
        data.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "name": "the worst",
                "x": [worst[0]],
                "y": [worst[1]],
                "text": [milliseconds(worst[1])],
                "textposition": "middle left" if worst[0] > (shown[0][0] + shown[-1][0]) / 2 else "middle right",
                "hoverinfo": "skip",
                "marker": {"size": 11, "symbol": "circle-open", "color": WAIT_COLOUR, "line": {"width": 2}},
            }
        )
    return {"data": data, "layout": _gap_layout()}


def _gap_layout() -> dict[str, Any]:
    return {
        "height": 210,
        "margin": {"l": 8, "r": 12, "t": 10, "b": 40},
        "showlegend": False,
        "hovermode": "closest",
        "dragmode": "zoom",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": {"automargin": True, "zeroline": False, "title": {"text": "ms since arrival", "font": {"size": 12}}},
        "yaxis": {"automargin": True, "rangemode": "tozero", "title": {"text": "gap, ms", "font": {"size": 12}}},
    }
