"""SQLite's write-ahead log stays bounded, whoever reads.

A transaction that reads and does not end keeps SQLite from starting its log anew, which then grows with every write. So
beyond a limit nothing is written until the reader has ended: records wait in the journal, which has a budget, and the
lag shows in the metrics and at /health/ready.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import sqlalchemy as sa

from service.journal.reader import Position
from service.recorder.gauges import wal_path
from service.recorder.pump import Delivery, Item, Sink, SinkUnavailable
from service.store.engines import sqlite_path

AGAIN_S = 1.0


class WalLimit:
    """How large the log of `engine`'s file may be for whoever writes much."""

    def __init__(self, engine: sa.Engine, limit_bytes: int) -> None:
        self._engine = engine
        self._wal = wal_path(sqlite_path(engine.url))
        self._limit_bytes = limit_bytes

    def require_room(self) -> None:
        """Let a log that is too large begin anew. Raises SinkUnavailable where a reader keeps it."""
        if self._size() <= self._limit_bytes:
            return
        connection = self._engine.raw_connection()  # outside a transaction, where a checkpoint is possible
        try:
            connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise SinkUnavailable(f"{self._wal.name} cannot be shortened now: {error}", AGAIN_S) from error
        finally:
            connection.close()
        size = self._size()
        if size > self._limit_bytes:
            raise SinkUnavailable(
                f"{self._wal.name} has {size:,} bytes, which a reader's open transaction keeps; end that transaction",
                AGAIN_S,
            )

    def _size(self) -> int:
        try:
            return self._wal.stat().st_size
        except OSError:
            return 0


class BoundedWal:
    """`sink`, whose deliveries wait while the log is larger than its limit and cannot shrink."""

    def __init__(self, sink: Sink, limit: WalLimit) -> None:
        self._sink = sink
        self._limit = limit

    @property
    def name(self) -> str:
        """The sink's."""
        return self._sink.name

    @property
    def run_id(self) -> str | None:
        """The sink's."""
        return self._sink.run_id

    @property
    def run_open(self) -> bool:
        """The sink's."""
        return self._sink.run_open

    def resume(self) -> Position | None:
        """As the sink."""
        return self._sink.resume()

    def deliver(self, items: Sequence[Item]) -> Delivery:
        """As the sink. Raises SinkUnavailable while the log is too large."""
        self._limit.require_room()
        return self._sink.deliver(items)

    def close_lost_run(self) -> None:
        """As the sink."""
        self._sink.close_lost_run()

    def idle(self) -> None:
        """As the sink."""
        self._sink.idle()

    def needed_segment(self, position: Position) -> int:
        """As the sink."""
        return self._sink.needed_segment(position)
