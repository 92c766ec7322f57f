"""How much of its disk a store's rows take: what retention can give back, not what the files have grown to.

Neither database returns the space of deleted rows to the file system; both use it again for new rows. A limit on the
size of files would therefore delete on and on, so the rows that are there are measured.
"""

from __future__ import annotations

import sqlalchemy as sa

from service.store.tables import metadata

_SAMPLED_ROWS = 200
_LINE_POINTER = 4
_FULL = 0.95
"""The share of a PostgreSQL page that rows fill, as its header and a last gap are lost."""


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
    """Live rows times the width of the newest by key, with indexes in the proportion that they have on disk.

    The counters are the server's own, which follow a commit by up to a second.
    """
    total = 0.0
    for counted, estimated, heap, indexes, width in connection.exec_driver_sql(_MEASURE):
        rows = counted or max(0, estimated)
        if rows and heap and width:
            total += rows * (float(width) + _LINE_POINTER) / _FULL * (1 + indexes / heap)
    return int(total)


def _measure_table(table: sa.Table) -> str:
    """One row: live rows counted and estimated, bytes of the table and its indexes, mean bytes of the newest rows."""
    order = ", ".join(f'"{column.name}" DESC' for column in table.primary_key or table.columns)
    newest = f"SELECT * FROM {table.name} ORDER BY {order} LIMIT {_SAMPLED_ROWS}"
    return (
        "SELECT coalesce(pg_stat_get_live_tuples(c.oid), 0), c.reltuples, pg_table_size(c.oid), pg_indexes_size(c.oid),"
        f" (SELECT avg(pg_column_size(newest)) FROM ({newest}) AS newest)"
        f" FROM pg_class AS c WHERE c.oid = CAST('{table.name}' AS regclass)"
    )


_MEASURE = " UNION ALL ".join(map(_measure_table, metadata.tables.values()))
