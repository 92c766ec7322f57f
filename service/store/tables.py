"""The trace store's tables. Column names are a contract with people's queries; migrations create the tables.

Enumerations are lower_snake text. `_ns` columns are monotonic, `_at` columns are UTC wall times.
"""

from __future__ import annotations

import sqlalchemy as sa

from scheduler.policy import COEFFICIENTS
from service.store.buckets import DEVICE_BUCKETS
from service.store.types import BIG, JSON, UtcDateTime

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _shape_columns() -> list[sa.Column[object]]:
    return [
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("batch_capacity", sa.Integer, nullable=False),
        sa.Column("draft_depth", sa.Integer, nullable=False),
        sa.Column("target_width", sa.Integer, nullable=False),
        sa.Column("target_rows", sa.Integer, nullable=False),
        sa.Column("prefill_capacity", sa.Integer, nullable=False),
        sa.Column("speculation_enabled", sa.Boolean, nullable=False),
        sa.Column("allocation", sa.Text, nullable=False),
        sa.Column("prompt_rows", sa.Integer, nullable=False, server_default="1"),
    ]


SHAPE_COLUMNS = tuple(column.name for column in _shape_columns())


def _score_columns() -> list[sa.Column[object]]:
    return [
        sa.Column("score_kind", sa.Text, nullable=False),
        sa.Column("value_rate", sa.Float, nullable=False),
        sa.Column("log_scale", sa.Float, nullable=False),
        sa.Column("token_value", sa.Float, nullable=False),
        sa.Column("delivery_value", sa.Float, nullable=False),
        sa.Column("age_relief", sa.Float, nullable=False),
        sa.Column("terminal_relief", sa.Float, nullable=False),
        sa.Column("prompt_wait_relief", sa.Float, nullable=False, server_default="0"),
        sa.Column("decode_late_relief", sa.Float, nullable=False, server_default="0"),
        sa.Column("wait_cost", sa.Float, nullable=False),
        sa.Column("score_horizon_ms", sa.Float),
        sa.Column("following_kind", sa.Text),
        sa.Column("following_shape", sa.Text),
    ]


_LATER_COEFFICIENTS = {
    "prompt_wait_price": "0",
    "prompt_rank_age_ms": "0",
    "decode_gap_weight": "0",
    "decode_late_price": "0",
    "decode_cadence": "off",
    "token_budget": "0",
    "acceptance_model": "prefix",
}
"""What versions from before these coefficients have."""


def _coefficient_column(name: str, default: object) -> sa.Column[object]:
    before = _LATER_COEFFICIENTS.get(name)
    if isinstance(default, str):
        return sa.Column(name, sa.Text, nullable=False, server_default=before)
    return sa.Column(name, BIG if isinstance(default, int) else sa.Float, nullable=False, server_default=before)


engine_runs = sa.Table(
    "engine_runs",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("started_at", UtcDateTime, nullable=False, index=True),
    sa.Column("ended_at", UtcDateTime),
    sa.Column("end_reason", sa.Text),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("device", sa.Text, nullable=False),
    sa.Column("catalog_digest", sa.Text, nullable=False),
    sa.Column("settings", JSON, nullable=False),
    sa.Column("started_wall_ns", BIG, nullable=False),
    sa.Column("started_monotonic_ns", BIG, nullable=False),
)

policy_versions = sa.Table(
    "policy_versions",
    metadata,
    sa.Column("version", BIG, primary_key=True, autoincrement=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("applied_at", UtcDateTime),
    sa.Column("state", sa.Text, nullable=False),  # pending, applied, refused
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("parent_version", BIG),
    sa.Column("preset", sa.Text),
    *[_coefficient_column(c.name, c.default) for c in COEFFICIENTS],
)

policy_attempts = sa.Table(
    "policy_attempts",
    metadata,
    sa.Column("id", BIG, primary_key=True, autoincrement=True),
    sa.Column("at", UtcDateTime, nullable=False, index=True),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),  # applied, unchanged, invalid, stale, pending, refused
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("request", JSON, nullable=False),
)

policy_applications = sa.Table(
    "policy_applications",
    metadata,
    sa.Column("version", BIG, nullable=False),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("fence", BIG, nullable=False),
    sa.Column("applied_at", UtcDateTime, nullable=False),
    # Not unique: an idle engine that goes back from a withdrawn version applies the old one after the same fence again.
    sa.Index("ix_policy_applications_version", "version", "run_id", "fence"),
)

_WATCHING = sa.text("state = 'watching'")

