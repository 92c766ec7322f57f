"""The trace store's first tables, and the view `plan_timeline`.

Purpose: everything that the recorder, the policy control and the dashboard write and read.
Locks: creates only, so no existing table is locked. The caller holds the upgrade lock (SQLite: the write lock;
    PostgreSQL: an advisory lock) for the milliseconds that this takes.
Undo: `downgrade` drops the view and every table with its rows. To keep the rows, copy the database first.
    By hand: drop the view plan_timeline, then each table named below, then delete the row of alembic_version.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from service.store.types import BIG, JSON, UtcDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TIMELINE = """
CREATE VIEW plan_timeline AS
SELECT
    p.run_id, p.fence, p.committed_at, p.committed_ns, p.kind, p.batch_capacity, p.draft_depth, p.target_width,
    p.target_rows, p.prefill_capacity, p.speculation_enabled, p.allocation, p.reason, p.score_kind, p.value_rate,
    p.log_scale, p.token_value, p.delivery_value, p.age_relief, p.terminal_relief, p.wait_cost,
    p.score_horizon_ms, p.following_kind, p.following_shape, p.active_rows, p.active_decoders, p.logical_rows,
    p.selected_cost_ms, p.observation_age_ms, p.cost_state, p.margin, p.candidates, p.exploration_credit_ms,
    p.timing_credit_ms, p.timing_spent_ms, p.acceptance_credit_ms, p.acceptance_spent_ms, p.timing_ordinary_ms,
    p.acceptance_ordinary_ms, p.discovery_ms, p.queue_depth, p.frame_slot, p.policy_version, p.plan_us,
    p.started_ns, p.completed_at, p.completed_ns, p.outcome, p.device_ms, p.wall_ms, p.exposed_delivery_ms,
    p.prompt_tokens, p.output_tokens, p.offered_tokens, p.draft_tokens, p.accepted_tokens, p.deliveries,
    CASE
        WHEN p.started_ns IS NULL OR q.completed_ns IS NULL THEN NULL
        WHEN p.started_ns > q.completed_ns THEN (p.started_ns - q.completed_ns) / 1000000.0
        ELSE 0.0
    END AS gap_ms,
    v.actor AS policy_actor, v.note AS policy_note, v.preset AS policy_preset, v.applied_at AS policy_applied_at,
    v.output_token_value, v.token_fairness, v.delivery_fairness, v.decode_age_price, v.terminal_value,
    v.terminal_age_price, v.adaptation_ms, v.estimate_ttl_ns, v.adaptive_verification_alpha, v.prefill_chunking,
    v.newcomer_memory
FROM plans p
LEFT JOIN plans q
    ON q.run_id = p.run_id
    AND q.fence = (SELECT MAX(e.fence) FROM plans e WHERE e.run_id = p.run_id AND e.fence < p.fence)
