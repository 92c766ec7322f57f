"""A server span for each call of the control API that a route takes, as the HTTP conventions name it.

It is one of the caller's trace.

Inference has its own spans, with what the engine knows; health, metrics and the dashboard's polling have none.
"""

from __future__ import annotations

from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Message, Receive, Scope, Send
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from service.api.caller import context_in

PREFIX = b"/api/"
CALL_ATTRIBUTES = (
    "http.request.method",
    "http.route",
    "url.path",
    "url.scheme",
    "http.response.status_code",
    "error.type",
)


class ControlSpans(ASGIMiddleware):
    """Makes the span of a request around everything that answers it, and the current one meanwhile."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        # A mount's `path` lacks where it is mounted.
        if scope["type"] != ScopeType.HTTP or not scope["raw_path"].startswith(PREFIX):
            await next_app(scope, receive, send)
            return
        method = scope["method"]
        route = str(scope.get("path_template") or "")
        name = f"{method} {route}" if route else method
        attributes = {"http.request.method": method, "url.path": scope["path"], "url.scheme": scope["scheme"]}
        if route:
            attributes["http.route"] = route
        parent = context_in(Headers.from_scope(scope))
        with self._tracer.start_as_current_span(name, parent, SpanKind.SERVER, attributes) as span:

            async def note(message: Message) -> None:
                if message["type"] == "http.response.start":
                    _note_status(span, message["status"])
                await send(message)

            await next_app(scope, receive, note)


def _note_status(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_attribute("error.type", str(status))
        span.set_status(Status(StatusCode.ERROR))
