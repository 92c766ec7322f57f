"""Plan page: one decision, what it was chosen over, and why."""

from __future__ import annotations

from typing import Any

import dash
from dash import Input, Output, State

from dashboard import checks
from dashboard.context import ControlRoom
from dashboard.pages.plan import ids
from dashboard.pages.plan.page import page
from dashboard.pages.plan.verdict import LEDGER_NAMES, WORKING, verdict_lines
from service.store.queries import get_plan
from service.why.verdicts import ReExecution

__all__ = ["page", "register"]


def register(app: dash.Dash, room: ControlRoom) -> None:
    """Adds the page's one callback: re-execution, when somebody asks for it."""
    again = ReExecution()

    @app.callback(
        Output(ids.VERDICT, "children"),
        Input(ids.REEXECUTE, "n_clicks"),
        State(ids.KEY, "data"),
        running=[(Output(ids.REEXECUTE, "disabled"), True, False), (Output(ids.WORKING, "children"), WORKING, "")],
        prevent_initial_call=True,
    )
    async def reexecute(clicks: object, key: object) -> Any:
        if not clicks:
            raise dash.exceptions.PreventUpdate
        fields = checks.mapping("plan", key)
        run_id = checks.text("plan.run_id", fields.get("run_id"), checks.MAX_NAME)
        fence = checks.whole_number("plan.fence", fields.get("fence"))
        found = await room.read(lambda engine: get_plan(engine, run_id, fence))
        if found is None:
            raise dash.exceptions.PreventUpdate
        url = room.engine.url.render_as_string(hide_password=False)
        verdict = await again.verdict(url, run_id, fence)
        return verdict_lines(verdict, {name: found.plan[name] for name in LEDGER_NAMES})
