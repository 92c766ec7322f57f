"""The table of policy versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard.formatting import NOTHING, utc
from dashboard.grids import number, text
from dashboard.pages.policy.values import differences, show_with_hint
from service.control.guards import Guard
from service.control.policy import PolicyVersion

HISTORY_LIMIT = 100
GO_BACK = "Go back to this"
TRIAL_WORDS = {"watching": "on trial", "held": "held", "rolled_back": "taken back", "ended": "ended by hand"}
HISTORY_COLUMNS = [
    number("version", "Version", "count", width=92),
    text("created", "When", width=196, cellClass="digits"),
    text("actor", "Who", width=140),
    text("note", "Note", width=240, flex=1, minWidth=180),
    text("changes", "Changed", width=320, flex=2, minWidth=220, tooltip="Against the version that it was based on"),
    text("state", "State", width=100),
    text("trial", "Trial", width=130, cellRenderer="TrialLink", sortable=False),
    text("back", "", width=150, cellRenderer="RollbackButton", sortable=False),
]


def history_rows(history: Sequence[PolicyVersion], current: int, guards: Sequence[Guard] = ()) -> list[dict[str, Any]]:
    """Table rows for versions, newest first, with what came of the guarded ones."""
    trial = {guard.version: TRIAL_WORDS[guard.state] for guard in guards}
    by_version = {version.version: version for version in history}
    return [
        {
            "id": str(version.version),
            "version": version.version,
            "created": utc(version.created_at),
            "actor": version.actor,
            "note": version.note,
            "changes": _changes(version, by_version.get(version.parent_version or 0)),
            "state": version.state,
            "trial": trial.get(version.version, ""),
            # The cell is drawn anew only when its value changes, so the value says what it shows.
            "back": _back(version, current),
        }
        for version in history
    ]


def _back(version: PolicyVersion, current: int) -> str:
    if version.version == current:
        return "in force"
    return GO_BACK if version.state == "applied" else ""


def _changes(version: PolicyVersion, parent: PolicyVersion | None) -> str:
    if parent is None:
        return f"preset {version.preset}" if version.preset else NOTHING
    changed = differences(parent.config.as_dict(), version.config.as_dict())
    shown = [(c.coefficient, c.before, c.after) for c in changed]
    return ", ".join(f"{c.name} {show_with_hint(c, a)} → {show_with_hint(c, b)}" for c, a, b in shown) or "nothing"
