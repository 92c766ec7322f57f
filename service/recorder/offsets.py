"""Where each sink stands in a journal: the table journal_offsets, and the segments that nobody needs any more."""

from __future__ import annotations

import contextlib
import datetime as dt
import pathlib
from types import ModuleType

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from service.journal.reader import Position
from service.journal.segments import segment_numbers, segment_path
from service.store.tables import journal_offsets

SQL_SINK = "sql"
OTLP_SINK = "otlp"
OTLP_OPEN = "otlp.open"
"""Not a sink: where the oldest plan or request begins whose span is still open. Never behind sink "otlp"."""


def _upsert(dialect: ModuleType) -> sa.Executable:
    """Made once for each dialect: making it costs more than running it."""
    key = ("journal_id", "sink")
    insert = dialect.insert(journal_offsets).values({c.name: sa.bindparam(c.name) for c in journal_offsets.columns})
    moved = {c.name: insert.excluded[c.name] for c in journal_offsets.columns if c.name not in key}
    upsert: sa.Executable = insert.on_conflict_do_update(index_elements=key, set_=moved)
    return upsert


_UPSERTS = {"sqlite": _upsert(sqlite), "postgresql": _upsert(postgresql)}


def load_offset(connection: sa.Connection, journal_id: str, sink: str) -> tuple[Position | None, str | None]:
    """The sink's position and the run it was in; (None, None) before its first commit."""
    table = journal_offsets
    row = connection.execute(
        sa.select(table.c.segment, table.c.offset, table.c.sequence, table.c.run_id).where(
            table.c.journal_id == journal_id, table.c.sink == sink
        )
    ).one_or_none()
    return (None, None) if row is None else (Position(*row[:3]), row[3])


def store_offset(connection: sa.Connection, journal_id: str, sink: str, position: Position, run_id: str | None) -> None:
    """Insert or move the sink's row."""
    values = {**position._asdict(), "run_id": run_id, "updated_at": dt.datetime.now(dt.UTC)}
    statement = _UPSERTS[connection.dialect.name]
    connection.execute(statement, {"journal_id": journal_id, "sink": sink, **values})


def drop_offsets(connection: sa.Connection, journal_id: str, *sinks: str) -> None:
    """Forget sinks that are switched off, so that they hold no segments and miss none later."""
    connection.execute(
        journal_offsets.delete().where(journal_offsets.c.journal_id == journal_id, journal_offsets.c.sink.in_(sinks))
    )


class ShippedSegments:
    """Deletes segments that every sink has passed. `sinks` are the ones that must have passed; thread-safe."""

    def __init__(self, directory: pathlib.Path, *sinks: str) -> None:
        self._directory = directory
        self._segments = dict.fromkeys(sinks, 0)

    def passed(self, sink: str, segment: int) -> None:
        """The sink needs nothing before `segment`."""
        advanced = segment > self._segments[sink]
        self._segments[sink] = segment
        if not advanced:
            return
        needed = min(self._segments.values())
        for number in segment_numbers(self._directory)[:-1]:  # the newest is never removed: its number goes on
            if number < needed:
                with contextlib.suppress(OSError):
                    segment_path(self._directory, number).unlink(missing_ok=True)
