"""Overview page: is it healthy and is it fast, now and over a span of time."""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa

from dashboard.context import ControlRoom
from dashboard.pages.overview.callbacks import register
from dashboard.pages.overview.layout import empty, layout
from dashboard.queries.overview import read_now
from dashboard.queries.trends import read_trends
from dashboard.span import read_span

__all__ = ["page", "register"]


async def page(room: ControlRoom, search: str) -> Any:
    """The page, over the span of the address. Raises StoreError."""
    at = dt.datetime.now(dt.UTC)
    span = read_span(search, at)

    def query(engine: sa.Engine) -> Any:
        now = read_now(engine, at)
        # Charts are made in the thread too, so that no stream waits for them.
        return empty() if now.run is None else layout(now, read_trends(engine, span), search)

    return await room.read(query)
