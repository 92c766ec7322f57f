"""The answers to one prompt: `n` generations at once, their pieces in the order in which they become certain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

from service.api.context import ApiContext
from service.api.generation import Generation
from service.api.pieces import FinishedChoice, Piece, ScoredToken

_Told = tuple[int, Piece | None]
_Item = _Told | Exception


class Choices:
    """Open it, iterate `pieces`, close it. Closing early cancels every request that has not ended."""

    def __init__(self, context: ApiContext, generations: Sequence[Generation]) -> None:
        """At least one generation; its place is the choice's index. The first alone may have the prompt scored."""
        self._context = context
        self.generations = tuple(generations)
        self._pumps: list[asyncio.Task[None]] = []

    @property
    def prompt_tokens(self) -> int:
        """The prompt's tokens, counted once."""
        return self.generations[0].prompt_tokens

    @property
    def output_tokens(self) -> int:
        """The tokens of all answers so far."""
        return sum(generation.output_tokens for generation in self.generations)

    async def open(self, wait_s: float | None) -> None:
        """Hand every request to the engine, as Generation.open does. When one is refused, none is left open.

        Raises the first refusal by index.
        """
        self._context.require_room(len(self.generations))
        try:
            opened = await asyncio.gather(
                *(generation.open(wait_s) for generation in self.generations), return_exceptions=True
            )
            for outcome in opened:
                if outcome is not None:
                    raise outcome
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Leave the engine's streams. Idempotent."""
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await asyncio.gather(*(generation.close() for generation in self.generations))

    async def pieces(self) -> AsyncIterator[tuple[int, Piece | None]]:
        """Each piece with its choice's index, and None once a choice is complete. Raises what ends any of them."""
        if len(self.generations) == 1:
            async for piece in self.generations[0].pieces():
                yield 0, piece
            yield 0, None
            return
        items: asyncio.Queue[_Item] = asyncio.Queue()
        self._pumps = [
            asyncio.create_task(_pump(index, generation, items)) for index, generation in enumerate(self.generations)
        ]
        running = len(self._pumps)
        held: list[_Told] = []
        while running:
            item = await items.get()
            if isinstance(item, Exception):
                raise item
            running -= item[1] is None
            if self.generations[item[0]].waits_for_scores:
                held.append(item)
                continue
            ready = [item]
            if self.generations[0].prompt_scored:
                ready, held = [*held, item], []
            for told in self._behind_echoes(ready):
                yield told

    def _behind_echoes(self, items: Sequence[_Told]) -> Iterator[_Told]:
        """The items, each choice's first one behind the echo that another's request has scored."""
        for index, piece in items:
            echo = self.generations[index].take_echo()
            if echo is not None:
                yield index, echo
            yield index, piece

    async def collect(self) -> list[FinishedChoice]:
        """Every answer whole, by index."""
        texts: list[list[str]] = [[] for _ in self.generations]
        tokens: list[list[ScoredToken]] = [[] for _ in self.generations]
        async for index, piece in self.pieces():
            if piece is not None:
                texts[index].append(piece.text)
                tokens[index] += piece.tokens
        prompt_scores = self.generations[0].prompt_scores
        return [
            FinishedChoice("".join(text), tuple(scored), generation.finish_reason or "stop", prompt_scores)
            for text, scored, generation in zip(texts, tokens, self.generations, strict=True)
        ]


async def _pump(index: int, generation: Generation, items: asyncio.Queue[_Item]) -> None:
    try:
        async for piece in generation.pieces():
            items.put_nowait((index, piece))
        items.put_nowait((index, None))
    except Exception as error:
        items.put_nowait(error)
