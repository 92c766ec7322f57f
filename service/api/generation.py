"""One request in flight: the engine's tokens in, pieces of text and their tokens out."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from service.api.context import ApiContext
from service.api.errors import GenerationFailed, ShuttingDown
from service.api.pieces import Piece, scored
from service.api.prompt_echo import PromptEcho
from service.ipc.errors import EngineError, EngineLost
from service.ipc.messages import Submit, Tokens, TokenScore
from service.text import AnswerText, Release

T = TypeVar("T")
CUT_OFF = "The server is shutting down; the answer is cut off here."
SETTLE_S = 5.0
"""How long after a stop string the engine's last message, with the final counts, is waited for."""


class Generation:
    """Enter it, wait for `admitted`, iterate `pieces`, leave it. Leaving early cancels the request in the engine.

    `finish_reason` ("stop" or "length") is set once pieces() has ended. `prompt_tokens` and `output_tokens` are
    the engine's counts so far; of an answer that a stop string has ended, `output_tokens` counts up to its end.
    `prompt_scores`: the log-probabilities of all prompt tokens but the first, where they were asked for.
    `interrupt` ends it with ShuttingDown at once, wherever it waits.
    """

    def __init__(
        self,
        context: ApiContext,
        submit: Submit,
        stops: Sequence[str],
        *,
        echo: PromptEcho | None = None,
        prompt_only: bool = False,
        scorer: Generation | None = None,
    ) -> None:
        """`echo` comes before the answer. `prompt_only`: the answer's tokens are neither published nor counted.

        `scorer`: another answer to the prompt, whose log-probabilities of it the echo shows; it is taken apart then.
        """
        self._context = context
        self._submit = submit
        self._echo = echo
        self._prompt_only = prompt_only
        self._scorer = scorer
        self._own_echo = echo if scorer is None else None
        self._answer = AnswerText(context.text_model.decoder(), stops, aligned=submit.logprobs is not None)
        self._scores: collections.deque[TokenScore] = collections.deque()
        self._answer_start = 0 if echo is None else len(echo.text)
        self._exit = contextlib.AsyncExitStack()
        self._cancel: Callable[[str, int | None], None] | None = None
        self._waiting: asyncio.Timeout | None = None
        self._interrupted = False
        self._entering: asyncio.Task[AsyncIterator[Tokens]] | None = None
        self.prompt_tokens = len(submit.prompt_token_ids)
        self.output_tokens = 0
        self.prompt_scores: list[TokenScore] = []
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

    @property
    def prompt_scored(self) -> bool:
        """All log-probabilities of the prompt have come."""
        return len(self.prompt_scores) == len(self._submit.prompt_token_ids) - 1

    @property
    def waits_for_scores(self) -> bool:
        """Its pieces must not be told yet: the echo before them shows what another answer's request has scored."""
        return self._scorer is not None and not self._scorer.prompt_scored

    def take_echo(self) -> Piece | None:
        """The echo that another answer's request has scored, to be told before its own pieces; once."""
        scorer, self._scorer = self._scorer, None
        return None if scorer is None or self._echo is None else self._echo.follow(scorer.prompt_scores)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Text as it becomes certain, none of them empty; behind the echo, if it is taken, they are the answer.

        They are to be read as they come, so that a stop string ends the request in time. Raises ShuttingDown,
        GenerationFailed, EngineLost, and the refusals of open().
        """
        entering = self._entering
        assert entering is not None
        stream = await self._interruptible(lambda: entering)
        while self.finish_reason is None:
            tokens = await self._interruptible(lambda: anext(stream, None))
            if tokens is None:
                raise EngineLost("the engine's answer ended early")
            self._count(tokens)
            for piece in self._pieces_of(tokens):
                if piece.text or piece.tokens:
                    yield piece
            if self._answer.stopped:
                if tokens.finish_reason is None:
                    await self._settle(stream)
                self.output_tokens = self._answer.counted_tokens
                self.finish_reason = "stop"
            elif tokens.finish_reason is not None and self.finish_reason is None:
                raise self._ended_badly(tokens)

    def _pieces_of(self, tokens: Tokens) -> list[Piece]:
        """What one message of the engine adds; sets `finish_reason` at a good end that no stop string brought."""
        if self._submit.prompt_logprobs is not None:
            self.prompt_scores += tokens.prompt_logprobs or ()
        pieces = [] if self._own_echo is None else [self._own_echo.follow(tokens.prompt_logprobs or ())]
        ended = tokens.finish_reason in ("stop", "length")
        if tokens.token_ids or ended:
            self._require_prompt_scores()
        if self._prompt_only:
            self.finish_reason = "length" if ended else None
            return pieces
        self._take_scores(tokens)
        pieces.append(self._piece(self._answer.feed(tokens.token_ids)))
        if ended and not self._answer.stopped:
            pieces.append(self._piece(self._answer.finish()))
            self.finish_reason = "stop" if self._answer.stopped else tokens.finish_reason
        return pieces

    def _piece(self, release: Release) -> Piece:
        tokens = tuple(scored(self._scores.popleft(), self._answer_start + start) for start in release.starts)
        answer = self._answer
        return Piece(release.text, tokens, answer.counted_tokens if answer.stopped else self.output_tokens)

    def _take_scores(self, tokens: Tokens) -> None:
        if self._submit.logprobs is None:
            return
        scores = tokens.logprobs or []
        if [score[0] for score in scores] != tokens.token_ids:
            raise GenerationFailed("The engine could not go on: it sent tokens without their log-probabilities.")
        self._scores += scores

    def _require_prompt_scores(self) -> None:
        if self._submit.prompt_logprobs is not None and not self.prompt_scored:
            raise GenerationFailed("The engine could not go on: it did not score the whole prompt.")

    def _count(self, tokens: Tokens) -> None:
        self.prompt_tokens = tokens.prompt_tokens
        self.output_tokens = 0 if self._prompt_only else tokens.output_tokens

    async def _settle(self, stream: AsyncIterator[Tokens]) -> None:
        """After a stop string: end the request and take the engine's last counts. The text is complete already."""
        assert self._cancel is not None
        self._cancel("stop", self._answer.whole_tokens)
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(0 if self._interrupted else SETTLE_S) as self._waiting:
                async for tokens in stream:
                    self._count(tokens)
                    if tokens.finish_reason is not None:
                        return

    def _ended_badly(self, tokens: Tokens) -> Exception:
        why = tokens.error or "the engine gave no reason"
        if tokens.finish_reason == "abort":
            # Unasked, only an engine that stops ends a request so. Its connection may be closed by now, so the
            # client's state no longer tells.
            return ShuttingDown(CUT_OFF)
        return GenerationFailed(f"The engine could not go on: {why}")

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
