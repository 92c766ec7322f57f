"""How long HTTP requests take, by route template, method and status, around the whole application.

What clients choose makes no series: a path that is no route has an empty `http_route`, and an unknown method counts as
`_OTHER`, as the OpenTelemetry conventions ask. A stream lasts until its end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send
from prometheus_client import Histogram

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"})
_AT_ZERO = [
    (route, "POST", status)
    for route in ("/v1/chat/completions", "/v1/completions")
    for status in ("200", "400", "429", "500", "503")
]
"""The series that are there before their first request, so that rate() sees the first error."""


class HttpMetrics:
    """An ASGI application around `app`. `seconds`: http_server_request_duration_seconds."""

    def __init__(self, app: ASGIApp, seconds: Histogram) -> None:
        self._app = app
        self._seconds = seconds
        for labels in _AT_ZERO:
            seconds.labels(*labels)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = ""  # stays empty where the client has gone before an answer began

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
            self._seconds.labels(route_of(scope), method, status).observe(time.perf_counter() - began)


def route_of(scope: Mapping[str, object]) -> str:
    """The template of the route that answered; empty where none did."""
    handler: Any = scope.get("route_handler")
    if handler is None:
        return ""
    if getattr(handler, "is_mount", False):  # its template is not in the scope, and its paths are the mounted app's
        return str(min(handler.paths))
    return str(scope.get("path_template", ""))
