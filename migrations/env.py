"""Runs migrations on the connection that service.store.database hands over, inside its transaction.

There is no alembic.ini: `service.store.database.migration_config(connection)` is the configuration. The caller
begins and commits, so that an upgrade of several steps is applied whole or not at all, on SQLite too.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context

from service.store.tables import metadata


def run() -> None:
    """Runs the steps that the Alembic command asked for. Raises RuntimeError when it gave no connection."""
    connection = context.config.attributes.get("connection")
    if not isinstance(connection, sa.Connection):
        raise RuntimeError("migrations need a connection: use service.store.database.upgrade(url)")
    context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
    with context.begin_transaction():
        context.run_migrations()


run()
