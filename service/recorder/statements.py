"""What the recorder asks of a database, and its SQLite side: tuples straight into the driver's executemany.

SQLAlchemy would look at each of them once more. What they cost is measured by benchmarks/bench_recorder.py. The texts
are made once, from the store's tables and `changes`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Protocol

import sqlalchemy as sa

from service.recorder.changes import CHANGES
from service.recorder.days import RUN_DAYS, RunDays
from service.recorder.driver_errors import as_sqlalchemy
from service.recorder.values import Values, sqlite_values
from service.store import tables

Row = Sequence[Any]

INSERTS = (
    tables.engine_runs,
    tables.policy_applications,
    tables.requests,
    tables.plans,
    tables.plan_lanes,
    tables.plan_alternatives,
    tables.decision_log,
)
"""Tables that get rows of their own, in the order in which they do."""
GROUP = (*tables.SHAPE_COLUMNS, "reason")
"""What plan_minutes groups plans by, beside their minute and run."""
_MINUTE_KEY = tuple(column.name for column in tables.plan_minutes.primary_key)
_MINUTE_LARGEST = "device_ms_max"
_FENCES_AT_ONCE = 500


class StoreWriter(Protocol):
    """Writes rows that hold every column in the table's order, each value as `values` has it.

    All rows of a call belong to one run. Raises the driver's errors wrapped by SQLAlchemy, or ValueError, TypeError and
    OverflowError for a value that the driver cannot pass on; the caller then rolls its savepoint back.
    """

    values: Values

    def prepare(self, connection: sa.Connection) -> None:
        """Called in each transaction before its first statement."""

    def insert(self, connection: sa.Connection, table: str, rows: Sequence[Row]) -> None:
        """Insert rows of one of INSERTS."""

    def change(self, connection: sa.Connection, name: str, rows: Sequence[Row]) -> None:
        """Apply one of CHANGES; a row that is not stored is left out."""

    def add_minutes(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        """Add rows of plan_minutes to those that are there."""


class SqliteWriter:
    """StoreWriter of SQLite."""

    def __init__(self, dialect: sa.Dialect) -> None:
        quote = dialect.identifier_preparer.quote
        self.values = sqlite_values()
        self._inserts = {table.name: _insert_text(table, quote) for table in INSERTS}
        self._changes = {name: change.update_one() for name, change in CHANGES.items()}
        self._add_minutes = _insert_text(tables.plan_minutes, quote) + minutes_conflict()

    def prepare(self, connection: sa.Connection) -> None:
        pass

    def insert(self, connection: sa.Connection, table: str, rows: Sequence[Row]) -> None:
        _execute(connection, self._inserts[table], rows)

    def change(self, connection: sa.Connection, name: str, rows: Sequence[Row]) -> None:
        _execute(connection, self._changes[name], rows)

    def add_minutes(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        _execute(connection, self._add_minutes, rows)


def _execute(connection: sa.Connection, statement: str, rows: Sequence[Row]) -> None:
    driver: Any = connection.connection.driver_connection
    with as_sqlalchemy(connection, statement, sqlite3.Error):
        driver.executemany(statement, rows)


def running_plans(connection: sa.Connection, run_id: str, fences: Sequence[int]) -> list[tuple[Any, ...]]:
    """Fence, shape and reason, and selected_cost_ms of those of the plans that the store has and has no end of."""
    return _of_fences(
        connection,
        f"SELECT fence, {', '.join(GROUP)}, selected_cost_ms FROM plans WHERE completed_at IS NULL AND",
        run_id,
        fences,
    )


def stored_lanes(connection: sa.Connection, run_id: str, fences: Sequence[int]) -> list[tuple[Any, ...]]:
    """Fence, lane number and request id of every lane that the store has of these plans, in that order."""
    return _of_fences(connection, "SELECT fence, lane, request_id FROM plan_lanes WHERE", run_id, fences)


def minutes_conflict() -> str:
    """The end of an insert into plan_minutes: what happens to a row that is there already."""
    changes = [
        f"{name} = CASE WHEN excluded.{name} > plan_minutes.{name} THEN excluded.{name} ELSE plan_minutes.{name} END"
        if name == _MINUTE_LARGEST
        else f"{name} = plan_minutes.{name} + excluded.{name}"
        for name in (column.name for column in tables.plan_minutes.columns)
        if name not in _MINUTE_KEY
    ]
    return f" ON CONFLICT ({', '.join(_MINUTE_KEY)}) DO UPDATE SET {', '.join(changes)}"


def _insert_text(table: sa.Table, quote: Any) -> str:
    names = ", ".join(quote(column.name) for column in table.columns)
    return f"INSERT INTO {table.name} ({names}) VALUES ({', '.join('?' * len(table.columns))})"


def _of_fences(connection: sa.Connection, text: str, run_id: str, fences: Sequence[int]) -> list[tuple[Any, ...]]:
    mark = "%s" if connection.dialect.name == "postgresql" else "?"
    days: RunDays | None = connection.info.get(RUN_DAYS)
    found: list[tuple[Any, ...]] = []
    for start in range(0, len(fences), _FENCES_AT_ONCE):
        some = fences[start : start + _FENCES_AT_ONCE]
        where = f"run_id = {mark} AND fence IN ({', '.join([mark] * len(some))})"
        where += "" if days is None else days.condition(run_id, some)
        found.extend(tuple(row) for row in connection.exec_driver_sql(f"{text} {where}", (run_id, *some)))
    return sorted(found)
