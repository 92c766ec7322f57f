"""Component ids of the preview, the sweep and the guard; those of the form are in dashboard/ids.py."""

from __future__ import annotations

from typing import Any

DRAFT = "policy-draft"
"""The form's draft as it stands in the address; empty without a difference."""
ADDRESS = "policy-address"
FILLED = "policy-filled"
BUDGET = "policy-budget"
BUDGET_PLACE = "policy-budget-place"
"""Around the number of the preset `budget`, hidden while another is chosen."""
WATCH_TICK = "policy-watch-tick"
WATCH_ASK = "policy-watch-ask"
WATCH_BUSY = "policy-watch-busy"
WATCH_SHOWN = "policy-watch-shown"
TRIALS = "policy-trials"

PREVIEW_MINUTES = "preview-minutes"
PREVIEW_UNTIL = "preview-until"
PREVIEW_START = "preview-start"
PREVIEW_CANCEL = "preview-cancel"
PREVIEW_PROBLEM = "preview-problem"
PREVIEW_ID = "preview-id"
PREVIEW_TICK = "preview-tick"
PREVIEW_ASK = "preview-ask"
PREVIEW_BUSY = "preview-busy"
PREVIEW_STATE = "preview-state"
PREVIEW_BAR = "preview-bar"
PREVIEW_PROGRESS = "preview-progress"
PREVIEW_MESSAGE = "preview-message"
PREVIEW_RESULT = "preview-result"
PREVIEW_SHOWN = "preview-shown"
PREVIEW_FIRST_TOKEN = "preview-first-token"
PREVIEW_TIME_PER_TOKEN = "preview-time-per-token"
PREVIEW_GAPS = "preview-gaps"

SWEEP_FIRST = "sweep-first"
SWEEP_FIRST_VALUES = "sweep-first-values"
SWEEP_FIRST_SUGGESTED = "sweep-first-suggested"
SWEEP_SECOND = "sweep-second"
SWEEP_SECOND_VALUES = "sweep-second-values"
SWEEP_SECOND_SUGGESTED = "sweep-second-suggested"
SWEEP_X = "sweep-x"
SWEEP_Y = "sweep-y"
SWEEP_GRAPH = "sweep-graph"

GUARD_MINUTES = "guard-minutes"
GUARD_APPLY = "guard-apply"
GUARD_PANEL = "guard-panel"
GUARD_SHOWN = "guard-shown"
GUARD_BACK = "guard-back"
GUARD_KEEP = "guard-keep"
GUARD_DIALOG = "guard-dialog"
GUARD_WORDS = "guard-words"
GUARD_ACTOR = "guard-actor"
GUARD_CONFIRM = "guard-confirm"
GUARD_CANCEL = "guard-cancel"
GUARD_CHOICE = "guard-choice"


def guard_limit(name: Any) -> dict[str, Any]:
    """The id of one limit's field; pass dash.ALL for all of them."""
    return {"type": "guard-limit", "name": name}


def guard_samples(name: Any) -> dict[str, Any]:
    """The id of the field of how many samples a limit needs; pass dash.ALL for all of them."""
    return {"type": "guard-samples", "name": name}
