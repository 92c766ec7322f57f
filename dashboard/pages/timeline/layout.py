"""What the timeline page consists of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard.formatting import words
from dashboard.grids import grid
from dashboard.markup import aria
from dashboard.pages.timeline import ids
from dashboard.pages.timeline.tables import COLUMNS
from dashboard.pages.timeline.view import COLOURINGS, View, timeline_query
from dashboard.pages.timeline.wording import filter_note
from dashboard.routing import TIMELINE_PATH, path_with
from dashboard.span_picker import offered, short, unread_note
from dashboard.timeline_records import Filters
from service.store.queries import KINDS, OUTCOMES, REASONS

TICK_MS = 1000
NEWEST_LABEL = "Newest 200"
NOTHING_DRAWN: Any = {
    "data": [],
    "layout": {
        "height": 240,
        "xaxis": {"visible": False},
        "yaxis": {"visible": False},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "annotations": [{"text": "Reading the plans…", "showarrow": False, "xref": "paper", "yref": "paper"}],
    },
}
GRAPH_CONFIG: Any = {
    "displayModeBar": False,
    "responsive": True,
    # A double click follows the newest plans again: the server gives the range.
    "doubleClick": "autosize",
    # Plotly's own buttons can send the figure to its cloud service.
    "showSendToCloud": False,
    "showEditInChartStudio": False,
    "plotlyServerURL": "",
}
MOVES = (
    ("earlier", "←", "Earlier (left arrow)"),
    ("later", "→", "Later (right arrow)"),
    ("out", "−", "Zoom out (minus)"),
    ("in", "+", "Zoom in (plus)"),
)
CHART_WORDS = (
    "Plans in time; the text and the table below say the same. "
    "Arrow keys move, plus and minus zoom, 0 follows the newest."
)


def layout(view: View, runs: Sequence[str], versions: Sequence[int]) -> Any:
    """The page before its first data; everything else arrives by callback. `runs`, `versions`: for the filters."""
    return html.Div(
        [
            dcc.Interval(id=ids.TICK, interval=TICK_MS),
            *(dcc.Store(id=name) for name in (ids.STATE, ids.ASK, ids.NOTED, ids.CHOSEN, ids.OPENED, ids.PAUSED)),
            dcc.Store(id=ids.BUSY, data=False),
            dcc.Store(id=ids.QUERY, data=timeline_query(view)),
            html.Div(id=ids.PROBLEM, role="status"),
            html.Section(_body(view, runs, versions), id=ids.BODY),
            html.Section(id=ids.EMPTY, hidden=True),
            html.Section(
                [html.H2("The last minute"), html.Div("Reading…", id=ids.MINUTE)],
                className="card minute timeline-minute",
            ),
        ]
    )


def _body(view: View, runs: Sequence[str], versions: Sequence[int]) -> list[Any]:
    note = html.Span(filter_note(view.filters), id=ids.NOTES, className="filter-note")
    return [
        html.Div([html.H1("Timeline"), note, html.Div(className="spacer"), _switches(view)], className="title-row"),
        html.Div([html.Div(spans(view), id=ids.SPANS), _moves()], className="timeline-moves"),
        _filters(view.filters, runs, versions),
        html.Div(
            [
                html.Div(
                    dcc.Graph(id=ids.GRAPH, figure=NOTHING_DRAWN, config=GRAPH_CONFIG, className="timeline-graph"),
                    id=ids.FRAME,
                    className="timeline-frame",
                    tabIndex="0",
                    role="group",
                    **aria(label=CHART_WORDS),
                ),
                html.P(id=ids.SHOWN, className="shown-note digits", role="status"),
                html.P(id=ids.LEGEND, className="legend-note"),
                html.P(
                    "Select a bar to open its plan or to look closer; drag to zoom, or turn the wheel with Ctrl; "
                    "double-click to follow the newest again.",
                    className="legend-note",
                ),
                html.Div(id=ids.EVENTS, className="timeline-events digits"),
            ],
            className="card",
        ),
        html.H2("Plans", id=ids.TABLE_TITLE),
        grid(ids.GRID, COLUMNS, [], height_px=420, row_id="id", label="Plans of the chart"),
    ]


def _switches(view: View) -> Any:
    switches = [
        dmc.SegmentedControl(
            id=ids.BY,
            data=[{"value": by, "label": f"By {by}"} for by in COLOURINGS],
            value=view.by,
            size="sm",
            **aria(label="What the colours stand for"),
        ),
        dmc.Switch(id=ids.LIVE, label="Live", checked=view.follows, size="sm"),
    ]
    return html.Div(switches, className="controls")


def spans(view: View) -> Any:
    """Links to the newest plans and to spans that move on; assets/timeline.js follows them without a new page."""
    filtered = View(None, view.by, view.filters)
    here = None if view.span is None else view.span.last
    links = [_span_link(NEWEST_LABEL, f"{TIMELINE_PATH}{timeline_query(filtered)}", "", here=view.span is None)]
    for last in offered(here):
        query = timeline_query(filtered).removeprefix("?")
        href = path_with(TIMELINE_PATH, last=last) + (f"&{query}" if query else "")
        links.append(_span_link(short(last), href, last, here=last == here))
    links += [] if view.span is None else unread_note(view.span)
    return html.Div(links, className="timeline-spans", role="group", **aria(label="Span of time"))


def _span_link(words_: str, href: str, last: str, *, here: bool) -> Any:
    marks = {"data-last": last, **(aria(current="true") if here else {})}
    return html.A(words_, href=href, className="timeline-span here" if here else "timeline-span", **marks)


def _moves() -> Any:
    buttons = [
        html.Button(sign, type="button", title=title, **{**aria(label=title), "data-move": move})
        for move, sign, title in MOVES
    ]
    return html.Div(buttons, className="timeline-buttons", role="group", **aria(label="Move and zoom"))


def _filters(chosen: Filters, runs: Sequence[str], versions: Sequence[int]) -> Any:
    version = None if chosen.policy_version is None else str(chosen.policy_version)
    fields = [
        _select("kind", "Kind", KINDS, chosen.kind),
        _select("reason", "Reason", REASONS, chosen.reason),
        _select("outcome", "Outcome", OUTCOMES, chosen.outcome),
        _select("policy", "Policy version", [str(one) for one in versions], version),
        _select("run", "Engine run", runs, chosen.run),
        dmc.TextInput(
            id=ids.filter_field("request"), label="Request", placeholder="any", value=chosen.request or "", size="sm",
            debounce=600,
        ),
    ]  # fmt: skip
    is_open = any(getattr(chosen, name) is not None for name in ("run", "kind", "reason", "outcome", "policy_version"))
    return html.Details(
        [html.Summary("Filters"), html.Div(fields, className="timeline-fields")],
        id=ids.FILTERS,
        className="timeline-filters",
        open=is_open or chosen.request is not None,
    )


def _select(name: str, label: str, offered: Sequence[str], value: str | None) -> Any:
    """A choice of one or none; a value of the address that is not offered is offered too."""
    options = [*offered, *([value] if value is not None and value not in offered else [])]
    return dmc.Select(
        id=ids.filter_field(name),
        label=label,
        data=[{"value": option, "label": option if name == "run" else words(option)} for option in options],
        value=value,
        placeholder="any",
        clearable=True,
        searchable=True,
        size="sm",
    )


def curl_command(origin: str, model: str) -> str:
    """A first request to copy into a shell. `origin` is this server's address."""
    question = "Why is the sky blue?"
    return (
        f"curl {origin}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        f'  -d \'{{"model": "{model}", "max_tokens": 64,\n'
        f'       "messages": [{{"role": "user", "content": "{question}"}}]}}\''
    )


def empty_state(model: str) -> list[Any]:
    """What stands in for the timeline while there is no plan. The browser puts its own origin into the command."""
    return [
        html.H1("Nothing has been decided yet"),
        html.P("Send a request, and every graph that the scheduler picks for it appears here within a second:"),
        html.Div(
            [
                html.Pre(html.Code(curl_command("http://127.0.0.1:8000", model), id=ids.CURL)),
                dcc.Clipboard(target_id=ids.CURL, title="Copy the command", className="copy"),
            ],
            className="command",
        ),
    ]