policy_guards = sa.Table(
    "policy_guards",
    metadata,
    sa.Column("version", BIG, primary_key=True, autoincrement=False),
    sa.Column("parent_version", BIG, nullable=False),
    sa.Column("minutes", sa.Float, nullable=False),
    sa.Column("limits", JSON, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),  # watching, held, rolled_back, ended
    sa.Column("opened_at", UtcDateTime, nullable=False),
    sa.Column("ends_at", UtcDateTime, nullable=False),
    sa.Column("decided_at", UtcDateTime),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("evidence", JSON, nullable=False),
    sa.Column("watcher", sa.Text),
    sa.Column("lease_ends_at", UtcDateTime),
    # At most one row: whoever opens a second guard at the same time fails.
    sa.Index("ix_policy_guards_watching", "state", unique=True, sqlite_where=_WATCHING, postgresql_where=_WATCHING),
)

_UNFINISHED = sa.text("finished_at IS NULL")

requests = sa.Table(
    "requests",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("request_id", sa.Text, primary_key=True),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("arrived_at", UtcDateTime, nullable=False),
    sa.Column("admitted_at", UtcDateTime),
    sa.Column("first_output_at", UtcDateTime),
    sa.Column("finished_at", UtcDateTime),
    sa.Column("prompt_tokens", BIG, nullable=False),
    sa.Column("cached_tokens", BIG, nullable=False, server_default="0"),
    sa.Column("output_tokens", BIG, nullable=False, server_default="0"),
    sa.Column("max_tokens", BIG, nullable=False),
    sa.Column("finish_reason", sa.Text),
    sa.Column("error", sa.Text),
    sa.Column("preemptions", sa.Integer, nullable=False, server_default="0"),
    sa.Column("queue_ms", sa.Float),
    sa.Column("tokenize_ms", sa.Float),
    sa.Column("prefill_ms", sa.Float),
    sa.Column("decode_ms", sa.Float),
    sa.Column("publish_ms", sa.Float),
    sa.Column("trace_id", sa.Text),
    sa.Column("prefix_key", sa.Text),
    sa.Index("ix_requests_newest", "arrived_at", "run_id", "request_id"),
    # Holds only what runs, so that the dashboard counts it each second whatever the table's size.
    sa.Index("ix_requests_unfinished", "run_id", sqlite_where=_UNFINISHED, postgresql_where=_UNFINISHED),
)

plans = sa.Table(
    "plans",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("fence", BIG, primary_key=True),
    sa.Column("committed_at", UtcDateTime, nullable=False),
    sa.Column("committed_ns", BIG, nullable=False),
    *_shape_columns(),
    sa.Column("reason", sa.Text, nullable=False),
    *_score_columns(),
    sa.Column("active_rows", sa.Integer, nullable=False),
    sa.Column("active_decoders", sa.Integer, nullable=False),
    sa.Column("logical_rows", BIG, nullable=False),
    sa.Column("selected_cost_ms", sa.Float, nullable=False),
    sa.Column("observation_age_ms", sa.Float),
    sa.Column("cost_state", sa.Text, nullable=False),
    sa.Column("margin", sa.Float),
    sa.Column("candidates", sa.Integer, nullable=False),
    sa.Column("exploration_credit_ms", sa.Float, nullable=False),
    sa.Column("timing_credit_ms", sa.Float, nullable=False),
    sa.Column("timing_spent_ms", sa.Float, nullable=False),
    sa.Column("acceptance_credit_ms", sa.Float, nullable=False),
    sa.Column("acceptance_spent_ms", sa.Float, nullable=False),
    sa.Column("timing_ordinary_ms", sa.Float, nullable=False),
    sa.Column("acceptance_ordinary_ms", sa.Float, nullable=False),
    sa.Column("discovery_ms", sa.Float, nullable=False),
    sa.Column("queue_depth", sa.Integer, nullable=False),
    sa.Column("frame_slot", sa.Integer, nullable=False),
    sa.Column("policy_version", BIG, nullable=False, index=True),
    sa.Column("plan_us", sa.Float, nullable=False),
    sa.Column("started_ns", BIG),
    sa.Column("completed_at", UtcDateTime),
    sa.Column("completed_ns", BIG),
    sa.Column("outcome", sa.Text, nullable=False),  # in_flight, completed, failed, abandoned, lost
    sa.Column("device_ms", sa.Float),
    sa.Column("wall_ms", sa.Float),
    sa.Column("exposed_delivery_ms", sa.Float),
    sa.Column("prompt_tokens", BIG, nullable=False),
    sa.Column("output_tokens", BIG, nullable=False),
    sa.Column("offered_tokens", BIG, nullable=False),
    sa.Column("draft_tokens", BIG, nullable=False),
    sa.Column("accepted_tokens", BIG, nullable=False),
    sa.Column("deliveries", sa.Integer, nullable=False),
    sa.Index("ix_plans_newest", "committed_at", "run_id", "fence"),
    sa.Index("ix_plans_outcome_run_id", "outcome", "run_id"),
)

