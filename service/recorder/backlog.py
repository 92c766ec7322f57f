"""What the journal keeps for the span collector alone: how much that is, and what is declared lost beyond the limit."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import pathlib

import sqlalchemy as sa

from service.journal.segments import segment_numbers, segment_path
from service.store.tables import trace_gaps


class Backlog:
    """Closed segments that wait for the collector. `limit_bytes`: how many bytes of them it may keep."""

    def __init__(self, directory: pathlib.Path, limit_bytes: int) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes

    def exceeded(self, segment: int) -> bool:
        """Whether the segments from `segment` on, but for the newest, take more than the limit."""
        return self.held_bytes(segment) > self._limit_bytes

    def held_bytes(self, segment: int) -> int:
        """Bytes on disk of the segments from `segment` on, but for the newest, which is written anyway."""
        total = 0
        for number in segment_numbers(self._directory)[:-1]:
            if number >= segment:
                with contextlib.suppress(FileNotFoundError):
                    total += segment_path(self._directory, number).stat().st_size
        return total


@dataclasses.dataclass(slots=True)
class SpanLoss:
    """Spans of one run that are lost for one reason, which grow in one row of trace_gaps.

    `from_fence`, `to_fence`: of the plans among them, as far as they are known. `row`: its id, once it is there.
    """

    run_id: str | None
    reason: str
    spans: int = 0
    from_fence: int | None = None
    to_fence: int | None = None
    row: int | None = None

    def add(self, spans: int, from_fence: int | None, to_fence: int | None) -> None:
        """More of them."""
        self.spans += spans
        if from_fence is not None and to_fence is not None:
            self.from_fence = from_fence if self.from_fence is None else min(self.from_fence, from_fence)
            self.to_fence = to_fence if self.to_fence is None else max(self.to_fence, to_fence)

    def store(self, connection: sa.Connection) -> int:
        """Write the row, or what has changed in it. Returns its id; it is `row` once the transaction has ended."""
        values = {
            "run_id": self.run_id,
            "from_fence": self.from_fence,
            "to_fence": self.to_fence,
            "noticed_at": dt.datetime.now(dt.UTC),
            "reason": f"{self.spans} spans were not sent: {self.reason}",
        }
        if self.row is not None:
            table = trace_gaps
            changed = connection.execute(table.update().where(table.c.id == self.row).values(**values))
            if changed.rowcount:
                return self.row
        inserted = connection.execute(trace_gaps.insert().values(**values)).inserted_primary_key
        assert inserted is not None
        return int(inserted[0])
