"""The table policy_guards: changes of the policy on trial, what limits them, and how each was decided.

Purpose: a guarded change is taken back by itself when it breaks a limit. Its state is in the store, so that it goes on
    after a restart of the server, and any process on the database can watch it.
Locks: creates a table and an index of it; touches no other. The caller holds the upgrade lock (SQLite: the write lock;
    PostgreSQL: an advisory lock).
Undo: `downgrade` drops the table; a guard that watches is forgotten, and its version stays in force.
    By hand: drop the table policy_guards, then set the row of alembic_version to 0006.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.operator_views import refuse_operator_views
from service.store.types import BIG, JSON, UtcDateTime

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_WATCHING = sa.text("state = 'watching'")


def upgrade() -> None:
    """Makes the table."""
    op.create_table(
        "policy_guards",
        sa.Column("version", BIG, autoincrement=False, nullable=False),
        sa.Column("parent_version", BIG, nullable=False),
        sa.Column("minutes", sa.Float(), nullable=False),
        sa.Column("limits", JSON, nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("opened_at", UtcDateTime(), nullable=False),
        sa.Column("ends_at", UtcDateTime(), nullable=False),
        sa.Column("decided_at", UtcDateTime()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("evidence", JSON, nullable=False),
        sa.Column("watcher", sa.Text()),
        sa.Column("lease_ends_at", UtcDateTime()),
        sa.PrimaryKeyConstraint("version", name="pk_policy_guards"),
    )
    op.create_index(
        "ix_policy_guards_watching",
        "policy_guards",
        ["state"],
        unique=True,
        sqlite_where=_WATCHING,
        postgresql_where=_WATCHING,
    )


def downgrade() -> None:
    """Drops the table."""
    refuse_operator_views(op.get_bind(), "policy_guards")
    op.drop_table("policy_guards")
