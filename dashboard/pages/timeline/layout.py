"""What the timeline page consists of."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard import ids
from dashboard.figures.timeline import timeline_figure
from dashboard.glossary import TERMS
from dashboard.grids import grid, number, text
from dashboard.markup import aria
from dashboard.routing import timeline_path

LIMITS = (100, 200, 500, 1000, 2000)
MAX_PLANS = LIMITS[-1]
WINDOWS_S = {"1 min": 60, "10 min": 600, "1 h": 3600}
CHOICES: dict[str, str] = {
    **{str(limit): f"{limit:,} plans" for limit in LIMITS},
    **{name: f"last {name}" for name in WINDOWS_S},
}
DEFAULT_CHOICE = "200"
TICK_MS = 1000
GRAPH_CONFIG: Any = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "resetScale2d", "toImage"],
    # The window moves with the news, so there is no first range to go back to: a double click follows them again.
    "doubleClick": "autosize",
    # Plotly's own buttons can send the figure to its cloud service.
    "showSendToCloud": False,
    "showEditInChartStudio": False,
    "plotlyServerURL": "",
}

# The page is 1,230 px wide on a screen of 1,280 px; what people look for first fits into that.
COLUMNS = [
    text("committed_clock", "Committed", width=112, tooltip="UTC time of the decision", cellClass="digits"),
    text("plan", "Plan", width=72, cellRenderer="PlanLink", cellClass="digits", tooltip="Fence; opens the plan"),
    text("shape", "Graph", width=136, cellRenderer="KindCell"),
    text("reason", "Reason", width=96),
    text("outcome", "Outcome", width=98),
    number("selected_cost_ms", "Predicted", "milliseconds", width=92, tooltip="Duration that the decision used"),
    number("device_ms", "Observed", "milliseconds", width=92, tooltip="Duration on the device"),
    number("prompt_tokens", "Prompt", "count", width=76, tooltip="Prompt tokens consumed"),
    number("output_tokens", "Output", "count", width=76, tooltip="Output tokens committed"),
    number("active_rows", "Rows", "count", width=62, tooltip="Request rows in use"),
    number("queue_depth", "Queue", "count", width=72, tooltip="Plans submitted before it and not completed"),
    number("policy_version", "Policy", "count", width=70, tooltip="Policy version in force"),
    number("value_rate", "Score", width=78, tooltip="Value per ms, or undivided value of an unmeasured graph"),
    number("margin", "Margin", "margin", width=84, tooltip=TERMS["Margin"]),
    text("score_unit", "Unit", width=92, tooltip="Of score and margin"),
]


def layout(policy_version: int | None, request: str | None = None) -> Any:
    """The page before its first data; everything else arrives by callback."""
    return html.Div(
        [
            dcc.Interval(id=ids.TIMELINE_TICK, interval=TICK_MS),
            dcc.Store(id=ids.TIMELINE_ASK),
            dcc.Store(id=ids.TIMELINE_BUSY, data=False),
            dcc.Store(id=ids.TIMELINE_STRIP_BUSY, data=False),
            dcc.Store(id=ids.TIMELINE_DELTA),
            dcc.Store(id=ids.TIMELINE_CURSOR),
            dcc.Store(id=ids.TIMELINE_ZOOM),
            dcc.Store(id=ids.TIMELINE_POLICY, data=policy_version),
            dcc.Store(id=ids.TIMELINE_REQUEST, data=request),
            dcc.Store(id=ids.TIMELINE_STRIP_STATE),
            html.Div(id=ids.TIMELINE_STRIP, className="strip"),
            html.Section(
                [html.H2("The last minute"), html.Div(id=ids.TIMELINE_MINUTE)],
                className="card minute",
            ),
            html.Div(id=ids.TIMELINE_PROBLEM, role="status"),
            html.Section(_body(policy_version, request), id=ids.TIMELINE_BODY),
            html.Section(id=ids.TIMELINE_EMPTY, hidden=True),
        ]
    )


def _body(policy_version: int | None, request: str | None) -> list[Any]:
    return [
        html.Div(
            [html.H1("Timeline"), *_filter_note(policy_version, request), html.Div(className="spacer"), _controls()],
            className="title-row",
        ),
        html.Div(
            [
                dcc.Graph(
                    id=ids.TIMELINE_GRAPH,
                    figure=timeline_figure([], 0.0),
                    config=GRAPH_CONFIG,
                    className="timeline-graph",
                ),
                html.P(id=ids.TIMELINE_SHOWN, className="shown-note digits"),
                html.P(_legend(), className="legend-note"),
            ],
            className="card",
        ),
        html.H2("Plans"),
        grid(ids.TIMELINE_GRID, COLUMNS, [], height_px=420, row_id="id", label="The last plans, newest first"),
    ]


def _legend() -> list[Any]:
    return [
        "One bar is one plan, as long as the device was busy with it. ",
        html.Span([html.Span(className="swatch faint"), " still running"], className="legend-entry"),
        html.Span([html.Span(className="swatch hatched"), " failed, abandoned or lost"], className="legend-entry"),
        html.Span("Select a bar to open its plan; drag to zoom, double-click to follow the newest again."),
    ]


def _filter_note(policy_version: int | None, request: str | None) -> list[Any]:
    words = [
        *([f"of policy version {policy_version}"] if policy_version is not None else []),
        *([f"that served {request}"] if request is not None else []),
    ]
    if not words:
        return []
    link = dcc.Link("show all", href=timeline_path())
    return [html.Span([f"Only plans {' and '.join(words)} · ", link], className="filter-note")]


def _controls() -> Any:
    return html.Div(
        [
            html.Label("Show the", htmlFor=ids.TIMELINE_LIMIT),
            dmc.Select(
                id=ids.TIMELINE_LIMIT,
                data=[{"value": value, "label": label} for value, label in CHOICES.items()],
                value=DEFAULT_CHOICE,
                allowDeselect=False,
                size="sm",
                w=132,
            ),
            dmc.SegmentedControl(
                id=ids.TIMELINE_VIEW,
                data=[{"value": "all", "label": "All of them"}, {"value": "burst", "label": "Since the last pause"}],
                value="all",
                size="sm",
                **aria(label="Which part of the chosen plans the chart shows"),
            ),
            dmc.Switch(id=ids.TIMELINE_LIVE, label="Live", checked=True, size="sm"),
        ],
        className="controls",
    )


def curl_command(origin: str, model: str) -> str:
    """A first request to copy into a shell. `origin` is this server's address."""
    question = "Why is the sky blue?"
    return (
        f"curl {origin}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        f'  -d \'{{"model": "{model}", "max_tokens": 64,\n'
        f'       "messages": [{{"role": "user", "content": "{question}"}}]}}\''
    )


def empty_state(model: str, policy_version: int | None, request: str | None = None) -> list[Any]:
    """What stands in for the timeline while there is no plan. The browser puts its own origin into the command."""
    if request is not None:
        text_ = f"No plan that served {request} is stored."
        return [html.H1("Timeline"), html.P(text_), html.P(dcc.Link("Show all plans", href=timeline_path()))]
    if policy_version is not None:
        text_ = f"No plan was chosen under policy version {policy_version} yet."
        return [html.H1("Timeline"), html.P(text_), html.P(dcc.Link("Show all plans", href=timeline_path()))]
    return [
        html.H1("Nothing has been decided yet"),
        html.P("Send a request, and every graph that the scheduler picks for it appears here within a second:"),
        html.Div(
            [
                html.Pre(html.Code(curl_command("http://127.0.0.1:8000", model), id=ids.TIMELINE_CURL)),
                dcc.Clipboard(target_id=ids.TIMELINE_CURL, title="Copy the command", className="copy"),
            ],
            className="command",
        ),
    ]
