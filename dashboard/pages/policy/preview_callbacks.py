"""How a draft is tried on recorded traffic: asked for, followed, cancelled and shown, each preview by its id."""

from __future__ import annotations

from typing import Any

import dash
from dash import ALL, Input, Output, State

from dashboard import checks, ids
from dashboard.caller import may_change, operators_only
from dashboard.context import ControlRoom
from dashboard.errors import RefusedInput
from dashboard.markup import in_browser
from dashboard.pages.policy import ids as here
from dashboard.pages.policy.address import PREVIEW_ID
from dashboard.pages.policy.measures import AXES
from dashboard.pages.policy.preview_form import read_axes, read_window
from dashboard.pages.policy.preview_result import preview_result
from dashboard.pages.policy.show import UNAVAILABLE
from dashboard.pages.policy.sweep_values import suggestion
from dashboard.pages.policy.sweep_view import trade_off
from dashboard.pages.policy.values import read_draft, read_entries, read_loaded
from dashboard.pages.policy.who import signed_by
from scheduler.errors import InvalidPolicy
from scheduler.policy import COEFFICIENT_BY_NAME, PolicyConfig
from service.control.preview.asking import preview_request
from service.control.preview.errors import InvalidPreview
from service.control.preview.jobs import Previews
from service.control.preview.messages import PreviewStatus

SOMEBODY = "the dashboard"
"""Who asked for a preview where nobody said their name; it changes nothing, so none is demanded."""


def register(app: dash.Dash, room: ControlRoom) -> None:
    """Adds the callbacks to `app`; none without previews, since their fields are not there either."""
    if room.previews is None:
        return
    _register_start(app, room.previews)
    _register_follow(app, room.previews)
    _register_cancel(app, room.previews)
    _register_sweep(app, room.previews)
    _register_suggestions(app)
    in_browser(app, "policyPreviewAddress", Output(here.ADDRESS, "data", allow_duplicate=True),
               Input(here.PREVIEW_ID, "data"), first_call=False)  # fmt: skip
    in_browser(app, "putIntoForm", Output(here.FILLED, "data"), Input(here.SWEEP_GRAPH, "clickData"), first_call=False)
    in_browser(
        app,
        "askAgain",
        Output(here.PREVIEW_ASK, "data"),
        Input(here.PREVIEW_TICK, "n_intervals"),
        State(here.PREVIEW_BUSY, "data"),
    )


def _register_start(app: dash.Dash, previews: Previews) -> None:
    @app.callback(
        Output(here.PREVIEW_ID, "data"),
        Output(here.PREVIEW_PROBLEM, "children"),
        Output(here.PREVIEW_TICK, "disabled", allow_duplicate=True),
        Output(here.PREVIEW_MINUTES, "error"),
        Output(here.PREVIEW_UNTIL, "error"),
        Output(here.SWEEP_FIRST_VALUES, "error"),
        Output(here.SWEEP_SECOND_VALUES, "error"),
        Input(here.PREVIEW_START, "n_clicks"),
        State(ids.POLICY_LOADED, "data"),
        State(ids.coefficient(ALL), "value"),
        State(ids.coefficient(ALL), "id"),
        State(ids.POLICY_ACTOR, "value"),
        State(here.PREVIEW_MINUTES, "value"),
        State(here.PREVIEW_UNTIL, "value"),
        State(here.SWEEP_FIRST, "value"),
        State(here.SWEEP_FIRST_VALUES, "value"),
        State(here.SWEEP_SECOND, "value"),
        State(here.SWEEP_SECOND_VALUES, "value"),
        prevent_initial_call=True,
        running=[(Output(here.PREVIEW_START, "loading"), True, False)],
    )
    @operators_only
    async def start(
        clicks: object, data: object, entries: object, fields: object, actor: object, *asked: object
    ) -> tuple[Any, ...]:
        if not clicks:
            raise dash.exceptions.PreventUpdate
        loaded = read_loaded(data)
        draft = read_draft(loaded, None, read_entries(fields, entries))
        if draft.problems:
            return _refused("The draft cannot be tried: an entry cannot be used; see the fields.")
        minutes, until, *axes = asked
        window, sweep = read_window(minutes, until), read_axes(axes)
        if window.problems or any(sweep.problems):
            return _refused(None, window.problems.get("minutes"), window.problems.get("until"), *sweep.problems)
        try:
            request = preview_request(
                PolicyConfig().merged(loaded.values),
                loaded.version,
                coefficients=draft.to_send,
                minutes=window.minutes,
                until=window.until,
                sweep=None if sweep.sweep is None else {axis.coefficient: axis.values for axis in sweep.sweep.axes},
            )
            status = await previews.start(request, by=signed_by(actor) or SOMEBODY)
        except (InvalidPolicy, InvalidPreview) as error:
            return _refused(f"The preview cannot be made: {error}")
        except UNAVAILABLE as error:
            return _refused(str(error))
        return status.id, None, False, None, None, None, None


