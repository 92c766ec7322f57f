"""The roll-up `plan_minutes`: completed plans by minute, run, shape and reason, with a histogram of device time.

Purpose: questions about long ranges read one row per minute instead of every plan. The recorder adds to it with
    the plans that it counts; this step fills it from the plans that are there.
Locks: creates a table and reads `plans` once, so nobody's reading waits. The caller holds the upgrade lock (SQLite:
    the write lock; PostgreSQL: an advisory lock) while it reads. Stop the server first: an
    older recorder completes plans without adding them here.
Undo: `downgrade` drops the table; the plans that it sums stay, and another upgrade fills it again.
    By hand: drop the table plan_minutes, then set the row of alembic_version to 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from service.store.types import BIG, UtcDateTime

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_STEPS = (1, 1.5, 2, 3, 5, 7)
_BOUNDS_US = (*(int(step * decade) for decade in (100, 1000, 10**4, 10**5, 10**6) for step in _STEPS), 10**7)
_GROUP = (
    "kind, batch_capacity, draft_depth, target_width, target_rows, prefill_capacity, speculation_enabled, allocation,"
    " reason"
)
_SQLITE_MINUTE = "substr(completed_at, 1, 16) || ':00.000000'"
_POSTGRESQL_MINUTE = "date_trunc('minute', completed_at AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'"


def _buckets() -> dict[str, str]:
    """The condition of each bucket of device time."""
    columns = {}
    lower = None
    for bound in _BOUNDS_US:
        above = "" if lower is None else f"device_ms > {lower / 1000} AND "
        columns[f"device_to_{bound}us"] = f"{above}device_ms <= {bound / 1000}"
        lower = bound
    return {**columns, "device_over": f"device_ms > {_BOUNDS_US[-1] / 1000}"}


def _fill() -> None:
    sums = {
        "plans": "COUNT(*)",
        "device_ms_sum": "SUM(device_ms)",
        "device_ms_max": "MAX(device_ms)",
        "selected_cost_ms_sum": "SUM(selected_cost_ms)",
        "output_tokens": "SUM(output_tokens)",
        **{name: f"SUM(CASE WHEN {condition} THEN 1 ELSE 0 END)" for name, condition in _buckets().items()},
    }
    connection = op.get_bind()
    minute = _POSTGRESQL_MINUTE if connection.dialect.name == "postgresql" else _SQLITE_MINUTE
    connection.exec_driver_sql(  # as it stands: in op.execute a colon begins a parameter
        f"INSERT INTO plan_minutes (minute, run_id, {_GROUP}, {', '.join(sums)})"
        f" SELECT {minute}, run_id, {_GROUP}, {', '.join(sums.values())} FROM plans"
        f" WHERE outcome = 'completed' AND completed_at IS NOT NULL AND device_ms IS NOT NULL"
        f" GROUP BY {minute}, run_id, {_GROUP}"
    )


def upgrade() -> None:
    """Creates the table and fills it."""
    op.create_table(
        "plan_minutes",
        sa.Column("minute", UtcDateTime(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("batch_capacity", sa.Integer(), nullable=False),
        sa.Column("draft_depth", sa.Integer(), nullable=False),
        sa.Column("target_width", sa.Integer(), nullable=False),
        sa.Column("target_rows", sa.Integer(), nullable=False),
        sa.Column("prefill_capacity", sa.Integer(), nullable=False),
        sa.Column("speculation_enabled", sa.Boolean(), nullable=False),
        sa.Column("allocation", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("plans", BIG, nullable=False),
        sa.Column("device_ms_sum", sa.Float(), nullable=False),
        sa.Column("device_ms_max", sa.Float(), nullable=False),
        sa.Column("selected_cost_ms_sum", sa.Float(), nullable=False),
        sa.Column("output_tokens", BIG, nullable=False),
        *[sa.Column(name, sa.Integer(), nullable=False) for name in _buckets()],
        sa.PrimaryKeyConstraint("minute", "run_id", *_GROUP.split(", "), name="pk_plan_minutes"),
        sqlite_with_rowid=False,
    )
    _fill()


def downgrade() -> None:
    """Drops the table."""
    op.drop_table("plan_minutes")
