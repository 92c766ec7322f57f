"""An answer's tokens to the text that is certain, and to the tokens which that text contains."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from service.text.decoding import IncrementalDecoder
from service.text.stopping import StopMatcher


@dataclasses.dataclass(frozen=True, slots=True)
class Release:
    """Text that is now certain, and of each token that it brings along the character where that token begins.

    Tokens come out in the order in which they were fed.
    """

    text: str
    starts: tuple[int, ...] = ()


class AnswerText:
    """Decodes one answer and ends it before the first stop string.

    A token belongs to the answer if its first character does, and comes out together with that character; without a
    stop string every token belongs to it. Text and tokens do not depend on how the tokens were cut into feeds.
    """

    def __init__(self, decoder: IncrementalDecoder, stops: Sequence[str], *, aligned: bool) -> None:
        """`aligned`: releases name their tokens. Without it only text is kept track of, which is quicker."""
        self._decoder = decoder
        self._matcher = StopMatcher(stops)
        self._aligned = aligned
        self._waiting: list[int] = []
        self._released_characters = 0

    @property
    def stopped(self) -> bool:
        """A stop string was completed; nothing more comes out."""
        return self._matcher.stopped

    def feed(self, token_ids: Iterable[int]) -> Release:
        """What these tokens made certain."""
        if not self._aligned:
            return Release(self._matcher.feed(self._decoder.feed(token_ids)))
        if self.stopped:
            return Release("")
        text, starts = self._decoder.feed_aligned(token_ids)
        self._waiting += starts
        return self._release(self._matcher.feed(text))

    def finish(self) -> Release:
        """What was held back, once no more can follow."""
        text = self._matcher.feed(self._decoder.finish())
        release = self._release(text + self._matcher.finish())
        rest, self._waiting = self._waiting, []
        return Release(release.text, (*release.starts, *rest))

    def _release(self, text: str) -> Release:
        self._released_characters += len(text)
        waiting = self._waiting
        count = next((i for i, start in enumerate(waiting) if start >= self._released_characters), len(waiting))
        released, self._waiting = waiting[:count], [] if self.stopped else waiting[count:]
        return Release(text, tuple(released))
