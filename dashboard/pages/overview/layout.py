"""What the overview consists of. It is complete when it is sent; callbacks keep it fresh."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from dashboard.figures.trend import (
    between_figure,
    busy_figure,
    first_token_figure,
    kinds_in_order,
    tokens_figure,
)
from dashboard.formatting import capital, words
from dashboard.markup import aria
from dashboard.pages.overview import ids
from dashboard.pages.overview.details import chart_words, details, span_words
from dashboard.pages.overview.tiles import fingerprint, tiles, verdict
from dashboard.palette import SERIES_COLOURS, kind_colour
from dashboard.queries.overview import Now
from dashboard.queries.trends import Trends
from dashboard.routing import OVERVIEW_PATH
from dashboard.span_picker import span_picker

TICK_MS = 1000
TREND_TICK_MS = 15_000
GRAPH_CONFIG: Any = {"displayModeBar": False, "responsive": True, "showSendToCloud": False, "plotlyServerURL": ""}
NOTE = (
    "Times are UTC. The time between tokens is each request's mean: from its first to its last token, divided by the "
    "tokens after the first."
)


def layout(now: Now, trends: Trends, search: str) -> Any:
    """The page of this moment and of a span of time."""
    shown = tiles(now)
    moves = trends.span.last is not None
    return html.Div(
        [
            dcc.Interval(id=ids.TICK, interval=TICK_MS),
            dcc.Interval(id=ids.TREND_TICK, interval=TREND_TICK_MS, disabled=not moves),
            dcc.Store(id=ids.ASK),
            dcc.Store(id=ids.BUSY, data=False),
            dcc.Store(id=ids.TREND_ASK),
            dcc.Store(id=ids.TREND_BUSY, data=False),
            dcc.Store(id=ids.LIVE, data=fingerprint(shown, now)),
            dcc.Store(id=ids.SPAN, data=trends.span.last),
            dcc.Store(id=ids.ZOOM),
            html.Div(
                [html.Div([html.H1("Overview"), html.Div(_subtitle(now), className="subtitle")])],
                className="title-row",
            ),
            html.Div(verdict(now), id=ids.VERDICT, role="status", className="verdicts"),
            html.H2(["Now ", html.Span("and in the last minute", className="muted")], className="now-heading"),
            html.Dl([tile.render() for tile in shown], id=ids.TILES, className="tiles", **aria(label="This moment")),
            html.Div(id=ids.PROBLEM, role="status", className="bad"),
            html.Div(
                [
                    html.H2(capital(trends.span.words), className="span-heading"),
                    html.Div(className="spacer"),
                    span_picker(trends.span, OVERVIEW_PATH, search),
                ],
                className="title-row",
            ),
            html.Div(_charts(trends), className="trend-grid"),
            html.P([html.Span(span_words(trends), id=ids.TREND_WORDS), " ", NOTE], className="subtitle"),
            html.Div(details(trends), id=ids.DETAILS, className="detail-grid"),
        ]
    )


def _subtitle(now: Now) -> str:
    return "" if now.run is None else f"{now.run['model']} on {now.run['device']} · run {now.run['run_id']}"


def figures(trends: Trends) -> list[dict[str, Any]]:
    """The four charts, in the order of CHARTS."""
    return [tokens_figure(trends), first_token_figure(trends), between_figure(trends), busy_figure(trends)]


CHARTS = (
    (ids.TOKENS, "tokens", "Output, tokens/s"),
    (ids.FIRST_TOKEN, "first_token", "First token, ms"),
    (ids.BETWEEN, "between", "Time per token, ms"),
    (ids.DEVICE, "device", "Device, % busy"),
)
"""Component id, key of chart_words and legend, and title of each chart."""


def _charts(trends: Trends) -> list[Any]:
    said = chart_words(trends)
    return [
        html.Section(
            [
                html.Div(
                    [
                        html.H3(title),
                        html.Span(said[key], id=ids.words(chart)),
                        html.Span(legend(key, trends), id=ids.legend(chart), className="legend-entries"),
                    ],
                    className="chart-title",
                ),
                html.Div(
                    dcc.Graph(id=chart, figure=figure, config=GRAPH_CONFIG),
                    role="img",
                    **aria(label=f"{title} over time", describedby=ids.words(chart)),
                ),
            ],
            className="card trend",
        )
        for (chart, key, title), figure in zip(CHARTS, figures(trends), strict=True)
    ]


def legend(key: str, trends: Trends) -> list[Any]:
    """What the colours of a chart mean; nothing where there is one line."""
    if key == "device":
        names = [(words(kind), kind_colour(kind)) for kind in kinds_in_order(trends)]
    elif key == "tokens":
        names = []
    else:
        names = [("p50", SERIES_COLOURS["p50"]), ("p99", SERIES_COLOURS["p99"])]
    return [
        html.Span([html.Span(className="dot", style={"backgroundColor": colour}), name], className="kind-cell")
        for name, colour in names
    ]


def empty() -> Any:
    """What the page says before the first engine ran."""
    return html.Section(
        [
            html.H1("Overview"),
            html.P("No engine has run on this store yet, so there is nothing to look at."),
            html.P(["Start one with ", html.Code("helios serve"), " and this page fills by itself."]),
        ],
        className="message-page",
    )
