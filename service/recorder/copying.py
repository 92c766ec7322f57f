"""The recorder's PostgreSQL side: binary COPY, straight into a table for new rows.

Changes and sums go by binary COPY into a temporary table, whose rows one statement then moves to where they belong: an
update for each row would cost a message each. The temporary tables live as long as their connection. What was moved
leaves dead rows, which no vacuum ever reaches in a temporary table, so they are truncated now and then; not with each
commit (ON COMMIT DELETE ROWS): that made a small transaction many times slower.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import psycopg
import sqlalchemy as sa
from sqlalchemy import exc

from service.recorder.changes import CHANGES
from service.recorder.statements import INSERTS, Row, minutes_conflict
from service.recorder.values import postgresql_values
from service.store import tables
from service.store.types import JSON, UtcDateTime

_MOVED = "recorder_moved_rows"
"""In a connection's info: rows moved since its temporary tables were made or truncated."""
_TRUNCATED_AFTER = 4000
_MINUTES = "minutes"
_BY_KEY = tuple(f"SET {name} = off" for name in ("enable_hashjoin", "enable_mergejoin", "jit"))
"""The temporary tables have no statistics: a few rows must not make the server read a whole trace, or compile."""


class _Copy(NamedTuple):
    """A COPY statement and the types of its columns on the wire."""

    text: str
    types: tuple[str, ...]


class PostgresqlWriter:
    """StoreWriter of PostgreSQL 15 and later."""

    def __init__(self, dialect: sa.Dialect) -> None:
        self.values = postgresql_values()
        self._inserts = {table.name: _copy(table.name, tuple(table.columns), dialect) for table in INSERTS}
        staged = {name: change.columns for name, change in CHANGES.items()}
        staged[_MINUTES] = tuple(tables.plan_minutes.columns)
        self._stage = {name: _copy(_staging(name), columns, dialect) for name, columns in staged.items()}
        self._truncate = f"TRUNCATE {', '.join(map(_staging, staged))}"
        self._once = (*_BY_KEY, *(_create(_staging(name), columns, dialect) for name, columns in staged.items()))
        self._apply = {name: change.update_from(_staging(name)) for name, change in CHANGES.items()}
        names = ", ".join(column.name for column in tables.plan_minutes.columns)
        self._apply[_MINUTES] = (
            f"WITH moved AS (DELETE FROM {_staging(_MINUTES)} RETURNING *)"
            f" INSERT INTO plan_minutes ({names}) SELECT {names} FROM moved{minutes_conflict()}"
        )

    def prepare(self, connection: sa.Connection) -> None:
        """Makes or truncates the temporary tables, in a transaction of its own: a rollback must not undo it."""
        moved = connection.info.get(_MOVED)
        if moved is not None and moved < _TRUNCATED_AFTER:
            return
        driver: Any = connection.connection.driver_connection
        with _wrapped(connection, self._truncate):
            for statement in self._once if moved is None else (self._truncate,):
                driver.execute(statement)
            driver.commit()
        connection.info[_MOVED] = 0

    def insert(self, connection: sa.Connection, table: str, rows: Sequence[Row]) -> None:
        _send(connection, self._inserts[table], rows)

    def change(self, connection: sa.Connection, name: str, rows: Sequence[Row]) -> None:
        self._move(connection, name, rows)

    def add_minutes(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        self._move(connection, _MINUTES, rows)

    def _move(self, connection: sa.Connection, name: str, rows: Sequence[Row]) -> None:
        """Through a temporary table to where the rows belong."""
        _send(connection, self._stage[name], rows)
        connection.exec_driver_sql(self._apply[name])
        connection.info[_MOVED] += len(rows)


def _send(connection: sa.Connection, copy: _Copy, rows: Sequence[Row]) -> None:
    driver: Any = connection.connection.driver_connection
    with _wrapped(connection, copy.text), driver.cursor() as cursor, cursor.copy(copy.text) as channel:
        channel.set_types(copy.types)
        write = channel.write_row
        for row in rows:
            write(row)


@contextlib.contextmanager
def _wrapped(connection: sa.Connection, statement: str) -> Iterator[None]:
    """The driver's errors as SQLAlchemy raises them for statements of its own."""
    try:
        yield
    except psycopg.Error as error:
        wrapped = exc.DBAPIError.instance(statement, None, error, psycopg.Error, dialect=connection.dialect)
        raise wrapped from error


def _staging(name: str) -> str:
    return f"recorder_{name}"


def _copy(table: str, columns: Sequence[sa.Column[Any]], dialect: sa.Dialect) -> _Copy:
    names = ", ".join(dialect.identifier_preparer.quote(column.name) for column in columns)
    return _Copy(f"COPY {table} ({names}) FROM STDIN (FORMAT BINARY)", tuple(map(_wire_type, columns)))


def _create(table: str, columns: Sequence[sa.Column[Any]], dialect: sa.Dialect) -> str:
    fields = ", ".join(f"{column.name} {column.type.compile(dialect)}" for column in columns)
    return f"CREATE TEMPORARY TABLE IF NOT EXISTS {table} ({fields})"


def _wire_type(column: sa.Column[Any]) -> str:
    """The type whose binary form the column's values have, as `values` makes them: times are 64-bit integers."""
    kind = column.type
    if kind is JSON or isinstance(kind, sa.LargeBinary):
        return "bytea"
    if isinstance(kind, sa.BigInteger | UtcDateTime):
        return "int8"
    for wanted, name in ((sa.Integer, "int4"), (sa.Float, "float8"), (sa.Boolean, "bool"), (sa.Text, "text")):
        if isinstance(kind, wanted):
            return name
    raise TypeError(f"{column}: no binary form is known for {kind!r}")