def _refused(problem: str | None, *errors: str | None) -> tuple[Any, ...]:
    same = dash.no_update
    return (same, problem, same, *(errors or (None,) * 4))


def _register_follow(app: dash.Dash, previews: Previews) -> None:
    @app.callback(
        Output(here.PREVIEW_STATE, "hidden"),
        Output(here.PREVIEW_MESSAGE, "children"),
        Output(here.PREVIEW_PROGRESS, "value"),
        Output(here.PREVIEW_BAR, "hidden"),
        Output(here.PREVIEW_CANCEL, "disabled"),
        Output(here.PREVIEW_TICK, "disabled"),
        Output(here.PREVIEW_RESULT, "children"),
        Output(here.PREVIEW_SHOWN, "data"),
        Input(here.PREVIEW_ASK, "data"),
        Input(here.PREVIEW_ID, "data"),
        State(here.PREVIEW_SHOWN, "data"),
        running=[(Output(here.PREVIEW_BUSY, "data"), True, False)],
    )
    async def follow(_asked: object, asked_id: object, told: object) -> tuple[Any, ...]:
        if asked_id is None:
            raise dash.exceptions.PreventUpdate
        preview_id = read_id(asked_id)
        try:
            status = await previews.status(preview_id)
        except UNAVAILABLE as error:
            return False, f"This preview cannot be shown: {error}", 0, True, True, True, [], None
        known = [status.id, status.state]
        shown = dash.no_update if told == known else preview_result(status)
        closed = status.ended or not may_change()
        return False, words(status), status.progress * 100, status.ended, closed, status.ended, shown, known


def words(status: PreviewStatus) -> str:
    """How far it is: `Running, 42 %: replaying the draft`."""
    if status.state == "running":
        return f"Running, {status.progress * 100:.0f} %: {status.message}"
    heading = {"queued": "Waiting", "done": "Done", "cancelled": "Cancelled", "failed": "Failed"}[status.state]
    said = status.message.removesuffix(".")
    return f"{heading}: {said}" if said and said.casefold() != heading.casefold() else heading


def read_id(value: object) -> str:
    """The id of a preview as a browser gives it. Raises RefusedInput."""
    found = checks.text("preview", value, checks.MAX_NAME)
    if not PREVIEW_ID.fullmatch(found):
        raise RefusedInput("preview", "must be a preview's id")
    return found


def _register_cancel(app: dash.Dash, previews: Previews) -> None:
    @app.callback(
        Output(here.PREVIEW_PROBLEM, "children", allow_duplicate=True),
        Output(here.PREVIEW_ASK, "data", allow_duplicate=True),
        Input(here.PREVIEW_CANCEL, "n_clicks"),
        State(here.PREVIEW_ID, "data"),
        prevent_initial_call=True,
    )
    @operators_only
    async def cancel(clicks: object, asked_id: object) -> tuple[Any, ...]:
        if not clicks or asked_id is None:
            raise dash.exceptions.PreventUpdate
        try:
            await previews.cancel(read_id(asked_id))
        except UNAVAILABLE as error:
            return str(error), dash.no_update
        return None, clicks


def _register_sweep(app: dash.Dash, previews: Previews) -> None:
    @app.callback(
        Output(here.SWEEP_GRAPH, "figure"),
        Input(here.SWEEP_X, "value"),
        Input(here.SWEEP_Y, "value"),
        State(here.PREVIEW_ID, "data"),
        prevent_initial_call=True,
    )
    async def draw(x: object, y: object, asked_id: object) -> Any:
        x_key, y_key = checks.choice("x", x, AXES), checks.choice("y", y, AXES)
        try:
            status = await previews.status(read_id(asked_id))
        except UNAVAILABLE as error:
            raise dash.exceptions.PreventUpdate from error
        if status.result is None:
            raise dash.exceptions.PreventUpdate
        return trade_off(status.request, status.result, x_key, y_key)


def _register_suggestions(app: dash.Dash) -> None:
    """Values for a coefficient that was chosen; the browser puts them in unless somebody has typed others meanwhile."""
    for name_id, values_id, suggested_id in (
        (here.SWEEP_FIRST, here.SWEEP_FIRST_VALUES, here.SWEEP_FIRST_SUGGESTED),
        (here.SWEEP_SECOND, here.SWEEP_SECOND_VALUES, here.SWEEP_SECOND_SUGGESTED),
    ):

        @app.callback(
            Output(suggested_id, "data"),
            Input(name_id, "value"),
            State(ids.POLICY_LOADED, "data"),
            prevent_initial_call=True,
        )
        async def suggest(name: object, data: object) -> str:
            if name is None:
                return ""
            chosen = checks.choice("coefficient", name, tuple(COEFFICIENT_BY_NAME))
            return suggestion(read_loaded(data).values[chosen], COEFFICIENT_BY_NAME[chosen])

        in_browser(
            app,
            "suggestValues",
            Output(values_id, "value"),
            Input(suggested_id, "data"),
            State(values_id, "value"),
            State(values_id, "id"),
            first_call=False,
        )
