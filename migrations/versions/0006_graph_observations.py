"""The view `graph_observations`: each completed plan as a sample of its graph's duration, beside what was expected.

Purpose: questions about the estimates of graph costs ask what the scheduler learned from, under a name that stays. It
    is a view, since every number of it is in `plans` already.
Locks: creates a view and reads nothing. The caller holds the upgrade lock (SQLite: the write lock; PostgreSQL: an
    advisory lock).
Undo: `downgrade` drops the view. No row is touched. A view of an operator's own on it is named and stops that.
    By hand: drop the view graph_observations, then set the row of alembic_version to 0005.
"""

from __future__ import annotations

from alembic import op

from migrations.operator_views import refuse_operator_views

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_SHAPE_COLUMNS = (
    "kind",
    "batch_capacity",
    "draft_depth",
    "target_width",
    "target_rows",
    "prefill_capacity",
    "speculation_enabled",
    "allocation",
)

_SHAPE = (
    "p.kind || ':B' || p.batch_capacity"
    " || CASE WHEN p.kind IN ('speculative', 'mixed') THEN ':D' || p.draft_depth || ':W' || p.target_width"
    " || ':P' || p.target_rows ELSE '' END"
    " || CASE WHEN p.prefill_capacity > 0 THEN ':C' || p.prefill_capacity ELSE '' END"
)

_VIEW = f"""
CREATE VIEW graph_observations AS
SELECT
    p.run_id, p.fence, {", ".join(f"p.{name}" for name in _SHAPE_COLUMNS)},
    p.device_ms - p.exposed_delivery_ms AS sample_ms,
    CASE WHEN p.cost_state <> 'unknown' THEN p.selected_cost_ms END AS estimate_ms,
    {_SHAPE} AS shape, p.reason, p.committed_at, p.completed_at
FROM plans p
WHERE p.outcome = 'completed' AND p.device_ms > p.exposed_delivery_ms
"""


def upgrade() -> None:
    """Makes the view."""
    op.get_bind().exec_driver_sql(_VIEW)  # as it stands: in op.execute a colon begins a parameter


def downgrade() -> None:
    """Drops the view."""
    connection = op.get_bind()
    refuse_operator_views(connection, "graph_observations")
    connection.exec_driver_sql("DROP VIEW graph_observations")
