"""One request as the service sees it: an asynchronous iterator of Tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, Self

from service.ipc.errors import EngineError
from service.ipc.messages import Cancel, Submit, ToEngine, Tokens


class Connection(Protocol):
    """What a stream needs of the client."""

    def send(self, message: ToEngine) -> None:
        """Hand a message to the engine; raises EngineUnavailable."""

    def open_stream(self, stream: Stream) -> None:
        """Route the request's events to `stream`."""

    def close_stream(self, stream: Stream) -> None:
        """Stop routing them."""


class Stream:
    """`async with client.submit(request) as stream: async for tokens in stream: ...`

    Entering waits until the engine has the request in its queue. Raises EngineUnavailable, EngineRefused or
    EngineLost there, and EngineLost while iterating. The iteration ends after the message that carries
    finish_reason. Leaving earlier cancels the request with reason "abort".
    """

    def __init__(self, connection: Connection, request: Submit) -> None:
        self.request = request
        self._connection = connection
        self._accepted: asyncio.Future[None] | None = None
        self._waiting: asyncio.Queue[Tokens | EngineError] = asyncio.Queue()
        self._ended = False

    async def __aenter__(self) -> Self:
        self._accepted = asyncio.get_running_loop().create_future()
        self._connection.open_stream(self)
        try:
            self._connection.send(self.request)
            await self._accepted
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Tokens:
        if self._ended and self._waiting.empty():
            raise StopAsyncIteration
        item = await self._waiting.get()
        if isinstance(item, EngineError):
            raise item
        return item

    def cancel(self, reason: str, answer_tokens: int | None = None) -> None:
        """End the request: "abort", or "stop" when a stop string was found. The last Tokens message still follows.

        `answer_tokens`: the output tokens before the stop string. Does nothing when the request has ended.
        """
        if not self._ended:
            self._quietly(lambda: self._connection.send(Cancel(self.request.request_id, reason, answer_tokens)))

    def accepted(self) -> None:
        """The engine has the request."""
        if self._accepted is not None and not self._accepted.done():
            self._accepted.set_result(None)

    def deliver(self, tokens: Tokens) -> None:
        """The engine committed tokens or ended the request."""
        self.accepted()
        self._ended = self._ended or tokens.finish_reason is not None
        self._waiting.put_nowait(tokens)

    def fail(self, error: EngineError) -> None:
        """The request ends with `error`, unless it has ended already."""
        if self._ended:
            return
        self._ended = True
        if self._accepted is not None and not self._accepted.done():
            self._accepted.set_exception(error)
        else:
            self._waiting.put_nowait(error)

    def _leave(self) -> None:
        self.cancel("abort")
        self._ended = True
        if self._accepted is not None and self._accepted.done() and not self._accepted.cancelled():
            self._accepted.exception()  # seen, even where the wait itself was cancelled
        self._connection.close_stream(self)

    @staticmethod
    def _quietly(send: Callable[[], None]) -> None:
        """A cancel that cannot be sent needs no sending: the engine that had the request is gone."""
        try:
            send()
        except EngineError:
            return
