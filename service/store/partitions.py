"""Partitions by day on PostgreSQL: the tables of plans, their lanes and their runner-ups, in pieces that go whole.

A plan and all that belongs to it lie in the partition of the UTC day of its commit, which the column `recorded_on` of
the three tables says; SQLite has no such column. Whoever inserts names the day. A day without a partition, or a writer
that does not name it, costs nothing but order: the row goes to the default partition.

A partition of plans also promises the server in which hours its plans were committed, so that a question with
a condition on `committed_at` reads only the days that it is about.

Attaching a partition locks the default partition for a moment, dropping one the whole table. Neither waits long for its
lock, since everybody who comes later would wait behind it: a step that does not get it is tried again later.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy import exc

from service.store.engines import read_transaction, write_transaction

PARTITIONED = ("plans", "plan_lanes", "plan_alternatives")
"""In the order in which the recorder writes them, so that nobody who locks all of them deadlocks with it."""
RECORDED_ON = sa.column("recorded_on", sa.Date)
UNNAMED_DAY = dt.date(1970, 1, 1)
"""recorded_on of a row whose writer named no day."""
DAYS_AHEAD = 2
_LOCK_TIMEOUT_MS = 100
_SCAN_TIMEOUT_MS = 2000
"""Of attaching, which reads the whole default partition: usually an empty table."""
_NAME = re.compile(r"^plans_(\d{8})$")
_LOCKED = frozenset({"55P03", "40P01"})  # lock timeout, deadlock
# A row of that day is in the default partition; too many rows there to look through; somebody else was faster; a user
# who may write rows and owns no table.
_NOT_POSSIBLE = frozenset({"23514", "57014", "42P07", "42501"})
_IN_USE = "2BP01"  # a view of an operator's own rests on the partition


def has_days(bind: sa.Engine | sa.Connection) -> bool:
    """Whether this database keeps plans in partitions by day."""
    return bind.dialect.name == "postgresql"


def day_of(bind: sa.Engine | sa.Connection, table: sa.Table) -> list[sa.ColumnElement[dt.date]]:
    """The table's day to select or compare beside its key, as a list of one; of none where there are no days.

    What joins two of the three tables by run and fence alone looks into every partition for each row.
    """
    return [sa.literal_column(f"{table.name}.{RECORDED_ON.name}", sa.Date)] if has_days(bind) else []


def same_day(bind: sa.Engine | sa.Connection, one: sa.Table, other: sa.Table) -> list[sa.ColumnElement[bool]]:
    """The condition that rows of two of the three tables lie on one day, as a list of one; of none without days."""
    return [first == second for first, second in zip(day_of(bind, one), day_of(bind, other), strict=True)]


def utc_day(at: dt.datetime) -> dt.date:
    """The day of an aware time."""
    return at.astimezone(dt.UTC).date()


def start_of(day: dt.date) -> dt.datetime:
    """Its first moment."""
    return dt.datetime.combine(day, dt.time(), dt.UTC)


def partition_name(table: str, day: dt.date) -> str:
    """Such as plans_20260301."""
    return f"{table}_{day:%Y%m%d}"


def days_with_partitions(connection: sa.Connection) -> list[dt.date]:
    """Oldest first."""
    children = connection.exec_driver_sql(
        "SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = CAST('plans' AS regclass)"
    )
    found = (_NAME.match(name) for name in children.scalars())
    return sorted(dt.datetime.strptime(match[1], "%Y%m%d").date() for match in found if match)


def has_partition(connection: sa.Connection, day: dt.date, *, to_insert: bool = False) -> bool:
    """Whether the day has partitions; one of the three tables answers for all, as they come and go together.

    `to_insert`: ones that this user may write to without going through the table.
    """
    condition = "has_table_privilege(inhrelid, 'INSERT')" if to_insert else "true"
    query = f"SELECT EXISTS (SELECT 1 FROM pg_inherits WHERE inhrelid = to_regclass(%s) AND {condition})"
    return bool(connection.exec_driver_sql(query, (partition_name(PARTITIONED[0], day),)).scalar_one())


def add_day(connection: sa.Connection, day: dt.date) -> bool:
    """Make the day's partitions unless they are there, in a savepoint. Whether the day has them now.

    False when a lock was not to be had at once, when rows of that day lie in the default partition already, or when
    this user may not: they go there, and nothing but their order is lost. Raises the driver's other errors.
    """
    if has_partition(connection, day):
        return True
    if any(_default_holds(connection, table, day) for table in PARTITIONED):
        return False
    try:
        with (
            connection.begin_nested(),
            _short(connection, "lock_timeout", _LOCK_TIMEOUT_MS),
            _short(connection, "statement_timeout", _SCAN_TIMEOUT_MS),
        ):
            for table in PARTITIONED:
                _attach(connection, table, day)
    except exc.DBAPIError as error:
        if _state(error) in _LOCKED | _NOT_POSSIBLE:
            return False
        raise
    return True


def _default_holds(connection: sa.Connection, table: str, day: dt.date) -> bool:
    """Whether rows of the day are in the default partition: then it cannot have one of its own. Asked without a lock,
    as attaching would find out only with everybody waiting for it.
    """
    query = f"SELECT EXISTS (SELECT 1 FROM {table}_default WHERE recorded_on = %s)"
    return bool(connection.exec_driver_sql(query, (day,)).scalar_one())


def _attach(connection: sa.Connection, table: str, day: dt.date) -> None:
    """Made by itself first: CREATE TABLE … PARTITION OF would lock out everybody who reads or writes the table."""
    name, following = partition_name(table, day), day + dt.timedelta(days=1)
    connection.exec_driver_sql(f"CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS)")
    connection.exec_driver_sql(f"ALTER TABLE {name} ALTER COLUMN {RECORDED_ON.name} SET DEFAULT '{day}'")
    if table == PARTITIONED[0]:
        connection.exec_driver_sql(
            f"ALTER TABLE {name} ADD CONSTRAINT {name}_committed_at"
            f" CHECK (committed_at >= '{day} 00:00:00+00' AND committed_at < '{following} 00:00:00+00')"
        )
    connection.exec_driver_sql(
        f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ('{day}') TO ('{following}')"
    )


def add_days_ahead(engine: sa.Engine, today: dt.date, ahead: int = DAYS_AHEAD) -> bool:
    """Make the partitions of today and the days behind it; whether all of them are there now. Raises StoreError.

    Nothing to do on SQLite.
    """
    if not has_days(engine):
        return True
    days = [today + dt.timedelta(days=number) for number in range(ahead + 1)]
    with read_transaction(engine) as connection:
        missing = [day for day in days if not has_partition(connection, day)]
    done = True
    for day in missing:
        with write_transaction(engine) as connection:
            done = add_day(connection, day) and done
    return done


def analyze_new_days(engine: sa.Engine) -> None:
    """Have the server look at days that it knows nothing of yet; nothing to do on SQLite. Raises StoreError.

    Until autovacuum does so, a new day's rows are planned for blindly: `plan_timeline` then sorted all plans before
    each one. A user who does not own the tables only gets a warning of the server's.
    """
    if not has_days(engine):
        return
    parents = ", ".join(f"CAST('{table}' AS regclass)" for table in PARTITIONED)
    with read_transaction(engine) as connection:
        new = connection.exec_driver_sql(
            "SELECT CAST(CAST(c.oid AS regclass) AS text)"
            " FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid"
            " WHERE c.reltuples < 0 AND pg_relation_size(c.oid) > 0"
            f" AND i.inhparent IN ({parents})"
        )
        names = list(new.scalars())
    for name in names:
        with write_transaction(engine) as connection:
            connection.exec_driver_sql(f"ANALYZE {name}")


def count_plans(connection: sa.Connection, day: dt.date) -> int:
    """The plans of a day with partitions, as their fences tell it: those that are missing inside a run count too.

    Reads a few rows for each run, whatever the day holds.
    """
    of_day = partition_name(PARTITIONED[0], day)
    next_run = f"SELECT p.run_id FROM {of_day} AS p WHERE p.run_id > runs.run_id ORDER BY p.run_id LIMIT 1"
    found = connection.exec_driver_sql(
        f"WITH RECURSIVE runs AS ((SELECT p.run_id FROM {of_day} AS p ORDER BY p.run_id LIMIT 1)"
        f" UNION ALL SELECT ({next_run}) FROM runs WHERE run_id IS NOT NULL)"
        f" SELECT (SELECT max(fence) - min(fence) + 1 FROM {of_day} AS p WHERE p.run_id = runs.run_id)"
        " FROM runs WHERE run_id IS NOT NULL"
    )
    return sum(int(count) for count in found.scalars())


def lock_for_dropping(connection: sa.Connection) -> None:
    """Keep everybody from the three tables until the end of the transaction.

    Raises OperationalError (lock timeout) when one of them is in use for longer than a moment.
    """
    with _short(connection, "lock_timeout", _LOCK_TIMEOUT_MS):
        for table in PARTITIONED:
            connection.exec_driver_sql(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")


def drop_day(connection: sa.Connection, day: dt.date) -> bool:
    """Drop the day's partitions, with their rows. False when a view of somebody's own rests on one of them.

    The caller holds the lock of lock_for_dropping.
    """
    try:
        with connection.begin_nested():
            connection.exec_driver_sql(f"DROP TABLE {', '.join(partition_name(table, day) for table in PARTITIONED)}")
    except exc.DBAPIError as error:
        if _state(error) == _IN_USE:
            return False
        raise
    return True


@contextlib.contextmanager
def _short(connection: sa.Connection, setting: str, milliseconds: int) -> Iterator[None]:
    """A time limit for some statements of a transaction; a rollback to a savepoint before them undoes it as well."""
    before = connection.exec_driver_sql(f"SHOW {setting}").scalar_one()
    connection.exec_driver_sql(f"SET LOCAL {setting} = {milliseconds}")
    yield
    connection.exec_driver_sql(f"SET LOCAL {setting} = '{before}'")


def _state(error: exc.DBAPIError) -> str | None:
    return getattr(error.orig, "sqlstate", None)
