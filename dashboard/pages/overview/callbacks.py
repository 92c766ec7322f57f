"""How the overview keeps fresh: this moment each second, the span of time each quarter of a minute while it moves.

Both only while the tab is seen, and the next question waits for the last answer (assets/overview.js).
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import dash
import sqlalchemy as sa
from dash import Input, Output, State

from dashboard import checks
from dashboard.context import ControlRoom
from dashboard.errors import RefusedInput
from dashboard.markup import in_browser
from dashboard.pages.overview import ids
from dashboard.pages.overview.details import chart_words, details, span_words
from dashboard.pages.overview.layout import CHARTS, figures, legend
from dashboard.pages.overview.tiles import fingerprint, tiles, verdict
from dashboard.queries.overview import read_now
from dashboard.queries.trends import read_trends
from dashboard.span import Span, last_length, last_span
from service.store.errors import StoreError


def register(app: dash.Dash, room: ControlRoom) -> None:
    """Adds the page's callbacks to `app`."""
    _register_moment(app, room)
    _register_trends(app, room)
    for tick, busy, ask in ((ids.TICK, ids.BUSY, ids.ASK), (ids.TREND_TICK, ids.TREND_BUSY, ids.TREND_ASK)):
        in_browser(
            app, "askWhileSeen", Output(ask, "data"), Input(tick, "n_intervals"), State(busy, "data"), first_call=False
        )
    zooms = [Input(chart, "relayoutData") for chart, _, _ in CHARTS]
    in_browser(app, "zoomSpan", Output(ids.ZOOM, "data"), *zooms, first_call=False)


def _register_moment(app: dash.Dash, room: ControlRoom) -> None:
    @app.callback(
        Output(ids.VERDICT, "children"),
        Output(ids.TILES, "children"),
        Output(ids.LIVE, "data"),
        Output(ids.PROBLEM, "children"),
        Input(ids.ASK, "data"),
        State(ids.LIVE, "data"),
        running=[(Output(ids.BUSY, "data"), True, False)],
        prevent_initial_call=True,
    )
    async def show_moment(_asked: object, shown: object) -> tuple[Any, Any, Any, Any]:
        at = dt.datetime.now(dt.UTC)
        try:
            now = await room.read(lambda engine: read_now(engine, at))
        except StoreError as error:
            same = dash.no_update
            return same, same, None, f"This moment cannot be read now: {error}"
        found = tiles(now)
        said = fingerprint(found, now)
        if said == shown:
            raise dash.exceptions.PreventUpdate
        return verdict(now), [tile.render() for tile in found], said, None


def _register_trends(app: dash.Dash, room: ControlRoom) -> None:
    @app.callback(
        *[Output(chart, "figure") for chart, _, _ in CHARTS],
        *[Output(ids.words(chart), "children") for chart, _, _ in CHARTS],
        *[Output(ids.legend(chart), "children") for chart, _, _ in CHARTS],
        Output(ids.TREND_WORDS, "children"),
        Output(ids.DETAILS, "children"),
        Input(ids.TREND_ASK, "data"),
        State(ids.SPAN, "data"),
        running=[(Output(ids.TREND_BUSY, "data"), True, False)],
        prevent_initial_call=True,
    )
    async def show_trends(_asked: object, last: object) -> tuple[Any, ...]:
        span = read_last(last, dt.datetime.now(dt.UTC))

        def query(engine: sa.Engine) -> tuple[Any, ...]:
            trends = read_trends(engine, span)
            said = chart_words(trends)
            keys = [key for _, key, _ in CHARTS]
            texts = [*(said[key] for key in keys), *(legend(key, trends) for key in keys)]
            return (*figures(trends), *texts, span_words(trends), details(trends))

        try:
            return await room.read(query)
        except StoreError:
            raise dash.exceptions.PreventUpdate from None  # the moment's callback says so within a second


def read_last(value: object, now: dt.datetime) -> Span:
    """The moving span of which the browser names the length. Raises RefusedInput."""
    last = checks.text("span", value, checks.MAX_NAME)
    if last_length(last) is None:
        raise RefusedInput("span", "must be a length of time, such as 90m")
    return last_span(last, now)
