"""The banner on every page: what /health/ready has to say, as long as it says it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import dash
from dash import Input, Output, dcc, html

from dashboard import ids
from dashboard.in_service import in_service

Status = Callable[[], Awaitable[Sequence[str]]]
"""Lines for people, none when all is well."""

LOOK_MS = 5000


async def nothing_to_tell() -> Sequence[str]:
    """For a dashboard without a server around it."""
    return ()


def layout() -> list[Any]:
    """The empty banner, which the style sheet hides, and the clock that fills it."""
    return [
        dcc.Interval(id=ids.STATUS_TICK, interval=LOOK_MS),
        html.Div(id=ids.STATUS_BANNER, className="status-banner", role="status"),
    ]


def register(app: dash.Dash, status: Status) -> None:
    """Ask now and every LOOK_MS."""

    @app.callback(Output(ids.STATUS_BANNER, "children"), Input(ids.STATUS_TICK, "n_intervals"))
    @in_service
    async def tell(_ticks: object) -> list[Any]:
        return [html.P(line) for line in await status()]
