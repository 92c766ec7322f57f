"""How long the reads of one view may take, enforced inside the database, and how somebody else ends them sooner.

A limit belongs to an engine: `limited(engine, limit)` is the same engine with the same pool, whose read transactions
(service.store.engines.read_transaction) keep to it. SQLite asks every few thousand of its own steps whether to go on,
PostgreSQL gets what is left as its statement_timeout.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy import event, exc

from service.store.errors import ReadTooLong, StoreUnavailable

READ_LIMIT = "helios_read_limit"
_STEPS_BETWEEN_CHECKS = 20_000  # SQLite's own steps, about a millisecond
_CANCEL_TIMEOUT_S = 2.0


class ReadLimit:
    """The time that the reads of one view have, from now on. One thread reads, any other may cancel."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._cancelled = False
        self._running: psycopg.Connection[Any] | None = None

    @property
    def left_s(self) -> float:
        """Seconds that are left; none after a cancellation."""
        return 0.0 if self._cancelled else max(0.0, self._deadline - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether to stop reading."""
        return self.left_s == 0

    def cancel(self) -> None:
        """Ends what runs under this limit, and lets nothing more begin. PostgreSQL may take up to two seconds."""
        with self._lock:
            self._cancelled = True
            if self._running is not None:
                with contextlib.suppress(psycopg.Error):
                    self._running.cancel_safe(timeout=_CANCEL_TIMEOUT_S)

    def check(self) -> None:
        """Raises ReadTooLong when there is no time left."""
        if self.is_over:
            raise ReadTooLong(
                f"This was stopped after {self.seconds:g} s, as long as one view or listing may read; ask for a "
                "shorter span of time or fewer rows"
            )

    @contextlib.contextmanager
    def enforced(self, connection: sa.Connection) -> Iterator[None]:
        """Holds every statement of this connection to the limit inside the block. Raises ReadTooLong."""
        self.check()
        event.listen(connection, "before_cursor_execute", self._before_statement)
        enforce = self._on_sqlite if connection.dialect.name == "sqlite" else self._on_postgresql
        try:
            with enforce(connection):
                yield
        except exc.DBAPIError as error:
            if self.is_over or isinstance(error.orig, psycopg.errors.QueryCanceled):
                self._deadline = 0.0
                self.check()
            raise
        except MemoryError as error:
            raise StoreUnavailable(
                "This needs more memory than SQLite may have; ask for a shorter span of time or fewer rows"
            ) from error
        finally:
            event.remove(connection, "before_cursor_execute", self._before_statement)

    def _before_statement(self, *_: object) -> None:
        self.check()

    @contextlib.contextmanager
    def _on_sqlite(self, connection: sa.Connection) -> Iterator[None]:
        driver: Any = connection.connection.driver_connection
        driver.set_progress_handler(lambda: self.is_over, _STEPS_BETWEEN_CHECKS)
        try:
            yield
        finally:
            driver.set_progress_handler(None, 0)

    @contextlib.contextmanager
    def _on_postgresql(self, connection: sa.Connection) -> Iterator[None]:
        driver: Any = connection.connection.driver_connection
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {max(1, round(self.left_s * 1000))}")
        with self._lock:
            self._running = driver
        try:
            yield
        finally:
            with self._lock:
                self._running = None
            if self._cancelled:  # a cancellation that comes late would end the connection's next statement
                connection.invalidate()


def limited(engine: sa.Engine, limit: ReadLimit) -> sa.Engine:
    """The engine, its pool included, with a limit on what it reads."""
    return engine.execution_options(**{READ_LIMIT: limit})


@contextlib.contextmanager
def within_limit(engine: sa.Engine, connection: sa.Connection) -> Iterator[None]:
    """Holds the connection to the engine's limit, if it has one. Raises ReadTooLong."""
    limit = engine.get_execution_options().get(READ_LIMIT)
    if not isinstance(limit, ReadLimit):
        yield
        return
    with limit.enforced(connection):
        yield
