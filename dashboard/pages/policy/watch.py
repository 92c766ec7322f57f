"""What changes on the page by itself: a trial's evidence, its outcome, and what others do to the policy meanwhile."""

from __future__ import annotations

import datetime as dt
from typing import Any

import dash
from dash import Input, Output, State

from dashboard import ids
from dashboard.context import ControlRoom
from dashboard.markup import in_browser
from dashboard.pages.policy import ids as here
from dashboard.pages.policy import outcome
from dashboard.pages.policy.history import HISTORY_LIMIT, history_rows
from dashboard.pages.policy.layout import in_force
from dashboard.pages.policy.show import UNAVAILABLE
from dashboard.pages.policy.trials import TRIALS_LIMIT, fingerprint, shown, trials, watching
from dashboard.pages.policy.values import Loaded, differences, read_loaded
from service.control.guards import Guard
from service.control.policy import PolicyVersion

OUTPUTS = 7


def register(app: dash.Dash, room: ControlRoom) -> None:
    """Adds the callback that asks every two seconds, and once after each change that is made here."""
    # The next question waits for the last answer: Dash drops answers that are overtaken.
    in_browser(
        app,
        "askAgain",
        Output(here.WATCH_ASK, "data"),
        Input(here.WATCH_TICK, "n_intervals"),
        State(here.WATCH_BUSY, "data"),
        first_call=False,
    )

    @app.callback(
        Output(here.GUARD_PANEL, "hidden"),
        Output(here.GUARD_SHOWN, "children"),
        Output(here.TRIALS, "children"),
        Output(ids.POLICY_VERSION, "children", allow_duplicate=True),
        Output(ids.POLICY_HISTORY, "rowData", allow_duplicate=True),
        Output(ids.POLICY_STALE, "children", allow_duplicate=True),
        Output(here.WATCH_SHOWN, "data"),
        Input(here.WATCH_ASK, "data"),
        Input(ids.POLICY_LOADED, "data"),
        State(here.WATCH_SHOWN, "data"),
        running=[(Output(here.WATCH_BUSY, "data"), True, False)],
        prevent_initial_call=True,
    )
    async def watch(_asked: object, data: object, told: object) -> tuple[Any, ...]:
        loaded = read_loaded(data)
        now = dt.datetime.now(dt.UTC)
        try:
            current = await room.control.current()
            guards = [] if room.guards is None else await room.guards.history(TRIALS_LIMIT)
            known = fingerprint(current, guards, loaded.version)
            if told == known:
                return _same_but_card(watching(guards), now)
            history = await room.control.history(HISTORY_LIMIT)
        except UNAVAILABLE as error:
            raise dash.exceptions.PreventUpdate from error
        running = watching(guards)
        rows = history_rows(history, current.version, guards)
        behind = _behind(loaded, current)
        return running is None, shown(running, now), trials(guards, now), in_force(current), rows, behind, known


def _same_but_card(guard: Guard | None, now: dt.datetime) -> tuple[Any, ...]:
    """A trial's evidence and time go on while nothing else changes."""
    if guard is None:
        raise dash.exceptions.PreventUpdate
    same = (dash.no_update,) * (OUTPUTS - 2)
    return (False, shown(guard, now), *same)


def _behind(loaded: Loaded, current: PolicyVersion) -> Any:
    """The warning that somebody else changed the policy since the form was loaded, or None."""
    if current.version == loaded.version:
        return None
    return outcome.stale(current, differences(loaded.values, current.config.as_dict()), loaded.version)
