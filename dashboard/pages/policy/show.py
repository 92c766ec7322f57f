"""Where the outcome of a change shows: message, warning, what the form is loaded with, version line and history."""

from __future__ import annotations

from typing import Any

import dash
from dash import Output

from dashboard import ids
from dashboard.context import ControlRoom
from dashboard.pages.policy.actions import Result
from dashboard.pages.policy.history import HISTORY_LIMIT, history_rows
from dashboard.pages.policy.layout import in_force
from dashboard.pages.policy.trials import TRIALS_LIMIT
from dashboard.pages.policy.values import Loaded
from service.control.errors import ControlError
from service.control.policy import PolicyVersion
from service.store.errors import StoreError

UNAVAILABLE = (ControlError, StoreError)


def result_outputs(*, allow_duplicate: bool = False) -> tuple[Output, ...]:
    """What `show_result` answers."""
    return (
        Output(ids.POLICY_RESULT, "children", allow_duplicate=allow_duplicate),
        Output(ids.POLICY_STALE, "children", allow_duplicate=allow_duplicate),
        Output(ids.POLICY_LOADED, "data", allow_duplicate=allow_duplicate),
        Output(ids.POLICY_VERSION, "children", allow_duplicate=allow_duplicate),
        Output(ids.POLICY_HISTORY, "rowData", allow_duplicate=allow_duplicate),
    )


def nothing_new() -> tuple[Any, ...]:
    """For `result_outputs` when nothing came of it."""
    return (dash.no_update,) * 5


async def show_result(room: ControlRoom, result: Result) -> tuple[Any, ...]:
    """For `result_outputs`; with a new version the form is loaded with it."""
    version = result.version
    if version is None:
        return result.message, result.stale, dash.no_update, dash.no_update, dash.no_update
    loaded = Loaded(version.version, version.config.as_dict())
    return result.message, None, loaded.as_json(), in_force(version), await history_or_same(room, version)


async def history_or_same(room: ControlRoom, current: PolicyVersion) -> Any:
    """Rows of the history; what is shown stays when they cannot be read."""
    try:
        versions = await room.control.history(HISTORY_LIMIT)
        guards = [] if room.guards is None else await room.guards.history(TRIALS_LIMIT)
    except UNAVAILABLE:
        return dash.no_update
    return history_rows(versions, current.version, guards)
