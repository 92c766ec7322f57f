"""An answer's tokens to the text that is certain, and to the tokens which that text contains."""

from __future__ import annotations

import bisect
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
        self._may_stop = bool(stops)
        self._aligned = aligned
        self._waiting: list[int] = []
        self._released_characters = 0
        self._ends: list[int] = []  # of each token fed the characters up to its end; only where a stop may ask

    @property
    def stopped(self) -> bool:
        """A stop string was completed; nothing more comes out."""
        return self._matcher.stopped

    @property
    def whole_tokens(self) -> int:
        """After a stop: the tokens that lie wholly in the text before the stop string, the first of those fed."""
        place = bisect.bisect_left(self._ends, self._released_characters)
        reached = self._released_characters > 0 and self._ends[place] == self._released_characters
        return place + reached

    @property
    def counted_tokens(self) -> int:
        """After a stop: the tokens up to the one that completed the stop string, the first of those fed.

        What was computed behind it is no part of the answer.
        """
        place = bisect.bisect_left(self._ends, self._matcher.stop_end)
        return min(len(self._ends), place + 1)  # an unfinished character at the end is text of no token of its own

    def feed(self, token_ids: Iterable[int]) -> Release:
        """What these tokens made certain."""
        if self.stopped:
            return Release("")
        if not self._may_stop:
            return self._release(self._decode(token_ids))
        return self._release(self._matcher.feed("".join(self._ended(token_id) for token_id in token_ids)))

    def _ended(self, token_id: int) -> str:
        text = self._decode((token_id,))
        self._ends.append((self._ends[-1] if self._ends else 0) + len(text))
        return text

    def _decode(self, token_ids: Iterable[int]) -> str:
        if not self._aligned:
            return self._decoder.feed(token_ids)
        text, starts = self._decoder.feed_aligned(token_ids)
        self._waiting += starts
        return text

    def finish(self) -> Release:
        """What was held back, once no more can follow."""
        text = self._matcher.feed(self._decoder.finish())
        release = self._release(text + self._matcher.finish())
        rest, self._waiting = self._waiting, []
        return Release(release.text, (*release.starts, *rest))

    def _release(self, text: str) -> Release:
        self._released_characters += len(text)
        if not self._aligned:
            return Release(text)
        waiting = self._waiting
        count = next((i for i, start in enumerate(waiting) if start >= self._released_characters), len(waiting))
        released, self._waiting = waiting[:count], [] if self.stopped else waiting[count:]
        return Release(text, tuple(released))
