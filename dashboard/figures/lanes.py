"""Requests as lanes: waiting, reading the prompt and answering as one thin bar, the plans that served it on top."""

from __future__ import annotations

import datetime as dt
import html
from collections.abc import Callable
from typing import Any

from dashboard.formatting import count, milliseconds, utc_clock, words
from dashboard.timeline_records import Life, Lives

PHASES = ("waiting", "prompt", "answer")
PHASE_COLOURS = {"waiting": "#d9a441", "prompt": "#3b7ddd", "answer": "#17916b"}
MAX_LABEL = 18


def life_labels(lives: Lives) -> list[str]:
    """The names of the lanes, shortened from the left, where ids of one server are alike."""
    names = [str(life.row["request_id"]) for life in lives.lives]
    return [html.escape(name if len(name) <= MAX_LABEL else f"…{name[1 - MAX_LABEL :]}") for name in names]


def life_traces(
    lives: Lives, by: str, colour: Callable[[str], str], until: dt.datetime, most_marks: int
) -> list[dict[str, Any]]:
    """Thin bars of the phases and, where single plans are shown, what served each request. On the third y axis."""
    phases = [
        (index, life, phase, start, end)
        for index, life in enumerate(lives.lives)
        for phase, start, end in _phases(life, until)
    ][: max(0, most_marks)]
    left = most_marks - len(phases)
    served = [(index, life, one) for index, life in enumerate(lives.lives) for one in life.served][: max(0, left)]
    traces = []
    if phases:
        traces.append(
            {
                **_bar("phases", 0.3),
                "ids": [request_id(life, index) for index, (_, life, *_) in enumerate(phases)],
                "base": [start for *_, start, _ in phases],
                "x": [end - start for *_, start, end in phases],
                "y": [-index for index, *_ in phases],
                "customdata": [
                    [html.escape(str(life.row["request_id"])), phase, milliseconds(end - start), _told(life)]
                    for _, life, phase, start, end in phases
                ],
                "hovertemplate": "<b>%{customdata[0]}</b><br>%{customdata[1]} %{customdata[2]}"
                "<br>%{customdata[3]}<extra></extra>",
                "marker": {"color": [PHASE_COLOURS[phase] for _, _, phase, *_ in phases], "opacity": 0.6},
            }
        )
    if served:
        traces.append(
            {
                **_bar("served", 0.84),
                "ids": [request_id(life, index) for index, (_, life, _) in enumerate(served)],
                "base": [one.since_us / 1000 for *_, one in served],
                "x": [(one.until_us - one.since_us) / 1000 for *_, one in served],
                "y": [-index for index, *_ in served],
                "customdata": [
                    [
                        html.escape(str(life.row["request_id"])),
                        f"{count(one.plans)} {html.escape(words(one.kind))} plan{'' if one.plans == 1 else 's'}",
                        html.escape(words(one.reason)),
                        milliseconds((one.until_us - one.since_us) / 1000),
                    ]
                    for _, life, one in served
                ],
                "hovertemplate": "<b>%{customdata[0]}</b><br>served by %{customdata[1]} (%{customdata[2]}), "
                "%{customdata[3]}<extra></extra>",
                "marker": {"color": [colour(one.kind if by == "kind" else one.reason) for *_, one in served]},
            }
        )
    return traces


def request_id(life: Life, index: int) -> str:
    """The id of a mark that opens a request's page. Plotly draws one of those marks of a trace that have equal ids."""
    return f"request:{life.row['run_id']}\n{life.row['request_id']}\n{index}"


def _bar(uid: str, width: float) -> dict[str, Any]:
    return {"type": "bar", "orientation": "h", "uid": uid, "name": uid, "yaxis": "y3", "width": width}


def _phases(life: Life, until: dt.datetime) -> list[tuple[str, float, float]]:
    """The phases that have begun, each with its start and end in ms since 1970; the last one runs to `until`."""
    row = life.row
    arrived, first, finished = row["arrived_at"], row["first_output_at"], row["finished_at"]
    graph = life.graph_at if life.graph_at is None or first is None else min(life.graph_at, first)
    end = finished or until
    bounds = [arrived, graph, first, end]
    found = []
    for phase, start, stops in zip(PHASES, bounds[:-1], (bounds[1:], bounds[2:], bounds[3:]), strict=True):
        stop = next((at for at in stops if at is not None), end)
        if start is not None and stop > start:
            found.append((phase, start.timestamp() * 1e3, stop.timestamp() * 1e3))
    return found


def _told(life: Life) -> str:
    row = life.row
    ended = "still running" if row["finished_at"] is None else f"ended: {words(row['finish_reason'] or 'unknown')}"
    tokens = f"{count(row['prompt_tokens'])} prompt tokens, {count(row['output_tokens'])} output tokens"
    return html.escape(f"arrived {utc_clock(row['arrived_at'])} · {tokens} · {ended}")
