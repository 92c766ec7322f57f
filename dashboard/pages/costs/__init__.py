"""Costs page: the catalog as heat maps, how a graph's duration drifted, and predicted against observed."""

from __future__ import annotations

import datetime as dt
from typing import Any

import dash
import sqlalchemy as sa
from dash import Input, Output, State

from dashboard.context import ControlRoom
from dashboard.markup import in_browser
from dashboard.pages.costs import ids
from dashboard.pages.costs.layout import layout
from dashboard.queries.costs import Costs, read_costs, read_drift
from dashboard.routing import first, run_filter
from dashboard.score import Row
from dashboard.span import read_span

__all__ = ["page", "register"]


async def page(room: ControlRoom, search: str) -> Any:
    """The page of a run's costs. Raises what ControlRoom.read does."""
    span = read_span(search, dt.datetime.now(dt.UTC))
    wanted = run_filter(search)

    def query(engine: sa.Engine) -> Any:
        found = read_costs(engine, span, wanted)
        chosen = chosen_graph(found, first(search, "graph"))
        drift = None
        if chosen is not None and found.catalog.run_id is not None:
            drift = read_drift(engine, span, found.catalog.run_id, chosen)
        return layout(found, drift, chosen, span, search)

    return await room.read(query)


def chosen_graph(found: Costs, label: str | None) -> Row | None:
    """The graph that the address names, else the one with the most device time, else the first one that is known."""
    rows = found.catalog.rows
    named = next((row for row in rows if row["shape"] == label), None)
    if named is not None or not rows:
        return named
    return max(rows, key=lambda row: (row["device_ms_sum"], row["cost_state"] != "unknown"))


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
