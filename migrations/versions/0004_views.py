"""Stable views: `plan_timeline` with the shape's label, `request_timeline`, `shape_minutes` and `device_histogram`.

Purpose: the joins and sums that most questions begin with, under names that stay. `plan_timeline` is made again, with
    one more column at its end, and its gap_ms a double on PostgreSQL too.
Locks: PostgreSQL locks `plan_timeline` while it is made again, for milliseconds; no table is changed or read. The
    caller holds the upgrade lock (SQLite: the write lock; PostgreSQL: an advisory lock). A view of an operator's own
    on `plan_timeline` cannot stay over it on PostgreSQL: it is named, and nothing is changed.
Undo: `downgrade` drops the views and makes `plan_timeline` as it was before. No row is touched.
    By hand: drop the four views, create plan_timeline as in step 0001, then set the row of alembic_version to 0003.
"""

from __future__ import annotations

from alembic import op

from migrations.operator_views import refuse_operator_views

revision = "0004"
down_revision = "0003"
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
_VIEWS = ("device_histogram", "shape_minutes", "request_timeline", "plan_timeline")
_STEPS = (1, 1.5, 2, 3, 5, 7)
_BOUNDS_US = (*(int(step * decade) for decade in (100, 1000, 10**4, 10**5, 10**6) for step in _STEPS), 10**7)

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
        WHEN p.started_ns > q.completed_ns THEN {gap}
        ELSE {no_gap}
    END AS gap_ms,
    v.actor AS policy_actor, v.note AS policy_note, v.preset AS policy_preset, v.applied_at AS policy_applied_at,
    v.output_token_value, v.token_fairness, v.delivery_fairness, v.decode_age_price, v.terminal_value,
    v.terminal_age_price, v.adaptation_ms, v.estimate_ttl_ns, v.adaptive_verification_alpha, v.prefill_chunking,
    v.newcomer_memory{more}
FROM plans p
LEFT JOIN plans q
    ON q.run_id = p.run_id
    AND q.fence = (SELECT MAX(e.fence) FROM plans e WHERE e.run_id = p.run_id AND e.fence < p.fence)
LEFT JOIN policy_versions v ON v.version = p.policy_version
"""

_GAP = "(p.started_ns - q.completed_ns) / 1000000.0"
_DOUBLE = "CAST({} AS double precision)"
_BEFORE = {"gap": _GAP, "no_gap": "0.0", "more": ""}

# One row per lane: what each plan did for each request that it served.
_REQUESTS = """
CREATE VIEW request_timeline AS
SELECT
    l.run_id, l.request_id, l.fence, l.lane, r.arrived_at, p.committed_at, {since_arrival} AS since_arrival_ms,
    {shape} AS shape, p.kind, p.reason, p.policy_version, p.outcome, l.role, l.prompt_tokens, l.query_length,
    l.ceiling, l.proposal_source, l.token_price, l.delivery_price, l.age_ms, l.sigma_ms, l.expected_tokens,
    l.terminal_value, l.lane_value, l.offered_tokens, l.committed_tokens, l.accepted_tokens, l.delivered,
    p.active_rows, p.selected_cost_ms, p.device_ms, p.wall_ms, p.started_ns, p.completed_ns, l.published_ns
FROM plan_lanes l
JOIN plans p ON p.run_id = l.run_id AND p.fence = l.fence
LEFT JOIN requests r ON r.run_id = l.run_id AND r.request_id = l.request_id
"""

# plan_minutes over all reasons. Discovery had no cost to compare with. PostgreSQL's sum of bigint is numeric: cast.
_MINUTES = """
CREATE VIEW shape_minutes AS
SELECT
    m.minute, m.run_id, {shape} AS shape, {columns},
    CAST(SUM(m.plans) AS bigint) AS plans,
    SUM(m.device_ms_sum) AS device_ms_sum, MAX(m.device_ms_max) AS device_ms_max,
    SUM(m.device_ms_sum) / SUM(m.plans) AS device_ms_mean,
    SUM(m.selected_cost_ms_sum) AS selected_cost_ms_sum,
    SUM(CASE WHEN m.reason <> 'discovery' THEN m.device_ms_sum END)
        / NULLIF(SUM(CASE WHEN m.reason <> 'discovery' THEN m.selected_cost_ms_sum END), 0.0) AS cost_ratio,
    CAST(SUM(m.output_tokens) AS bigint) AS output_tokens
