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
    if connection.dialect.name == "sqlite":
        return _sqlite_bytes(connection)
    return sum(_postgresql_bytes(connection, table) for table in metadata.tables.values())


def _sqlite_bytes(connection: sa.Connection) -> int:
    """Pages that hold something; free ones are used before the file grows again."""
    pages, free, size = (
        int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def _postgresql_bytes(connection: sa.Connection, table: sa.Table) -> int:
    """Live rows times the width of the newest by key, with indexes in the proportion that they have on disk.

    The counters are the server's own, which follow a commit by up to a second.
    """
    counted, estimated, heap, indexes = connection.execute(
        sa.text(
            "SELECT coalesce(pg_stat_get_live_tuples(c.oid), 0), c.reltuples, pg_table_size(c.oid),"
            " pg_indexes_size(c.oid) FROM pg_class AS c WHERE c.oid = CAST(:name AS regclass)"
        ),
        {"name": table.name},
    ).one()
    rows = counted or max(0, estimated)
    if not rows or not heap:
        return 0
    order = [column.desc() for column in table.primary_key or table.columns]
    newest = sa.select(table).order_by(*order).limit(_SAMPLED_ROWS).subquery("newest")
    width = connection.execute(
        sa.select(sa.func.avg(sa.func.pg_column_size(sa.literal_column("newest")))).select_from(newest)
    ).scalar_one()
    return int(rows * (float(width or 0) + _LINE_POINTER) / _FULL * (1 + indexes / heap))
