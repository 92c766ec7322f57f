"""SQL page: an operator's own reading statements, the cookbook's among them."""

from __future__ import annotations

from typing import Any

import dash

from dashboard.context import ControlRoom
from dashboard.pages.sql import callbacks
from dashboard.pages.sql.address import read_address
from dashboard.pages.sql.layout import layout
from dashboard.pages.sql.reference import read_reference

__all__ = ["page", "register"]


async def page(room: ControlRoom, search: str) -> Any:
    """The page, with the statement of its address, which the browser then runs."""
    return layout(read_address(search), read_reference(), room.engine.dialect.name)


def register(app: dash.Dash, _room: ControlRoom) -> None:
    """Adds the page's callbacks to `app`."""
    callbacks.register(app)
