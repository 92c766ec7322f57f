"""The HTTP server: uvicorn with the house's signals, limits and shutdown."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from litestar import Litestar

from service.api.connection import Connection
from service.api.context import ApiContext
from service.api.http_metrics import HttpMetrics

STREAM_GRACE_S = 1


class Server(uvicorn.Server):
    """uvicorn that leaves signals to service.process and ends open streams with an event before it stops."""

    def __init__(self, config: uvicorn.Config, context: ApiContext) -> None:
        super().__init__(config)
        self._context = context

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._context.begin_shutdown()
        await super().shutdown(sockets)


def create_server(app: Litestar) -> Server:
    """A server for `app`; give serve() the listening socket."""
    config = uvicorn.Config(
        HttpMetrics(app, app.state.context.metrics.http_seconds),
        loop="asyncio",
        http=Connection,
        lifespan="on",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=STREAM_GRACE_S,
    )
    return Server(config, app.state.context)
