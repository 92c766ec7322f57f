"""How the policy page lives. Every change goes through PolicyControl, the same code as PUT /api/policy."""

from __future__ import annotations

from typing import Any

import dash
from dash import ALL, Input, Output, State

from dashboard import checks, ids
from dashboard.caller import NOT_ALLOWED, may_change, operators_only
from dashboard.context import ControlRoom
from dashboard.markup import in_browser
from dashboard.pages.policy import ids as here
from dashboard.pages.policy import outcome
from dashboard.pages.policy.actions import apply_change, find_version, roll_back
from dashboard.pages.policy.address import draft_text
from dashboard.pages.policy.layout import in_force
from dashboard.pages.policy.show import UNAVAILABLE, history_or_same, nothing_new, result_outputs, show_result
from dashboard.pages.policy.values import (
    BUDGET,
    MAX_ENTRY,
    Loaded,
    budget_preset,
    differences,
    read_draft,
    read_entries,
    read_loaded,
    readable,
    rebased,
    show,
    show_with_hint,
)
from dashboard.pages.policy.who import ACTOR_PROBLEM, signed_by
from scheduler.policy import COEFFICIENT_BY_NAME, COEFFICIENTS, LARGEST_BUDGET, PRESETS, PolicyConfig
from service.control.checks import MAX_NOTE

BUDGET_PROBLEM = f"must be a whole number from 1 to {LARGEST_BUDGET:,}"
ENTRIES = State(ids.coefficient(ALL), "value")
ENTRY_IDS = State(ids.coefficient(ALL), "id")


def register(app: dash.Dash, room: ControlRoom) -> None:
    """Adds the page's callbacks to `app`."""
    _register_preview(app, room)
    _register_fill(app)
    _register_apply(app, room)
    _register_rebase(app, room)
    _register_rollback(app, room)
    _register_confirm(app, room)
    in_browser(
        app,
        "recallWho",
        Output(ids.POLICY_ACTOR, "value"),
        Input(ids.POLICY_ACTOR, "id"),
        State(ids.POLICY_ACTOR, "readOnly"),
    )
    in_browser(app, "isNotBudget", Output(here.BUDGET_PLACE, "hidden"), Input(ids.POLICY_PRESET, "value"))
    in_browser(app, "policyAddress", Output(here.ADDRESS, "data"), Input(here.DRAFT, "data"), first_call=False)
    in_browser(
        app,
        "needsWho",
        Output(ids.POLICY_ROLLBACK_CONFIRM, "disabled"),
        Input(ids.POLICY_ROLLBACK_ACTOR, "value"),
        Input(ids.POLICY_ROLLBACK_TARGET, "data"),
    )


def _register_preview(app: dash.Dash, room: ControlRoom) -> None:
    @app.callback(
        Output(ids.POLICY_DIFF, "children"),
        Output(ids.coefficient(ALL), "error"),
        Output(ids.POLICY_APPLY, "disabled"),
        Output(ids.readable(ALL), "children"),
        Output(here.DRAFT, "data"),
        Input(ids.coefficient(ALL), "value"),
        Input(ids.POLICY_LOADED, "data"),
        State(ids.POLICY_PRESET, "value"),
        ENTRY_IDS,
        State(ids.readable(ALL), "id"),
    )
    async def preview(entries: object, loaded: object, preset: object, fields: object, hints: Any) -> tuple[Any, ...]:
        named = read_entries(fields, entries)
        draft = read_draft(read_loaded(loaded), preset, named)
        errors = [draft.problems.get(name) for name in named]
        hinted = [readable(COEFFICIENT_BY_NAME[_name(hint)], named[_name(hint)]) for hint in hints]
        closed = bool(draft.problems) or not draft.changes or not may_change()
        # While an entry cannot be used, the address keeps the last draft that could.
        address = dash.no_update if draft.problems else draft_text(draft.changes)
        return outcome.draft_preview(draft, room.mixed_prefill), errors, closed, hinted, address


