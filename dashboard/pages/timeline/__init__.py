"""Timeline page: plans, gaps and requests in time, from a week down to one plan, live while requests run."""

from __future__ import annotations

import datetime as dt
from typing import Any

from dashboard.context import ControlRoom
from dashboard.pages.timeline.callbacks import register
from dashboard.pages.timeline.layout import layout
from dashboard.pages.timeline.view import read_view
from dashboard.queries.timeline import offered_filters

__all__ = ["page", "register"]


async def page(room: ControlRoom, search: str) -> Any:
    """The page of what its address asks for. Raises what ControlRoom.read does."""
    runs, versions = await room.read(offered_filters)
    return layout(read_view(search, dt.datetime.now(dt.UTC)), runs, versions)
