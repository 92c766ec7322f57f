"""The decision log: what changed an engine's scheduler, so that any recorded decision can be re-executed.

Purpose: `helios explain` and `helios audit` replay a decision from the checkpoint before it. Decisions from before
    this step have no log and are explained from their rows alone.
Locks: creates a table and its indexes; nothing that is there is touched and nobody waits.
Undo: `downgrade` drops the table; plans stay, and can no longer be re-executed.
    By hand: drop the table decision_log, then set the row of alembic_version to 0002.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from service.store.types import BIG

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the table."""
    op.create_table(
        "decision_log",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("first_call", BIG, autoincrement=False, nullable=False),
        sa.Column("calls", BIG, nullable=False),
        sa.Column("first_fence", BIG, nullable=False),
        sa.Column("last_fence", BIG, nullable=False),
        sa.Column("is_checkpoint", sa.Boolean(), nullable=False),
        sa.Column("blob", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "first_call", name="pk_decision_log"),
    )
    of_checkpoints = sa.text("is_checkpoint")
    op.create_index(
        "ix_decision_log_checkpoints",
        "decision_log",
        ["run_id", "last_fence"],
        sqlite_where=of_checkpoints,
        postgresql_where=of_checkpoints,
    )
    op.create_index("ix_decision_log_fences", "decision_log", ["run_id", "last_fence"])


def downgrade() -> None:
    """Drops the table."""
    op.drop_table("decision_log")
