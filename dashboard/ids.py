"""Every component id that a callback, a test or a style sheet relies on."""

from __future__ import annotations

from typing import Any

URL = "url"
PAGE = "page"
NAV_MARK = "nav-mark"
SCHEME_TOGGLE = "scheme-toggle"
STATUS_BANNER = "status-banner"
STATUS_TICK = "status-tick"

POLICY_LOADED = "policy-loaded"
POLICY_PRESET = "policy-preset"
POLICY_ACTOR = "policy-actor"
POLICY_NOTE = "policy-note"
POLICY_DIFF = "policy-diff"
POLICY_APPLY = "policy-apply"
POLICY_RESET = "policy-reset"
POLICY_RESULT = "policy-result"
POLICY_VERSION = "policy-version"
POLICY_STALE = "policy-stale"
POLICY_REBASE = "policy-rebase"
POLICY_HISTORY = "policy-history"
POLICY_ROLLBACK_CLICK = "policy-rollback-click"
POLICY_ROLLBACK_DIALOG = "policy-rollback-dialog"
POLICY_ROLLBACK_BODY = "policy-rollback-body"
POLICY_ROLLBACK_CONFIRM = "policy-rollback-confirm"
POLICY_ROLLBACK_CANCEL = "policy-rollback-cancel"
POLICY_ROLLBACK_TARGET = "policy-rollback-target"
POLICY_ROLLBACK_ACTOR = "policy-rollback-actor"
POLICY_ROLLBACK_NOTE = "policy-rollback-note"


def coefficient(name: Any) -> dict[str, Any]:
    """The id of one coefficient's input; pass dash.ALL for a pattern over all of them."""
    return {"type": "coefficient", "name": name}


def readable(name: Any) -> dict[str, Any]:
    """The id of the text that says a nanosecond field's entry in seconds; pass dash.ALL for all of them."""
    return {"type": "readable", "name": name}


def current(name: Any) -> dict[str, Any]:
    """The id of the text that shows one coefficient's value in force; pass dash.ALL for all of them."""
    return {"type": "current", "name": name}
