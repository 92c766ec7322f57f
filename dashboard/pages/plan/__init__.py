"""Plan page: one decision, what it was chosen over, and why."""

from __future__ import annotations

import dash

from dashboard.context import ControlRoom
from dashboard.pages.plan.page import page

__all__ = ["page", "register"]


def register(_app: dash.Dash, _room: ControlRoom) -> None:
    """The page has no callbacks."""
