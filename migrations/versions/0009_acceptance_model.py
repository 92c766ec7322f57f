"""The coefficient `acceptance_model` of a policy version; `plan_timeline` has it at its end.

Purpose: what a new request's drafts are expected to survive can be a version's own choice. Versions that are there get
    `prefix`, which is what they were. The preset `interactive` is `pooled` from here on: versions that were called so
    keep their values, and have no preset's name, since `preset` names the one whose values a version has.
Locks: the column has a constant default, so that no row is written again. PostgreSQL locks policy_versions until the
    step ends and replaces the view in place. The caller holds the upgrade lock. Views of an operator's own stay.
Undo: `downgrade` takes the column away; versions that were `pooled` go on without it, those of the preset
    `interactive` as what it was before. Those that lost its name stay without. On PostgreSQL a view of an operator's
    own on plan_timeline is named and stops it.
    By hand: drop the column with the view plan_timeline, make the view as step 0008 does, then set the row of
    alembic_version to 0008.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.operator_views import dropping_columns, refuse_operator_views

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_PLAN = (
    "run_id", "fence", "committed_at", "committed_ns", "kind", "batch_capacity", "draft_depth", "target_width",
    "target_rows", "prefill_capacity", "speculation_enabled", "allocation", "reason", "score_kind", "value_rate",
    "log_scale", "token_value", "delivery_value", "age_relief", "terminal_relief", "wait_cost", "score_horizon_ms",
    "following_kind", "following_shape", "active_rows", "active_decoders", "logical_rows", "selected_cost_ms",
    "observation_age_ms", "cost_state", "margin", "candidates", "exploration_credit_ms", "timing_credit_ms",
    "timing_spent_ms", "acceptance_credit_ms", "acceptance_spent_ms", "timing_ordinary_ms", "acceptance_ordinary_ms",
    "discovery_ms", "queue_depth", "frame_slot", "policy_version", "plan_us", "started_ns", "completed_at",
    "completed_ns", "outcome", "device_ms", "wall_ms", "exposed_delivery_ms", "prompt_tokens", "output_tokens",
    "offered_tokens", "draft_tokens", "accepted_tokens", "deliveries",
)  # fmt: skip
_POLICY = """v.actor AS policy_actor, v.note AS policy_note, v.preset AS policy_preset,
    v.applied_at AS policy_applied_at,
    v.output_token_value, v.token_fairness, v.delivery_fairness, v.decode_age_price, v.terminal_value,
    v.terminal_age_price, v.adaptation_ms, v.estimate_ttl_ns, v.adaptive_verification_alpha, v.prefill_chunking,
    v.newcomer_memory"""
_LATER = """p.prompt_rows, p.prompt_wait_relief, p.decode_late_relief,
    v.prompt_wait_price, v.prompt_rank_age_ms, v.decode_gap_weight, v.decode_late_price, v.decode_cadence,
    v.token_budget"""
_SHAPE = """p.kind || ':B' || p.batch_capacity
    || CASE WHEN p.kind IN ('speculative', 'mixed') THEN ':D' || p.draft_depth
    || ':W' || p.target_width || ':P' || p.target_rows ELSE '' END
    || CASE WHEN p.prefill_capacity > 0 THEN ':C' || p.prefill_capacity ELSE '' END
    || CASE WHEN p.prompt_rows > 1 THEN ':R' || p.prompt_rows ELSE '' END"""
_GAP = """CASE
        WHEN p.started_ns IS NULL OR q.completed_ns IS NULL THEN NULL
        WHEN p.started_ns > q.completed_ns
            THEN CAST((p.started_ns - q.completed_ns) / 1000000.0 AS double precision)
        ELSE CAST(0 AS double precision)
    END"""
# On PostgreSQL the plan before is looked for on the same day first: one partition instead of all.
_GAP_BY_DAY = f"""(SELECT {_GAP} FROM (
        (SELECT e.completed_ns FROM plans e
         WHERE e.run_id = p.run_id AND e.recorded_on = p.recorded_on AND e.fence < p.fence
         ORDER BY e.fence DESC LIMIT 1)
        UNION ALL
        (SELECT e.completed_ns FROM plans e
         WHERE e.run_id = p.run_id AND e.recorded_on < p.recorded_on AND e.fence < p.fence AND NOT EXISTS (
             SELECT 1 FROM plans s
             WHERE s.run_id = p.run_id AND s.recorded_on = p.recorded_on AND s.fence < p.fence)
         ORDER BY e.fence DESC LIMIT 1)
    ) AS q)"""
_PLAN_BEFORE = """LEFT JOIN plans q
    ON q.run_id = p.run_id
    AND q.fence = (SELECT MAX(e.fence) FROM plans e WHERE e.run_id = p.run_id AND e.fence < p.fence)"""
_GRANTS = """SELECT g.privilege_type,
    CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END,
    CASE WHEN g.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
FROM pg_class AS c, aclexplode(c.relacl) AS g
WHERE c.oid = CAST('plan_timeline' AS regclass) AND g.grantee <> c.relowner"""


def upgrade() -> None:
    """Adds the column and makes the view with it."""
    column = sa.Column("acceptance_model", sa.Text(), nullable=False, server_default="prefix")
    op.add_column("policy_versions", column)
    connection = op.get_bind()
    connection.exec_driver_sql("UPDATE policy_versions SET preset = NULL WHERE preset = 'interactive'")
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("DROP VIEW plan_timeline")
    _make_view(connection, with_model=True)


def downgrade() -> None:
    """Takes both back."""
    connection = op.get_bind()
    refuse_operator_views(connection, "plan_timeline")
    grants = connection.exec_driver_sql(_GRANTS).all() if connection.dialect.name == "postgresql" else []
    connection.exec_driver_sql("DROP VIEW plan_timeline")
    _make_view(connection, with_model=False)
    for privilege, grantee, option in grants:
        connection.exec_driver_sql(f"GRANT {privilege} ON plan_timeline TO {grantee}{option}")
    with dropping_columns(connection):
        connection.exec_driver_sql("ALTER TABLE policy_versions DROP COLUMN acceptance_model")


def _make_view(connection: sa.Connection, *, with_model: bool) -> None:
    by_day = connection.dialect.name == "postgresql"
    connection.exec_driver_sql(  # as it stands: in op.execute a colon begins a parameter
        f"CREATE {'OR REPLACE ' if by_day else ''}VIEW plan_timeline AS\n"
        f"SELECT {', '.join(f'p.{name}' for name in _PLAN)}, {_GAP_BY_DAY if by_day else _GAP} AS gap_ms, {_POLICY},"
        f" {_SHAPE} AS shape, {_LATER}{', v.acceptance_model' if with_model else ''}\n"
        f"FROM plans p\n{'' if by_day else _PLAN_BEFORE}\n"
        "LEFT JOIN policy_versions v ON v.version = p.policy_version\n"
    )
