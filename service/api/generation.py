"""One request in flight: the engine's tokens in, pieces of text out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from service.api.context import ApiContext
from service.api.errors import GenerationFailed, ShuttingDown
from service.ipc.errors import EngineError, EngineLost
from service.ipc.messages import Submit, Tokens
from service.text import StopMatcher

T = TypeVar("T")
CUT_OFF = "The server is shutting down; the answer is cut off here."
SETTLE_S = 5.0
"""How long after a stop string the engine's last message, with the final counts, is waited for."""


class Generation:
    """Enter it, wait for `admitted`, iterate `pieces`, leave it. Leaving early cancels the request in the engine.

    `finish_reason` ("stop" or "length") is set once pieces() has ended. `prompt_tokens` and `output_tokens` are
    the engine's counts so far. `interrupt` ends it with ShuttingDown at once, wherever it waits.
    """

    def __init__(self, context: ApiContext, submit: Submit, stops: Sequence[str]) -> None:
        self._context = context
        self._submit = submit
        self._decoder = context.text_model.decoder()
        self._matcher = StopMatcher(stops)
        self._exit = contextlib.AsyncExitStack()
        self._cancel: Callable[[str], None] | None = None
        self._waiting: asyncio.Timeout | None = None
        self._interrupted = False
        self._entering: asyncio.Task[AsyncIterator[Tokens]] | None = None
        self.prompt_tokens = len(submit.prompt_token_ids)
        self.output_tokens = 0
        self.finish_reason: str | None = None

    async def open(self, wait_s: float | None) -> None:
        """Hand the request to the engine; waits `wait_s` for its acceptance (None: as long as it takes).

        Raises QueueFull, EngineUnavailable, EngineRefused or EngineLost. A refusal that comes later than `wait_s`
        is raised by pieces().
        """
        self._context.require_room()
        self._context.open.add(self)
        self._entering = asyncio.create_task(self._enter())
        try:
            entering = self._entering
            await self._interruptible(lambda: asyncio.wait({entering}, timeout=wait_s))
            if entering.done():
                entering.result()
        except BaseException:
            await self.close()
            raise

    async def _enter(self) -> AsyncIterator[Tokens]:
        stream = await self._exit.enter_async_context(self._context.engine.submit(self._submit))
        self._cancel = stream.cancel
        return aiter(stream)

    async def close(self) -> None:
        """Leave the engine's stream; the engine stops working for it after the running graph. Idempotent."""
        self._context.open.discard(self)
        entering, self._entering = self._entering, None
        if entering is not None:
            if not entering.done():
                entering.cancel()
            await asyncio.gather(entering, return_exceptions=True)
        await self._exit.aclose()

    def interrupt(self) -> None:
        """End with ShuttingDown at the next opportunity, which is now if it waits for the engine."""
        self._interrupted = True
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def pieces(self) -> AsyncIterator[str]:
        """Text as it becomes certain; joined it is the answer.

        Raises ShuttingDown, GenerationFailed, EngineLost, and the refusals of open().
        """
        entering = self._entering
        assert entering is not None
        stream = await self._interruptible(lambda: entering)
        while self.finish_reason is None:
            tokens = await self._interruptible(lambda: anext(stream, None))
            if tokens is None:
                raise EngineLost("the engine's answer ended early")
            self._count(tokens)
            text = self._matcher.feed(self._decoder.feed(tokens.token_ids))
            if not self._matcher.stopped and tokens.finish_reason in ("stop", "length"):
                text += self._matcher.feed(self._decoder.finish())
                text += self._matcher.finish()
                self.finish_reason = tokens.finish_reason
            if text:
                yield text
            if self._matcher.stopped:
                if tokens.finish_reason is None:
                    await self._settle(stream)
                self.finish_reason = "stop"
            elif tokens.finish_reason is not None and self.finish_reason is None:
                raise self._ended_badly(tokens)

    def _count(self, tokens: Tokens) -> None:
        self.prompt_tokens, self.output_tokens = tokens.prompt_tokens, tokens.output_tokens

    async def _settle(self, stream: AsyncIterator[Tokens]) -> None:
        """After a stop string: end the request and take the engine's last counts. The text is complete already."""
        assert self._cancel is not None
        self._cancel("stop")
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(0 if self._interrupted else SETTLE_S) as self._waiting:
                async for tokens in stream:
                    self._count(tokens)
                    if tokens.finish_reason is not None:
                        return

    def _ended_badly(self, tokens: Tokens) -> Exception:
        why = tokens.error or "the engine gave no reason"
        if tokens.finish_reason == "error":
            return GenerationFailed(f"The engine could not go on: {why}")
        if self._context.stopping or self._context.engine.state == "stopping":
            return ShuttingDown(CUT_OFF)
        return GenerationFailed(f"The engine ended the request: {why}")

    async def _interruptible(self, begin: Callable[[], Awaitable[T]]) -> T:
        """The result of what `begin` starts; raises ShuttingDown when interrupt() is called before it is there."""
        if self._interrupted:
            raise ShuttingDown(CUT_OFF)
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await begin()
        except TimeoutError:
            if not self._interrupted:
                raise
            raise ShuttingDown(CUT_OFF) from None
        finally:
            self._waiting = None
