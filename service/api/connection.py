"""uvicorn's HTTP connection, which here tells every unfinished request when its client has gone.

uvicorn tells only the newest request of a connection, and stops reading, and so noticing, once a request is
pipelined behind an unfinished one. A generation with another request behind it would go on for nobody.
"""

from __future__ import annotations

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_PIPELINED = 4
"""Requests that may wait behind an unfinished one. A client that sends more, or a large body, is cut off:
reading goes on meanwhile, so what it sends has to be kept.
"""


class Connection(HttpToolsProtocol):
    """One client's connection. Reading never stops while requests wait, so that its end is always noticed."""

    _running: RequestResponseCycle | None = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._read_on()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._read_on()

    def _read_on(self) -> None:
        if not self.pipeline or self.transport.is_closing():
            return
        if len(self.pipeline) > MAX_PIPELINED or len(self.cycle.body) > HIGH_WATER_LIMIT:
            self.transport.abort()
        else:
            self.flow.resume_reading()

    def eof_received(self) -> None:
        """Half a connection counts as none, as in uvicorn; here even when unread output keeps it open."""
        if self._running is not None and not self._running.response_complete:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)