LEFT JOIN policy_versions v ON v.version = p.policy_version
"""


def _shape_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("batch_capacity", sa.Integer(), nullable=False),
        sa.Column("draft_depth", sa.Integer(), nullable=False),
        sa.Column("target_width", sa.Integer(), nullable=False),
        sa.Column("target_rows", sa.Integer(), nullable=False),
        sa.Column("prefill_capacity", sa.Integer(), nullable=False),
        sa.Column("speculation_enabled", sa.Boolean(), nullable=False),
        sa.Column("allocation", sa.Text(), nullable=False),
    ]


def _score_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("score_kind", sa.Text(), nullable=False),
        sa.Column("value_rate", sa.Float(), nullable=False),
        sa.Column("log_scale", sa.Float(), nullable=False),
        sa.Column("token_value", sa.Float(), nullable=False),
        sa.Column("delivery_value", sa.Float(), nullable=False),
        sa.Column("age_relief", sa.Float(), nullable=False),
        sa.Column("terminal_relief", sa.Float(), nullable=False),
        sa.Column("wait_cost", sa.Float(), nullable=False),
        sa.Column("score_horizon_ms", sa.Float()),
        sa.Column("following_kind", sa.Text()),
        sa.Column("following_shape", sa.Text()),
    ]


def _engine_runs() -> None:
    op.create_table(
        "engine_runs",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("ended_at", UtcDateTime()),
        sa.Column("end_reason", sa.Text()),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("catalog_digest", sa.Text(), nullable=False),
        sa.Column("settings", JSON, nullable=False),
        sa.Column("started_wall_ns", BIG, nullable=False),
        sa.Column("started_monotonic_ns", BIG, nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_engine_runs"),
    )
    op.create_index("ix_engine_runs_started_at", "engine_runs", ["started_at"])


def _policy_versions() -> None:
    op.create_table(
        "policy_versions",
        sa.Column("version", BIG, nullable=False, autoincrement=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("applied_at", UtcDateTime()),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("parent_version", BIG),
        sa.Column("preset", sa.Text()),
        sa.Column("output_token_value", sa.Float(), nullable=False),
        sa.Column("token_fairness", sa.Float(), nullable=False),
        sa.Column("delivery_fairness", sa.Float(), nullable=False),
        sa.Column("decode_age_price", sa.Float(), nullable=False),
        sa.Column("terminal_value", sa.Float(), nullable=False),
        sa.Column("terminal_age_price", sa.Float(), nullable=False),
        sa.Column("adaptation_ms", sa.Float(), nullable=False),
        sa.Column("estimate_ttl_ns", BIG, nullable=False),
        sa.Column("adaptive_verification_alpha", sa.Float(), nullable=False),
        sa.Column("prefill_chunking", sa.Text(), nullable=False),
        sa.Column("newcomer_memory", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("version", name="pk_policy_versions"),
    )


def _policy_attempts() -> None:
    op.create_table(
        "policy_attempts",
        sa.Column("id", BIG, nullable=False, autoincrement=True),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("request", JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_policy_attempts"),
    )
    op.create_index("ix_policy_attempts_at", "policy_attempts", ["at"])


def _policy_applications() -> None:
    op.create_table(
        "policy_applications",
        sa.Column("version", BIG, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("fence", BIG, nullable=False),
        sa.Column("applied_at", UtcDateTime(), nullable=False),
    )
    op.create_index("ix_policy_applications_version", "policy_applications", ["version", "run_id", "fence"])


def _requests() -> None:
    op.create_table(
        "requests",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("arrived_at", UtcDateTime(), nullable=False),
        sa.Column("admitted_at", UtcDateTime()),
        sa.Column("first_output_at", UtcDateTime()),
        sa.Column("finished_at", UtcDateTime()),
        sa.Column("prompt_tokens", BIG, nullable=False),
        sa.Column("cached_tokens", BIG, nullable=False, server_default="0"),
        sa.Column("output_tokens", BIG, nullable=False, server_default="0"),
        sa.Column("max_tokens", BIG, nullable=False),
        sa.Column("finish_reason", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("preemptions", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("queue_ms", sa.Float()),
        sa.Column("tokenize_ms", sa.Float()),
        sa.Column("prefill_ms", sa.Float()),
        sa.Column("decode_ms", sa.Float()),
        sa.Column("publish_ms", sa.Float()),
        sa.Column("trace_id", sa.Text()),
        sa.Column("prefix_key", sa.Text()),
        sa.PrimaryKeyConstraint("run_id", "request_id", name="pk_requests"),
    )
    op.create_index("ix_requests_newest", "requests", ["arrived_at", "run_id", "request_id"])
    unfinished = sa.text("finished_at IS NULL")
    op.create_index(
        "ix_requests_unfinished", "requests", ["run_id"], sqlite_where=unfinished, postgresql_where=unfinished
    )


def _plans() -> None:
    op.create_table(
        "plans",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("fence", BIG, nullable=False),
        sa.Column("committed_at", UtcDateTime(), nullable=False),
        sa.Column("committed_ns", BIG, nullable=False),
        *_shape_columns(),
        sa.Column("reason", sa.Text(), nullable=False),
        *_score_columns(),
        sa.Column("active_rows", sa.Integer(), nullable=False),
        sa.Column("active_decoders", sa.Integer(), nullable=False),
        sa.Column("logical_rows", BIG, nullable=False),
        sa.Column("selected_cost_ms", sa.Float(), nullable=False),
        sa.Column("observation_age_ms", sa.Float()),
        sa.Column("cost_state", sa.Text(), nullable=False),
        sa.Column("margin", sa.Float()),
        sa.Column("candidates", sa.Integer(), nullable=False),
        sa.Column("exploration_credit_ms", sa.Float(), nullable=False),
        sa.Column("timing_credit_ms", sa.Float(), nullable=False),
        sa.Column("timing_spent_ms", sa.Float(), nullable=False),
        sa.Column("acceptance_credit_ms", sa.Float(), nullable=False),
        sa.Column("acceptance_spent_ms", sa.Float(), nullable=False),
        sa.Column("timing_ordinary_ms", sa.Float(), nullable=False),
        sa.Column("acceptance_ordinary_ms", sa.Float(), nullable=False),
        sa.Column("discovery_ms", sa.Float(), nullable=False),
        sa.Column("queue_depth", sa.Integer(), nullable=False),
        sa.Column("frame_slot", sa.Integer(), nullable=False),
        sa.Column("policy_version", BIG, nullable=False),
        sa.Column("plan_us", sa.Float(), nullable=False),
        sa.Column("started_ns", BIG),
        sa.Column("completed_at", UtcDateTime()),
        sa.Column("completed_ns", BIG),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("device_ms", sa.Float()),
        sa.Column("wall_ms", sa.Float()),
        sa.Column("exposed_delivery_ms", sa.Float()),
        sa.Column("prompt_tokens", BIG, nullable=False),
        sa.Column("output_tokens", BIG, nullable=False),
        sa.Column("offered_tokens", BIG, nullable=False),
        sa.Column("draft_tokens", BIG, nullable=False),
        sa.Column("accepted_tokens", BIG, nullable=False),
        sa.Column("deliveries", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "fence", name="pk_plans"),
    )
    op.create_index("ix_plans_newest", "plans", ["committed_at", "run_id", "fence"])
    op.create_index("ix_plans_outcome_run_id", "plans", ["outcome", "run_id"])
    op.create_index("ix_plans_policy_version", "plans", ["policy_version"])


def _plan_lanes() -> None:
    op.create_table(
        "plan_lanes",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("fence", BIG, nullable=False),
        sa.Column("lane", sa.Integer(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("generation", BIG, nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("prompt_tokens", BIG, nullable=False),
        sa.Column("query_length", BIG, nullable=False),
        sa.Column("ceiling", BIG, nullable=False),
        sa.Column("proposal_source", sa.Text()),
        sa.Column("token_price", sa.Float(), nullable=False),
        sa.Column("delivery_price", sa.Float(), nullable=False),
        sa.Column("age_ms", sa.Float(), nullable=False),
        sa.Column("sigma_ms", sa.Float(), nullable=False),
        sa.Column("expected_tokens", sa.Float(), nullable=False),
        sa.Column("terminal_value", sa.Float(), nullable=False),
        sa.Column("lane_value", sa.Float(), nullable=False),
        sa.Column("offered_tokens", BIG, nullable=False),
        sa.Column("committed_tokens", BIG, nullable=False),
        sa.Column("accepted_tokens", BIG, nullable=False),
        sa.Column("delivered", sa.Boolean(), nullable=False),
        sa.Column("published_ns", BIG),
        sa.PrimaryKeyConstraint("run_id", "fence", "lane", name="pk_plan_lanes"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_plan_lanes_request", "plan_lanes", ["request_id", "run_id", "fence"])


def _plan_alternatives() -> None:
    op.create_table(
        "plan_alternatives",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("fence", BIG, nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        *_shape_columns(),
        *_score_columns(),
        sa.Column("active_rows", sa.Integer(), nullable=False),
        sa.Column("request_ids", JSON, nullable=False),
        sa.Column("selected_cost_ms", sa.Float(), nullable=False),
        sa.Column("cost_state", sa.Text(), nullable=False),
        sa.Column("barred_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "fence", "rank", name="pk_plan_alternatives"),
        sqlite_with_rowid=False,
    )


def _trace_gaps() -> None:
    op.create_table(
        "trace_gaps",
        sa.Column("id", BIG, nullable=False, autoincrement=True),
        sa.Column("run_id", sa.Text()),
        sa.Column("from_fence", BIG),
        sa.Column("to_fence", BIG),
        sa.Column("noticed_at", UtcDateTime(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_trace_gaps"),
    )


def _journal_offsets() -> None:
    op.create_table(
        "journal_offsets",
        sa.Column("journal_id", sa.Text(), nullable=False),
        sa.Column("sink", sa.Text(), nullable=False),
        sa.Column("segment", BIG, nullable=False),
        sa.Column("offset", BIG, nullable=False),
        sa.Column("sequence", BIG, nullable=False, server_default="0"),
        sa.Column("run_id", sa.Text()),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("journal_id", "sink", name="pk_journal_offsets"),
    )


def upgrade() -> None:
    """Creates the tables, their indexes and the view."""
    _engine_runs()
    _policy_versions()
    _policy_attempts()
    _policy_applications()
    _requests()
    _plans()
    _plan_lanes()
    _plan_alternatives()
    _trace_gaps()
    _journal_offsets()
    op.execute(_TIMELINE)


def downgrade() -> None:
    """Drops the view and the tables with their rows."""
    op.execute("DROP VIEW plan_timeline")
    for table in (
        "journal_offsets",
        "trace_gaps",
        "plan_alternatives",
        "plan_lanes",
        "plans",
        "requests",
        "policy_applications",
        "policy_attempts",
        "policy_versions",
        "engine_runs",
    ):
        op.drop_table(table)
