"""Token ids to text as they arrive."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from service.text.vocabulary import TokenTable


class IncrementalDecoder:
    """Decodes one answer token by token; characters split over tokens come out when they are whole.

    Invariant: everything returned so far plus finish() equals TextModel.decode of all ids fed. Malformed bytes
    become U+FFFD as soon as they are known to be malformed.
    """

    __slots__ = ("_strip", "_table", "_utf8")

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip = table.strip_first_space

    def feed(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens completed; may be empty."""
        data = b"".join(map(self._table.bytes_of, token_ids))
        return self._start(self._utf8.decode(data))

    def finish(self) -> str:
        """What an unfinished character at the end decodes to; nothing may be fed afterwards."""
        return self._start(self._utf8.decode(b"", final=True))

    def _start(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text