def _register_fill(app: dash.Dash) -> None:
    @app.callback(
        Output(ids.coefficient(ALL), "value"),
        Output(ids.current(ALL), "children"),
        Output(ids.POLICY_PRESET, "value"),
        Output(here.BUDGET, "error"),
        Input(ids.POLICY_PRESET, "value"),
        Input(here.BUDGET, "value"),
        Input(ids.POLICY_RESET, "n_clicks"),
        Input(ids.POLICY_LOADED, "data"),
        ENTRY_IDS,
        State(ids.current(ALL), "id"),
        prevent_initial_call=True,
    )
    async def fill(
        preset: object, budget: object, _reset: object, data: object, fields: Any, shown: Any
    ) -> tuple[Any, ...]:
        loaded = read_loaded(data)
        in_force_now = [_in_force(_name(field), loaded) for field in shown]
        if dash.ctx.triggered_id in (ids.POLICY_PRESET, here.BUDGET):
            typed = dash.ctx.triggered_id == here.BUDGET
            filled, problem = _from_preset(preset, budget, [_name(field) for field in fields], typed=typed)
            return filled, in_force_now, dash.no_update, problem
        entries = checks.mapping("loaded", data).get("entries") or {}
        kept = {c.name: checks.text(c.name, entries.get(c.name, show(loaded.values[c.name]))) for c in COEFFICIENTS}
        return [kept[_name(field)] for field in fields], in_force_now, None, None


def _from_preset(preset: object, budget: object, names: list[str], *, typed: bool) -> tuple[Any, str | None]:
    """The fields' values under a preset, and what is wrong with the number of a budget.

    `typed`: the number was typed; it leaves alone what was changed in other fields since the preset was chosen.
    """
    if preset is None or (typed and preset != BUDGET):
        raise dash.exceptions.PreventUpdate
    offered = checks.choice("preset", preset, (*PRESETS, BUDGET))
    name = budget_preset(checks.text("budget", budget, MAX_ENTRY)) if offered == BUDGET else offered
    if name is None:
        # what a budget does not set is set now: when the number is put right, it alone is filled in
        others = PolicyConfig.balanced().as_dict()
        kept = [dash.no_update if typed or n == "token_budget" else show(others[n]) for n in names]
        return kept, BUDGET_PROBLEM
    values = PolicyConfig.preset(name).as_dict()
    return [show(values[n]) if not typed or n == "token_budget" else dash.no_update for n in names], None


def _in_force(name: str, loaded: Loaded) -> str:
    return show_with_hint(COEFFICIENT_BY_NAME[name], loaded.values[name])


def _name(field: object) -> str:
    return checks.choice("coefficient", checks.mapping("coefficient id", field).get("name"), tuple(COEFFICIENT_BY_NAME))


def _register_apply(app: dash.Dash, room: ControlRoom) -> None:
    @app.callback(
        *result_outputs(),
        Output(ids.POLICY_ACTOR, "error"),
        Input(ids.POLICY_APPLY, "n_clicks"),
        State(ids.POLICY_LOADED, "data"),
        State(ids.POLICY_PRESET, "value"),
        ENTRIES,
        ENTRY_IDS,
        State(ids.POLICY_ACTOR, "value"),
        State(ids.POLICY_NOTE, "value"),
        prevent_initial_call=True,
        running=[(Output(ids.POLICY_APPLY, "loading"), True, False)],
    )
    @operators_only
    async def apply(
        clicks: object, data: object, preset: object, entries: object, fields: object, actor: object, note: object
    ) -> tuple[Any, ...]:
        if not clicks:
            raise dash.exceptions.PreventUpdate
        loaded = read_loaded(data)
        who, why = signed_by(actor), checks.text("note", note, MAX_NOTE)
        draft = read_draft(loaded, preset, read_entries(fields, entries))
        if not who:
            return (*nothing_new(), ACTOR_PROBLEM)
        result = await apply_change(room.control, loaded, draft, who, why)
        return (*await show_result(room, result), None)


