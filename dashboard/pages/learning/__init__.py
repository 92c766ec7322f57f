"""Learning page: acceptance and forecasts of drafts, what exploration costs and what it bought."""

from __future__ import annotations

import datetime as dt
from typing import Any

import dash
import sqlalchemy as sa
from dash import Input, Output, State

from dashboard.context import ControlRoom
from dashboard.markup import in_browser
from dashboard.pages.learning import ids
from dashboard.pages.learning.layout import layout
from dashboard.queries.learning import read_learning
from dashboard.routing import run_filter
from dashboard.span import read_span

__all__ = ["page", "register"]


async def page(room: ControlRoom, search: str) -> Any:
    """The page of what a run learned. Raises what ControlRoom.read does."""
    span = read_span(search, dt.datetime.now(dt.UTC))
    wanted = run_filter(search)

    def query(engine: sa.Engine) -> Any:
        return layout(read_learning(engine, span, wanted), span, search)

    return await room.read(query)


def register(app: dash.Dash, _room: ControlRoom) -> None:
    """Adds the page's callback to `app`; it runs in the browser."""
    in_browser(
        app,
        "chooseRun",
        Output(ids.RUN_ASKED, "data"),
        Input(ids.RUN, "value"),
        State(ids.RUN_ASKED, "data"),
        first_call=False,
    )
