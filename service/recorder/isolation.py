"""One bad record costs only itself: a batch that the database refuses is halved until the bad record stands alone.

Everything happens inside the batch's own transaction, in savepoints, so a crash in the middle undoes it whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from service.journal.records import Record, RunEnded
from service.recorder.errors import blames_record
from service.recorder.rows import RowBuilder
from service.recorder.staging import Staging, StagingChecks
from service.recorder.statements import StoreWriter


class Refusal(NamedTuple):
    """A record that cannot be stored, and why."""

    record: Record
    error: Exception


class IsolatingStore:
    """Stores a run's records through a writer. `step` is called before each attempt; tests stop there."""

    def __init__(self, writer: StoreWriter, step: Callable[[str], None]) -> None:
        self._writer = writer
        self._checks = StagingChecks(writer.values.null)
        self._step = step

    def store(
        self, connection: sa.Connection, build: RowBuilder, records: Sequence[Record]
    ) -> tuple[list[Refusal], RunEnded | None]:
        """All records in order, together where that is possible. Returns the refused ones and the run's end.

        Raises what is not a record's fault.
        """
        self._step("rows")
        try:
            with connection.begin_nested():
                staging = Staging(build, records)
                staging.write(connection, self._writer, self._checks)
                self._step("written")
        except Exception as error:
            if not blames_record(error):
                raise
            if len(records) == 1:
                return [Refusal(records[0], error)], None
        else:
            return [], staging.ended
        half = len(records) // 2
        refused, ended = self.store(connection, build, records[:half])
        more, later = self.store(connection, build, records[half:])
        return refused + more, later or ended
