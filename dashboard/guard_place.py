"""Where a page other than the policy page shows the trial that runs: above everything else, while there is one."""

from __future__ import annotations

import datetime as dt
from typing import Any

import dash
from dash import Input, Output, State, dcc, html

from dashboard.context import ControlRoom
from dashboard.guard_card import guard_card
from dashboard.markup import in_browser
from service.control.errors import ControlError
from service.store.errors import StoreError

PLACE, TICK, ASK, BUSY = "trial-place", "trial-tick", "trial-ask", "trial-busy"
TICK_MS = 3000


async def with_trial(room: ControlRoom, page: Any) -> Any:
    """The page with the running trial above it. Raises StoreError."""
    if room.guards is None:
        return page
    guard = await room.guards.current()
    shown = [] if guard is None else guard_card(guard, dt.datetime.now(dt.UTC))
    parts = [
        dcc.Interval(id=TICK, interval=TICK_MS),
        dcc.Store(id=ASK),
        dcc.Store(id=BUSY, data=False),
        html.Div(shown, id=PLACE),
    ]
    return html.Div([*parts, page])


def register(app: dash.Dash, room: ControlRoom) -> None:
    """Adds the callback that keeps it fresh; none without a guard control."""
    guards = room.guards
    if guards is None:
        return
    # The next question waits for the last answer: Dash drops answers that are overtaken.
    in_browser(app, "askAgain", Output(ASK, "data"), Input(TICK, "n_intervals"), State(BUSY, "data"), first_call=False)

    @app.callback(
        Output(PLACE, "children"),
        Input(ASK, "data"),
        State(PLACE, "children"),
        running=[(Output(BUSY, "data"), True, False)],
        prevent_initial_call=True,
    )
    async def refresh(_asked: object, shown: object) -> Any:
        try:
            guard = await guards.current()
        except (ControlError, StoreError) as error:
            raise dash.exceptions.PreventUpdate from error
        if guard is None and not shown:
            raise dash.exceptions.PreventUpdate
        return [] if guard is None else guard_card(guard, dt.datetime.now(dt.UTC))