plan_lanes = sa.Table(
    "plan_lanes",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("fence", BIG, primary_key=True),
    sa.Column("lane", sa.Integer, primary_key=True),
    sa.Column("request_id", sa.Text, nullable=False),
    sa.Column("generation", BIG, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("prompt_tokens", BIG, nullable=False),
    sa.Column("query_length", BIG, nullable=False),
    sa.Column("ceiling", BIG, nullable=False),
    sa.Column("proposal_source", sa.Text),
    sa.Column("token_price", sa.Float, nullable=False),
    sa.Column("delivery_price", sa.Float, nullable=False),
    sa.Column("age_ms", sa.Float, nullable=False),
    sa.Column("sigma_ms", sa.Float, nullable=False),
    sa.Column("expected_tokens", sa.Float, nullable=False),
    sa.Column("terminal_value", sa.Float, nullable=False),
    sa.Column("lane_value", sa.Float, nullable=False),
    sa.Column("offered_tokens", BIG, nullable=False),
    sa.Column("committed_tokens", BIG, nullable=False),
    sa.Column("accepted_tokens", BIG, nullable=False),
    sa.Column("delivered", sa.Boolean, nullable=False),
    sa.Column("published_ns", BIG),
    sa.Index("ix_plan_lanes_request", "request_id", "run_id", "fence"),
    sqlite_with_rowid=False,  # small rows read by primary key: a tenth less disk, a sixth less time to read a plan
)

plan_alternatives = sa.Table(
    "plan_alternatives",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("fence", BIG, primary_key=True),
    sa.Column("rank", sa.Integer, primary_key=True),
    *_shape_columns(),
    *_score_columns(),
    sa.Column("active_rows", sa.Integer, nullable=False),
    sa.Column("request_ids", JSON, nullable=False),
    sa.Column("selected_cost_ms", sa.Float, nullable=False),
    sa.Column("cost_state", sa.Text, nullable=False),
    sa.Column("barred_by", sa.Text, nullable=False),
    sqlite_with_rowid=False,
)

# Completed plans by the minute of their completed_at; written by the recorder with the plans that it counts.
plan_minutes = sa.Table(
    "plan_minutes",
    metadata,
    sa.Column("minute", UtcDateTime, nullable=False),
    sa.Column("run_id", sa.Text, nullable=False),
    *_shape_columns(),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("plans", BIG, nullable=False),
    sa.Column("device_ms_sum", sa.Float, nullable=False),
    sa.Column("device_ms_max", sa.Float, nullable=False),
    sa.Column("selected_cost_ms_sum", sa.Float, nullable=False),
    sa.Column("output_tokens", BIG, nullable=False),
    *[sa.Column(name, sa.Integer, nullable=False) for name in DEVICE_BUCKETS],
    sa.PrimaryKeyConstraint("minute", "run_id", *SHAPE_COLUMNS, "reason"),
    sqlite_with_rowid=False,
)

_IS_CHECKPOINT = sa.text("is_checkpoint")

# What changed an engine's scheduler, to re-execute its decisions; blobs as service.store.decision_log says.
decision_log = sa.Table(
    "decision_log",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("first_call", BIG, primary_key=True, autoincrement=False),
    sa.Column("calls", BIG, nullable=False),
    sa.Column("first_fence", BIG, nullable=False),
    sa.Column("last_fence", BIG, nullable=False),
    sa.Column("is_checkpoint", sa.Boolean, nullable=False),
    sa.Column("blob", sa.LargeBinary, nullable=False),
    sa.Index(
        "ix_decision_log_checkpoints",
        "run_id",
        "last_fence",
        sqlite_where=_IS_CHECKPOINT,
        postgresql_where=_IS_CHECKPOINT,
    ),
    # Finds the rows of an old plan, as retention does; chunks of a run lie in the order of their fences.
    sa.Index("ix_decision_log_fences", "run_id", "last_fence"),
)

trace_gaps = sa.Table(
    "trace_gaps",
    metadata,
    sa.Column("id", BIG, primary_key=True, autoincrement=True),
    sa.Column("run_id", sa.Text),
    sa.Column("from_fence", BIG),
    sa.Column("to_fence", BIG),
    sa.Column("noticed_at", UtcDateTime, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
)

journal_offsets = sa.Table(
    "journal_offsets",
    metadata,
    sa.Column("journal_id", sa.Text, primary_key=True),
    sa.Column("sink", sa.Text, primary_key=True),
    sa.Column("segment", BIG, nullable=False),
    sa.Column("offset", BIG, nullable=False),
    sa.Column("sequence", BIG, nullable=False, server_default="0"),  # records of the journal before this place
    sa.Column("run_id", sa.Text),
    sa.Column("updated_at", UtcDateTime, nullable=False),
)
