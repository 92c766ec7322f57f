"""Policy page: every coefficient in a form, tried on recorded traffic, applied live or on trial, and taken back."""

from __future__ import annotations

import dash

from dashboard.context import ControlRoom
from dashboard.pages.policy import callbacks, guard_callbacks, preview_callbacks, watch
from dashboard.pages.policy.layout import page

__all__ = ["page", "register"]


def register(app: dash.Dash, room: ControlRoom) -> None:
    """Adds the page's callbacks to `app`."""
    callbacks.register(app, room)
    watch.register(app, room)
    guard_callbacks.register(app, room)
    preview_callbacks.register(app, room)