FROM plan_minutes m
GROUP BY m.minute, m.run_id, {columns}
"""

# One row for each bucket that counted something. Rows of plan_minutes are found by minute before they are spread out;
# PostgreSQL takes a fifth of the time when it need not choose a row's column by number.
_HISTOGRAM = """
CREATE VIEW device_histogram AS
SELECT
    m.minute, m.run_id, {shape} AS shape, {columns}, m.reason, b.bucket, b.device_to_ms, m.device_ms_max,
    {count} AS plans
FROM plan_minutes m
CROSS JOIN {buckets}
WHERE {count} > 0
"""

_SINCE_ARRIVAL = {
    "postgresql": "CAST(EXTRACT(EPOCH FROM p.committed_at - r.arrived_at) * 1000 AS double precision)",
    # Whole microseconds first: the one division rounds as PostgreSQL's exact number does when it is cast. strftime
    # gets no fraction: it would round .999999 up to the next second.
    "sqlite": (
        "((CAST(strftime('%s', substr(p.committed_at, 1, 19)) AS integer)"
        " - CAST(strftime('%s', substr(r.arrived_at, 1, 19)) AS integer)) * 1000000"
        " + CAST(substr(p.committed_at, 21, 6) AS integer) - CAST(substr(r.arrived_at, 21, 6) AS integer)) / 1000.0"
    ),
}


def _label(table: str) -> str:
    """The shape as people write it, such as prefill:B1:C256."""
    return (
        f"{table}.kind || ':B' || {table}.batch_capacity"
        f" || CASE WHEN {table}.kind IN ('speculative', 'mixed') THEN ':D' || {table}.draft_depth"
        f" || ':W' || {table}.target_width || ':P' || {table}.target_rows ELSE '' END"
        f" || CASE WHEN {table}.prefill_capacity > 0 THEN ':C' || {table}.prefill_capacity ELSE '' END"
    )


def _buckets(dialect: str) -> tuple[str, str]:
    """The table b of buckets, (bucket, device_to_ms) and on PostgreSQL its plans, and the count of plans in one."""
    bounds = [(f"device_to_{bound}us", _DOUBLE.format(bound / 1000)) for bound in _BOUNDS_US]
    bounds.append(("device_over", _DOUBLE.format("NULL")))
    if dialect == "postgresql":
        values = ", ".join(f"({number}, {bound}, m.{name})" for number, (name, bound) in enumerate(bounds, 1))
        return f"LATERAL (VALUES {values}) AS b(bucket, device_to_ms, plans)", "b.plans"
    rows = [f"SELECT {number} AS bucket, {bound} AS device_to_ms" for number, (_, bound) in enumerate(bounds, 1)]
    cases = " ".join(f"WHEN {number} THEN m.{name}" for number, (name, _) in enumerate(bounds, 1))
    return f"({' UNION ALL '.join(rows)}) AS b", f"CASE b.bucket {cases} END"


def upgrade() -> None:
    """Makes the views."""
    connection = op.get_bind()
    columns = ", ".join(f"m.{name}" for name in _SHAPE_COLUMNS)
    buckets, count = _buckets(connection.dialect.name)
    refuse_operator_views(connection, "plan_timeline")
    connection.exec_driver_sql("DROP VIEW plan_timeline")
    for text in (  # as they stand: in op.execute a colon begins a parameter
        _TIMELINE.format(gap=_DOUBLE.format(_GAP), no_gap=_DOUBLE.format("0"), more=f", {_label('p')} AS shape"),
        _REQUESTS.format(shape=_label("p"), since_arrival=_SINCE_ARRIVAL[connection.dialect.name]),
        _MINUTES.format(shape=_label("m"), columns=columns),
        _HISTOGRAM.format(shape=_label("m"), columns=columns, buckets=buckets, count=count),
    ):
        connection.exec_driver_sql(text)


def downgrade() -> None:
    """Drops the views and makes the one of step 0001."""
    connection = op.get_bind()
    refuse_operator_views(connection, *_VIEWS)
    for view in _VIEWS:
        connection.exec_driver_sql(f"DROP VIEW {view}")
    connection.exec_driver_sql(_TIMELINE.format(**_BEFORE))
