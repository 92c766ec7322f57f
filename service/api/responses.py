"""JSON and server-sent-event responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import Any

import anyio
import msgspec
from litestar import Litestar, Request, Response
from litestar.background_tasks import BackgroundTask, BackgroundTasks
from litestar.datastructures import Cookie
from litestar.enums import MediaType, OpenAPIMediaType
from litestar.response.streaming import ASGIStreamingResponse, Stream
from litestar.types import Receive, Scope, Send, TypeEncodersMap

_encoder = msgspec.json.Encoder(enc_hook=str)


def encode_json(value: Any) -> bytes:
    """Strict JSON: NaN and infinities become null, aware times RFC 3339."""
    return _encoder.encode(value)


def json_response(
    value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None, media_type: str = "application/json"
) -> Response[bytes]:
    """`value` as a JSON answer."""
    return Response(encode_json(value), status_code=status, headers=dict(headers or {}), media_type=media_type)


def event(value: Any) -> bytes:
    """One server-sent event holding `value` as JSON."""
    return b"data: " + encode_json(value) + b"\n\n"


DONE = b"data: [DONE]\n\n"


class _ClosingStream(ASGIStreamingResponse):
    """Streams until the end or until the client leaves, and runs `close` in every case, before it returns."""

    __slots__ = ("close",)

    close: Callable[[], Awaitable[None]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await self.close()


class EventStream(Stream):
    """A text/event-stream answer from an async generator. `close` frees what the events come from.

    The content type alone keeps compressing proxies from buffering it; no compression middleware is installed.
    """

    __slots__ = ("_close", "_events")

    def __init__(self, events: AsyncGenerator[bytes, None], close: Callable[[], Awaitable[None]]) -> None:
        super().__init__(
            events,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"},
        )
        self._events = events
        self._close = close

    async def _finish(self) -> None:
        try:
            await self._events.aclose()
        finally:
            await self._close()

    def to_asgi_response(
        self,
        app: Litestar | None,
        request: Request[Any, Any, Any],
        *,
        background: BackgroundTask | BackgroundTasks | None = None,
        cookies: Iterable[Cookie] | None = None,
        encoded_headers: Iterable[tuple[bytes, bytes]] | None = None,
        headers: dict[str, str] | None = None,
        is_head_response: bool = False,
        media_type: MediaType | OpenAPIMediaType | str | None = None,
        status_code: int | None = None,
        type_encoders: TypeEncodersMap | None = None,
    ) -> ASGIStreamingResponse:
        response = _ClosingStream(
            iterator=self._events,
            headers={**(headers or {}), **self.headers},
            media_type=self.media_type or "text/event-stream",
            status_code=200,
        )
        response.close = self._finish
        return response
