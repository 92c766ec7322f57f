"""Overview page."""

from __future__ import annotations

from typing import Any

import dash

from dashboard.context import ControlRoom
from dashboard.shell import message_page


async def page(_room: ControlRoom, _search: str) -> Any:
    """The page."""
    return message_page("Overview", "Nothing is shown here yet.")


def register(_app: dash.Dash, _room: ControlRoom) -> None:
    """Adds the page's callbacks to `app`."""
