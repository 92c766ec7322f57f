"""The recorder's PostgreSQL side: binary COPY, straight into a table for new rows.

Plans, their lanes and their runner-ups go to the partition of the day of the plan's commit
(`service.store.partitions`): straight into it where it is known to be there, else through the table, with the day
beside their columns. The day follows from the record alone, so that a plan which is written a second time meets
itself, whenever that is, and fails by its key (run, fence and day) as it would by run and fence. That no plan is
written twice is not the key's work but that of the offset in the same transaction.

Changes and sums go by binary COPY into a temporary table, whose rows one statement then moves to where they belong: an
update for each row would cost a message each. The temporary tables live as long as their connection. What was moved
leaves dead rows, which no vacuum ever reaches in a temporary table, so they are truncated now and then; not with each
commit (ON COMMIT DELETE ROWS): that made a small transaction many times slower.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import psycopg
import sqlalchemy as sa
from sqlalchemy import exc

from service.recorder.changes import CHANGES
from service.recorder.days import DAY_US, RUN_DAYS, RunDays, date_of
from service.recorder.driver_errors import as_sqlalchemy
from service.recorder.statements import INSERTS, Row, minutes_conflict
from service.recorder.values import postgresql_values
from service.store import tables
from service.store.partitions import (
    DAYS_AHEAD,
    PARTITIONED,
    RECORDED_ON,
    add_day,
    has_partition,
    partition_name,
    utc_day,
)
from service.store.types import JSON, UtcDateTime

_MOVED = "recorder_moved_rows"
"""In a connection's info: rows moved since its temporary tables were made or truncated."""
_TRUNCATED_AFTER = 4000
_MINUTES = "minutes"
_BY_KEY = tuple(f"SET {name} = off" for name in ("enable_hashjoin", "enable_mergejoin", "jit"))
"""The temporary tables have no statistics: a few rows must not make the server read a whole trace, or compile."""


_DAY_TYPE = "int4"
"""On the wire: days since 2000-01-01."""
_COMMITTED_AT = tables.plans.columns.keys().index("committed_at")
_FENCE = 1  # in the rows of all three tables, and in those of their changes
_OLDEST_DAY_MADE = 366
"""Days back. A record of a clock that went wrong gets no partition of its own."""
_BY_DAY = frozenset(PARTITIONED)


class _Copy(NamedTuple):
    """A COPY statement and the types of its columns on the wire."""

    text: str
    types: tuple[str, ...]
    columns: tuple[str, ...]


def _utc_today() -> dt.date:
    return utc_day(dt.datetime.now(dt.UTC))


