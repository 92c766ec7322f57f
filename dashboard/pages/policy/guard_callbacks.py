"""How a guarded change is opened and ended from the page. Every step goes through GuardControl, as over HTTP."""

from __future__ import annotations

from typing import Any

import dash
from dash import ALL, Input, Output, State

from dashboard import checks, ids
from dashboard.caller import operators_only
from dashboard.context import ControlRoom
from dashboard.markup import in_browser
from dashboard.pages.policy import ids as here
from dashboard.pages.policy.actions import end_trial, open_trial
from dashboard.pages.policy.guard_form import read_fields, read_guard
from dashboard.pages.policy.show import UNAVAILABLE, nothing_new, result_outputs, show_result
from dashboard.pages.policy.trials import ending_words
from dashboard.pages.policy.values import read_draft, read_entries, read_loaded
from dashboard.pages.policy.who import ACTOR_PROBLEM, signed_by
from service.control.checks import MAX_NOTE
from service.control.guards import GuardControl


def register(app: dash.Dash, room: ControlRoom) -> None:
    """Adds the callbacks to `app`; none without a guard control, since their fields are not there either."""
    if room.guards is None:
        return
    _register_open(app, room, room.guards)
    _register_dialog(app, room.guards)
    _register_end(app, room, room.guards)
    in_browser(app, "sameAs", Output(here.GUARD_APPLY, "disabled"), Input(ids.POLICY_APPLY, "disabled"))
    in_browser(
        app,
        "needsWho",
        Output(here.GUARD_CONFIRM, "disabled"),
        Input(here.GUARD_ACTOR, "value"),
        Input(here.GUARD_CHOICE, "data"),
    )


def _register_open(app: dash.Dash, room: ControlRoom, guards: GuardControl) -> None:
    @app.callback(
        *result_outputs(allow_duplicate=True),
        Output(ids.POLICY_ACTOR, "error", allow_duplicate=True),
        Output(here.GUARD_MINUTES, "error"),
        Output(here.guard_limit(ALL), "error"),
        Input(here.GUARD_APPLY, "n_clicks"),
        State(ids.POLICY_LOADED, "data"),
        State(ids.POLICY_PRESET, "value"),
        State(ids.coefficient(ALL), "value"),
        State(ids.coefficient(ALL), "id"),
        State(ids.POLICY_ACTOR, "value"),
        State(ids.POLICY_NOTE, "value"),
        State(here.GUARD_MINUTES, "value"),
        State(here.guard_limit(ALL), "value"),
        State(here.guard_limit(ALL), "id"),
        State(here.guard_samples(ALL), "value"),
        State(here.guard_samples(ALL), "id"),
        prevent_initial_call=True,
        running=[(Output(here.GUARD_APPLY, "loading"), True, False)],
    )
    @operators_only
    async def open_guard(
        clicks: object, data: object, preset: object, entries: object, fields: object, *rest: object
    ) -> tuple[Any, ...]:
        if not clicks:
            raise dash.exceptions.PreventUpdate
        actor, note, minutes, limits, limit_fields, samples, sample_fields = rest
        loaded = read_loaded(data)
        draft = read_draft(loaded, preset, read_entries(fields, entries))
        asked = read_guard(minutes, read_fields(limit_fields, limits), read_fields(sample_fields, samples))
        who, why = signed_by(actor), checks.text("note", note, MAX_NOTE)
        errors = (asked.problems.get("minutes"), [asked.problems.get(name) for name in _order(limit_fields)])
        if asked.problems or not who:
            return (*nothing_new(), None if who else ACTOR_PROBLEM, *errors)
        result = await open_trial(room.control, guards, loaded, draft, asked, who, why)
        return (*await show_result(room, result), None, *errors)


def _order(fields: object) -> list[str]:
    """The names of the limits in the order of their fields."""
    return list(read_fields(fields, [""] * len(fields) if isinstance(fields, list) else None))


def _register_dialog(app: dash.Dash, guards: GuardControl) -> None:
    @app.callback(
        Output(here.GUARD_DIALOG, "opened"),
        Output(here.GUARD_DIALOG, "title"),
        Output(here.GUARD_WORDS, "children"),
        Output(here.GUARD_CONFIRM, "children"),
        Output(here.GUARD_CHOICE, "data"),
        Output(here.GUARD_ACTOR, "value"),
        Input(here.GUARD_BACK, "n_clicks"),
        Input(here.GUARD_KEEP, "n_clicks"),
        Input(here.GUARD_CANCEL, "n_clicks"),
        State(ids.POLICY_ACTOR, "value"),
        prevent_initial_call=True,
    )
    async def open_or_close(back: object, keep: object, _cancel: object, actor: object) -> tuple[Any, ...]:
        same = dash.no_update
        asked = dash.ctx.triggered_id
        if asked == here.GUARD_CANCEL or not (back if asked == here.GUARD_BACK else keep):
            return False, same, same, same, None, same
        goes_back = asked == here.GUARD_BACK
        verb = "Roll back now" if goes_back else "Keep now"
        try:
            guard = await guards.current()
        except UNAVAILABLE as error:
            return True, verb, f"The trial cannot be read now: {error}", verb, None, same
        if guard is None:
            return True, verb, "The trial is over already; nothing is left to end.", verb, None, same
        choice = {"version": guard.version, "back": goes_back}
        return True, verb, ending_words(guard, back=goes_back), verb, choice, signed_by(actor)


def _register_end(app: dash.Dash, room: ControlRoom, guards: GuardControl) -> None:
    @app.callback(
        *result_outputs(allow_duplicate=True),
        Output(here.GUARD_DIALOG, "opened", allow_duplicate=True),
        Output(here.GUARD_ACTOR, "error"),
        Input(here.GUARD_CONFIRM, "n_clicks"),
        State(here.GUARD_CHOICE, "data"),
        State(here.GUARD_ACTOR, "value"),
        State(ids.POLICY_LOADED, "data"),
        prevent_initial_call=True,
        running=[(Output(here.GUARD_CONFIRM, "loading"), True, False)],
    )
    @operators_only
    async def end_guard(clicks: object, chosen: object, actor: object, data: object) -> tuple[Any, ...]:
        if not clicks or chosen is None:
            raise dash.exceptions.PreventUpdate
        choice = checks.mapping("choice", chosen)
        version = checks.whole_number("version", choice.get("version"))
        back = choice.get("back") is True
        who = signed_by(actor)
        if not who:
            return (*nothing_new(), dash.no_update, ACTOR_PROBLEM)
        result = await end_trial(room.control, guards, read_loaded(data), version, back=back, actor=who)
        return (*await show_result(room, result), False, None)
