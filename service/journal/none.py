"""No journal: what an engine has whose tracing is off, for measuring what a journal costs."""

from __future__ import annotations

from collections.abc import Sequence

from service.journal.records import Record
from service.journal.status import LOSSES, JournalStatus


class NoJournal:
    """Keeps nothing and loses nothing."""

    bytes_used = 0

    def status(self) -> JournalStatus:
        """Nothing is ever wrong with it."""
        return JournalStatus(dict.fromkeys(LOSSES, 0), 0, None)

    def append(self, records: Sequence[Record], last_fence: int) -> None:
        """Forget them."""

    def sync_if_due(self, now_ns: int) -> None:
        """There is nothing to sync."""

    def close(self) -> None:
        """There is nothing to close."""
