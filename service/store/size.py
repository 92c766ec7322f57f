"""How much of its disk a store's rows take: what retention can give back, not what the files have grown to.

Neither database returns the space of deleted rows to the file system; both use it again for new rows. A limit on the
size of files would therefore delete on and on, so the rows that are there are measured.
"""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple

import sqlalchemy as sa

from service.store.partitions import PARTITIONED, partition_name
from service.store.tables import metadata

_SAMPLED_ROWS = 200
_LINE_POINTER = 4
_FULL = 0.95
"""The share of a PostgreSQL page that rows fill, as its header and a last gap are lost."""


class _Measured(NamedTuple):
    """A PostgreSQL table or one of its partitions. Live rows as counted and as estimated, bytes of rows and indexes;
    `width`: mean bytes of the table's newest rows, None when it is empty.
    """

    table: str
    partition: str
    counted: int
    estimated: float
    heap: int
    indexes: int
    width: float | None

    @property
    def used(self) -> float:
        """Bytes of the live rows, with indexes in the proportion that they have on disk."""
        rows = self.counted or max(0.0, self.estimated)
        if not (rows and self.heap and self.width):
            return 0.0
        return rows * (float(self.width) + _LINE_POINTER) / _FULL * (1 + self.indexes / self.heap)


def used_bytes(connection: sa.Connection) -> int:
    """Bytes of the store's rows with their indexes: exact on SQLite, within some percent on PostgreSQL."""
    return _sqlite_bytes(connection) if connection.dialect.name == "sqlite" else _postgresql_bytes(connection)


def _sqlite_bytes(connection: sa.Connection) -> int:
    """Pages that hold something; free ones are used before the file grows again."""
    pages, free, size = (
        int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def _postgresql_bytes(connection: sa.Connection) -> int:
    """Live rows times the width of the newest by key.

    The counters are the server's own, which follow a commit by up to a second.
    """
    return int(sum(one.used for one in _measure(connection, tuple(metadata.tables))))


def bytes_of_day(connection: sa.Connection, day: dt.date) -> int:
    """PostgreSQL: what dropping the day's partitions gives back, as used_bytes counts."""
    names = {partition_name(table, day) for table in PARTITIONED}
    return int(sum(one.used for one in _measure(connection, PARTITIONED) if one.partition in names))


def _measure(connection: sa.Connection, tables: tuple[str, ...]) -> list[_Measured]:
    text = " UNION ALL ".join(_measure_table(metadata.tables[name]) for name in tables)
    return [_Measured(*row) for row in connection.exec_driver_sql(text)]


def _measure_table(table: sa.Table) -> str:
    """A row for each partition, or one for a table without: the columns of _Measured."""
    order = ", ".join(f'"{column.name}" DESC' for column in table.primary_key or table.columns)
    newest = f"SELECT * FROM {table.name} ORDER BY {order} LIMIT {_SAMPLED_ROWS}"
    return (
        f"SELECT '{table.name}', c.relname, coalesce(pg_stat_get_live_tuples(c.oid), 0), c.reltuples,"
        " pg_table_size(c.oid), pg_indexes_size(c.oid), width.mean FROM"
        f" (SELECT avg(pg_column_size(newest)) AS mean FROM ({newest}) AS newest) AS width,"
        f" (SELECT CAST('{table.name}' AS regclass) AS oid) AS t LEFT JOIN pg_inherits AS i ON i.inhparent = t.oid"
        " JOIN pg_class AS c ON c.oid = coalesce(i.inhrelid, t.oid)"
    )
