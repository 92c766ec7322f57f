"""The decision log's records as rows: consecutive calls of one transaction become one row."""

from __future__ import annotations

from typing import Any

from service.journal.records import SchedulerCalls, SchedulerCheckpoint
from service.store.decision_log import LARGEST_CHUNK, pack_calls


class LogChunks:
    """Rows of decision_log for one run, every column in the table's order."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._rows: list[tuple[Any, ...]] = []
        self._waiting: list[SchedulerCalls] = []
        self._bytes = 0

    def add_calls(self, record: SchedulerCalls) -> None:
        """Calls join those before them, unless some are missing between them or the row would become too large."""
        waiting = self._waiting
        if waiting:
            before = waiting[-1]
            follows = before.first_call + before.calls == record.first_call
            if not follows or self._bytes + len(record.data) > LARGEST_CHUNK:
                self._close()
        self._waiting.append(record)
        self._bytes += len(record.data)

    def add_checkpoint(self, record: SchedulerCheckpoint) -> None:
        """A checkpoint has a row of its own."""
        self._close()
        fence = record.last_fence
        self._rows.append((self._run_id, record.call, 1, fence + 1, fence, 1, record.data))

    def rows(self) -> list[tuple[Any, ...]]:
        """What was added."""
        self._close()
        return self._rows

    def _close(self) -> None:
        waiting = self._waiting
        if not waiting:
            return
        first, last = waiting[0], waiting[-1]
        calls = last.first_call + last.calls - first.first_call
        blob = pack_calls([record.data for record in waiting])
        self._rows.append((self._run_id, first.first_call, calls, first.first_fence, last.last_fence, 0, blob))
        self._waiting, self._bytes = [], 0
