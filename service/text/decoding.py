"""Token ids to text as they arrive."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable

from service.text.vocabulary import TokenTable


class IncrementalDecoder:
    """Decodes one answer token by token; characters split over tokens come out when they are whole.

    Invariant: everything returned so far plus finish() equals TextModel.decode of all ids fed. Malformed bytes
    become U+FFFD as soon as they are known to be malformed.
    """

    __slots__ = ("_bytes_of", "_characters", "_strip", "_stripped", "_utf8")

    def __init__(self, table: TokenTable, *, written: bool = False) -> None:
        """`written`: special tokens appear as they are written in a prompt; without it they have no text."""
        self._bytes_of: Callable[[int], bytes] = table.written_bytes_of if written else table.bytes_of
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip = table.strip_first_space
        self._stripped = 0
        self._characters = 0

    def feed(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens completed; may be empty."""
        data = b"".join(map(self._bytes_of, token_ids))
        return self._start(self._utf8.decode(data))

    def feed_aligned(self, token_ids: Iterable[int]) -> tuple[str, list[int]]:
        """As feed(), and for each token the number of characters before the one in which its first byte lies.

        These starts never fall. Tokens that share a character share its start; a token without bytes starts where
        the next character begins.
        """
        pieces: list[str] = []
        starts: list[int] = []
        for token_id in token_ids:
            data = self._bytes_of(token_id)
            before = self._characters
            text = self._utf8.decode(data[:1])
            # The token's first character is the last one that is out, unless it is still incomplete.
            complete = bool(data) and not self._utf8.getstate()[0]
            starts.append(max(0, before + len(text) - complete - self._stripped))
            pieces.append(self._start(text + self._utf8.decode(data[1:])))
        return "".join(pieces), starts

    def finish(self) -> str:
        """What an unfinished character at the end decodes to; nothing may be fed afterwards."""
        return self._start(self._utf8.decode(b"", final=True))

    def _start(self, text: str) -> str:
        self._characters += len(text)
        if self._strip and text:
            self._strip = False
            self._stripped = int(text.startswith(" "))
            return text.removeprefix(" ")
        return text
