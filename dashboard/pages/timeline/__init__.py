"""Timeline page: the last plans as bars and as a table, live while requests run."""

from __future__ import annotations

from typing import Any

from dashboard.context import ControlRoom
from dashboard.pages.timeline.callbacks import register
from dashboard.pages.timeline.layout import layout
from dashboard.routing import policy_filter, request_filter

__all__ = ["page", "register"]


async def page(_room: ControlRoom, search: str) -> Any:
    """The page, of all plans, of those chosen under one policy version, or of those of one request."""
    return layout(policy_filter(search), request_filter(search))