def _register_rebase(app: dash.Dash, room: ControlRoom) -> None:
    @app.callback(
        *result_outputs(allow_duplicate=True),
        Input(ids.POLICY_REBASE, "n_clicks"),
        State(ids.POLICY_LOADED, "data"),
        ENTRIES,
        ENTRY_IDS,
        prevent_initial_call=True,
    )
    async def rebase(clicks: object, data: object, entries: object, fields: object) -> tuple[Any, ...]:
        if not clicks:
            raise dash.exceptions.PreventUpdate
        try:
            version = await room.control.current()
        except UNAVAILABLE as error:
            return outcome.refused("The version in force cannot be read now", str(error)), *nothing_new()[1:]
        current = Loaded(version.version, version.config.as_dict())
        kept = rebased(read_loaded(data), read_entries(fields, entries), current)
        return None, None, current.as_json(entries=kept), in_force(version), await history_or_same(room, version)


def _register_rollback(app: dash.Dash, room: ControlRoom) -> None:
    @app.callback(
        Output(ids.POLICY_ROLLBACK_DIALOG, "opened"),
        Output(ids.POLICY_ROLLBACK_BODY, "children"),
        Output(ids.POLICY_ROLLBACK_TARGET, "data"),
        Output(ids.POLICY_ROLLBACK_ACTOR, "value"),
        Output(ids.POLICY_ROLLBACK_NOTE, "value"),
        Input(ids.POLICY_ROLLBACK_CLICK, "data"),
        Input(ids.POLICY_ROLLBACK_CANCEL, "n_clicks"),
        State(ids.POLICY_LOADED, "data"),
        State(ids.POLICY_ACTOR, "value"),
        State(ids.POLICY_NOTE, "value"),
        prevent_initial_call=True,
    )
    async def open_or_close(
        clicked: object, _cancel: object, data: object, actor: object, note: object
    ) -> tuple[Any, ...]:
        same = dash.no_update
        if dash.ctx.triggered_id == ids.POLICY_ROLLBACK_CANCEL or clicked is None:
            return False, same, None, same, same
        if not may_change():
            return True, outcome.refused("Nothing can be changed", NOT_ALLOWED), None, same, same
        target = checks.whole_number("version", checks.mapping("clicked", clicked).get("version"))
        try:
            version = await find_version(room.control, target)
        except UNAVAILABLE as error:
            return True, outcome.refused("The history cannot be read now", str(error)), None, same, same
        loaded = read_loaded(data)
        changes = differences(loaded.values, version.config.as_dict())
        return True, outcome.rollback_preview(version, changes, loaded.version), target, actor, note


def _register_confirm(app: dash.Dash, room: ControlRoom) -> None:
    @app.callback(
        *result_outputs(allow_duplicate=True),
        Output(ids.POLICY_ROLLBACK_DIALOG, "opened", allow_duplicate=True),
        Output(ids.POLICY_ROLLBACK_ACTOR, "error"),
        Output(ids.POLICY_ACTOR, "value", allow_duplicate=True),
        Input(ids.POLICY_ROLLBACK_CONFIRM, "n_clicks"),
        State(ids.POLICY_ROLLBACK_TARGET, "data"),
        State(ids.POLICY_LOADED, "data"),
        State(ids.POLICY_ROLLBACK_ACTOR, "value"),
        State(ids.POLICY_ROLLBACK_NOTE, "value"),
        prevent_initial_call=True,
        running=[(Output(ids.POLICY_ROLLBACK_CONFIRM, "loading"), True, False)],
    )
    @operators_only
    async def confirm(clicks: object, target: object, data: object, actor: object, note: object) -> tuple[Any, ...]:
        if not clicks or target is None:
            raise dash.exceptions.PreventUpdate
        who, why = signed_by(actor), checks.text("note", note, MAX_NOTE)
        to_version = checks.whole_number("version", target)
        if not who:
            return (*nothing_new(), dash.no_update, ACTOR_PROBLEM, dash.no_update)
        result = await roll_back(room.control, read_loaded(data), to_version, who, why)
        return (*await show_result(room, result), False, None, who)
