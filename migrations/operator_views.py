"""Views that an operator made on top of Helios's tables and views: a step that would break one says which.

PostgreSQL refuses to drop what a view rests on; SQLite looks names up when a view is asked, but for the
moment when a column is dropped: see dropping_columns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import sqlalchemy as sa

from service.store.errors import UpgradeBlocked

_DEPENDENTS = """
SELECT DISTINCT quote_ident(n.nspname) || '.' || quote_ident(v.relname)
FROM pg_depend AS d
JOIN pg_rewrite AS r ON d.classid = CAST('pg_rewrite' AS regclass) AND r.oid = d.objid
JOIN pg_class AS v ON v.oid = r.ev_class
JOIN pg_namespace AS n ON n.oid = v.relnamespace
WHERE d.refclassid = CAST('pg_class' AS regclass) AND d.refobjid IN ({made_anew}) AND v.oid NOT IN ({ours})
ORDER BY 1
"""


def refuse_operator_views(connection: sa.Connection, *made_anew: str, ours: tuple[str, ...] = ()) -> None:
    """Raises UpgradeBlocked when a view other than `ours` rests on one of the tables or views that a step drops.

    `ours`: Helios's own views, which the step makes again or which do not mind.
    """
    if connection.dialect.name != "postgresql":
        return
    names = {"made_anew": _oids(made_anew), "ours": _oids((*made_anew, *ours))}
    found = connection.exec_driver_sql(_DEPENDENTS.format(**names)).scalars().all()
    if found:
        raise UpgradeBlocked(
            f"resting on {' or '.join(made_anew)}, which this change of the schema makes anew: {', '.join(found)}."
            f" Nothing was changed. Keep each view's definition (psql: \\d+ {found[0]}), drop it, run"
            " `helios db upgrade` and create it again"
        )


def _oids(names: tuple[str, ...]) -> str:
    return ", ".join(f"CAST('{name}' AS regclass)" for name in names)


@contextlib.contextmanager
def dropping_columns(connection: sa.Connection) -> Iterator[None]:
    """Within it, SQLite drops a column that an operator's view names, which then says so when it is asked."""
    if connection.dialect.name != "sqlite":
        yield
        return
    connection.exec_driver_sql("PRAGMA legacy_alter_table=ON")
    try:
        yield
    finally:
        connection.exec_driver_sql("PRAGMA legacy_alter_table=OFF")
