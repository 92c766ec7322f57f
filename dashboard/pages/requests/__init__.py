"""Requests pages: the requests of a span, searched on the server, and one request's life."""

from __future__ import annotations

import datetime as dt
from typing import Any

import dash
import sqlalchemy as sa
from dash import Input, Output

from dashboard.context import ControlRoom
from dashboard.markup import in_browser
from dashboard.pages.requests import ids
from dashboard.pages.requests.address import read_address
from dashboard.pages.requests.life import life_page
from dashboard.pages.requests.listing import listing
from dashboard.queries.life import Life, read_life
from dashboard.queries.requests import Found, read_requests
from dashboard.routing import REQUESTS_PATH, path_with
from dashboard.shell import message_page

__all__ = ["one_request", "page", "register"]


async def page(room: ControlRoom, search: str) -> Any:
    """The list that the address asks for. Raises what ControlRoom.read does."""
    wanted = read_address(search, dt.datetime.now(dt.UTC))

    def query(engine: sa.Engine) -> Found:
        return read_requests(engine, wanted)

    return listing(wanted, await room.read(query), search)


async def one_request(room: ControlRoom, run_id: str, request_id: str) -> Any:
    """One request's life, or a page that says that it is not stored. Raises what ControlRoom.read does."""
    now = dt.datetime.now(dt.UTC)

    def query(engine: sa.Engine) -> Any:
        found: Life | None = read_life(engine, run_id, request_id, now)
        # Made in the thread too: thousands of bars are some ms that no stream should wait for.
        return None if found is None else life_page(found)

    made = await room.read(query)
    if made is not None:
        return made
    text = (
        f"Run {run_id} has no request {request_id} in the trace store. It may be mistyped, pruned, or of another run."
    )
    return message_page(
        "No such request", text, link=("Search for it", path_with(REQUESTS_PATH, q=request_id, last="7d"))
    )


def register(app: dash.Dash, _room: ControlRoom) -> None:
    """Adds the page's callbacks to `app`; both run in the browser."""
    in_browser(
        app,
        "filterRequests",
        Output(ids.ASKED, "data"),
        Input(ids.TEXT, "value"),
        Input(ids.FINISH, "value"),
        Input(ids.MODEL, "value"),
        Input(ids.RUN, "value"),
        Input(ids.ORDER, "value"),
        first_call=False,
    )
    in_browser(app, "openLifePlan", Output(ids.OPENED, "data"), Input(ids.LIFE, "clickData"), first_call=False)