class PostgresqlWriter:
    """StoreWriter of PostgreSQL 15 and later. `today` is asked once for each new day of plans, in UTC."""

    def __init__(self, dialect: sa.Dialect, today: Callable[[], dt.date] = _utc_today) -> None:
        self.values = postgresql_values()
        self._today = today
        self._run_days = RunDays()
        self._days: int | dict[int, int] = 0  # of all plans of the last insert, or by fence
        self._partitions: set[int] = set()
        self._without_partitions: set[int] = set()
        self._inserts = {table.name: _copy(table.name, _columns(table), dialect) for table in INSERTS}
        staged = {name: change.columns for name, change in CHANGES.items()}
        staged[_MINUTES] = tuple(tables.plan_minutes.columns)
        self._stage = {name: _copy(_staging(name), columns, dialect) for name, columns in staged.items()}
        self._truncate = f"TRUNCATE {', '.join(map(_staging, staged))}"
        self._once = (*_BY_KEY, *(_create(_staging(name), columns, dialect) for name, columns in staged.items()))
        self._apply = {name: change.update_from(_staging(name)) for name, change in CHANGES.items()}
        self._of_plans = {name for name, change in CHANGES.items() if change.table.name in _BY_DAY}
        names = ", ".join(column.name for column in tables.plan_minutes.columns)
        self._apply[_MINUTES] = (
            f"WITH moved AS (DELETE FROM {_staging(_MINUTES)} RETURNING *)"
            f" INSERT INTO plan_minutes ({names}) SELECT {names} FROM moved{minutes_conflict()}"
        )

    def prepare(self, connection: sa.Connection) -> None:
        """Makes or truncates the temporary tables, in a transaction of its own: a rollback must not undo it."""
        connection.info[RUN_DAYS] = self._run_days
        moved = connection.info.get(_MOVED)
        if moved is not None and moved < _TRUNCATED_AFTER:
            return
        driver: Any = connection.connection.driver_connection
        with as_sqlalchemy(connection, self._truncate, psycopg.Error):
            for statement in self._once if moved is None else (self._truncate,):
                driver.execute(statement)
            driver.commit()
        connection.info[_MOVED] = 0

    def insert(self, connection: sa.Connection, table: str, rows: Sequence[Row]) -> None:
        if table not in _BY_DAY:
            _send(connection, self._inserts[table], rows)
            return
        if table == tables.plans.name:
            self._note_days(connection, rows)
        days = self._days
        if isinstance(days, int) and days in self._partitions:
            with self._forgetting_partitions():
                _send(connection, self._into_day(table, days), rows)
        else:
            of = (days if isinstance(days, int) else days[row[_FENCE]] for row in rows)
            _send(connection, self._inserts[table], [(*row, day) for row, day in zip(rows, of, strict=True)])

    def change(self, connection: sa.Connection, name: str, rows: Sequence[Row]) -> None:
        days = self._run_days.condition(rows[0][0], [row[_FENCE] for row in rows]) if name in self._of_plans else ""
        self._move(connection, name, rows, days)

    def add_minutes(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        self._move(connection, _MINUTES, rows)

    def _move(self, connection: sa.Connection, name: str, rows: Sequence[Row], condition: str = "") -> None:
        """Through a temporary table to where the rows belong."""
        _send(connection, self._stage[name], rows)
        connection.exec_driver_sql(self._apply[name] + condition)
        connection.info[_MOVED] += len(rows)

    def _note_days(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        """Of rows of plans; the rows of lanes and runner-ups that follow belong to these plans."""
        days = [row[_COMMITTED_AT] // DAY_US for row in rows]
        fences = [row[_FENCE] for row in rows]
        self._run_days.note(rows[0][0], fences, days)
        self._days = days[0] if days.count(days[0]) == len(days) else dict(zip(fences, days, strict=True))
        for day in set(days) - self._partitions - self._without_partitions:
            self._look_for_partition(connection, day)

    def _look_for_partition(self, connection: sa.Connection, day: int) -> None:
        """Make the day's partitions unless the recorder's housekeeping has, as it does ahead of time.

        One that this transaction makes is looked for again in the next one, as this one may be rolled back. A day that
        cannot have one has its rows in the default partition, and is not tried again.
        """
        date, today = date_of(day), self._today()
        if has_partition(connection, date, to_insert=True):
            self._partitions.add(day)
        elif not -_OLDEST_DAY_MADE <= (date - today).days <= DAYS_AHEAD or not add_day(connection, date):
            self._without_partitions.add(day)

    def _into_day(self, table: str, day: int) -> _Copy:
        """Into the partition, which knows its day: that spares a column of every row, and finding its place."""
        plain = self._inserts[table]
        name = partition_name(table, date_of(day))
        columns = plain.columns[:-1]
        return _Copy(f"COPY {name} ({', '.join(columns)}) FROM STDIN (FORMAT BINARY)", plain.types[:-1], columns)

    @contextlib.contextmanager
    def _forgetting_partitions(self) -> Iterator[None]:
        """A partition that is gone, or that this user may no longer write, is not written to again."""
        try:
            yield
        except exc.ProgrammingError:
            self._partitions.clear()
            raise


def _send(connection: sa.Connection, copy: _Copy, rows: Sequence[Row]) -> None:
    driver: Any = connection.connection.driver_connection
    with (
        as_sqlalchemy(connection, copy.text, psycopg.Error),
        driver.cursor() as cursor,
        cursor.copy(copy.text) as channel,
    ):
        channel.set_types(copy.types)
        write = channel.write_row
        for row in rows:
            write(row)


def _staging(name: str) -> str:
    return f"recorder_{name}"


def _copy(table: str, columns: Sequence[sa.Column[Any]], dialect: sa.Dialect) -> _Copy:
    names = tuple(dialect.identifier_preparer.quote(column.name) for column in columns)
    text = f"COPY {table} ({', '.join(names)}) FROM STDIN (FORMAT BINARY)"
    return _Copy(text, tuple(map(_wire_type, columns)), names)


def _create(table: str, columns: Sequence[sa.Column[Any]], dialect: sa.Dialect) -> str:
    fields = ", ".join(f"{column.name} {column.type.compile(dialect)}" for column in columns)
    return f"CREATE TEMPORARY TABLE IF NOT EXISTS {table} ({fields})"


def _columns(table: sa.Table) -> tuple[sa.Column[Any], ...]:
    """The columns of an insert's rows: the day comes last, as `recorded_on` is no column of the tables on SQLite."""
    return (*table.columns, *([sa.Column(RECORDED_ON.name, RECORDED_ON.type)] if table.name in _BY_DAY else []))


def _wire_type(column: sa.Column[Any]) -> str:
    """The type whose binary form the column's values have, as `values` makes them: times are 64-bit integers."""
    kind = column.type
    if kind is JSON or isinstance(kind, sa.LargeBinary):
        return "bytea"
    if isinstance(kind, sa.Date):
        return _DAY_TYPE
    if isinstance(kind, sa.BigInteger | UtcDateTime):
        return "int8"
    for wanted, name in ((sa.Integer, "int4"), (sa.Float, "float8"), (sa.Boolean, "bool"), (sa.Text, "text")):
        if isinstance(kind, wanted):
            return name
    raise TypeError(f"{column}: no binary form is known for {kind!r}")
