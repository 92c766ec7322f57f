"""Prompt rows of a graph, two more parts of a score, and six coefficients; the views have them at their ends.

Purpose: a mixed graph may carry several prompts (`prompt_rows`, a part of what it is), a score has what a plan spares
    waiting prompts and late streams (`prompt_wait_relief`, `decode_late_relief`), and a policy version has the
    coefficients behind both. Rows that are there get what they were decided with: one prompt row, no such parts, and
    coefficients that are off.
Locks: the columns have constant defaults, so that no row of `plans` or `plan_alternatives` is written again.
    PostgreSQL locks them and their partitions until the step ends, and builds the key of `plan_minutes` anew; SQLite
    copies that table twice. The caller holds the upgrade lock. Stop the server first: an older
    recorder does not know the key. Views of an operator's own stay, also those on Helios's views.
Undo: `downgrade` takes the columns away (SQLite writes the tables anew for that). Minutes of graphs that differ in
    their prompt rows alone are added up. The coefficients are lost, and versions that used them go on without: those
    of the presets `interactive` and `budget:N` have `balanced`'s values then, and its name. On PostgreSQL a view of an
    operator's own on plan_timeline, shape_minutes, device_histogram or graph_observations is named and stops it.
    By hand: drop the columns, with the key of step 0002 and the views of steps 0004 to 0006, then set the row of
    alembic_version to 0007.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from migrations.operator_views import refuse_operator_views
from service.store.types import BIG, UtcDateTime

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_SHAPE = (
    "kind",
    "batch_capacity",
    "draft_depth",
    "target_width",
    "target_rows",
    "prefill_capacity",
    "speculation_enabled",
    "allocation",
)
_KEY = ("minute", "run_id", *_SHAPE, "reason")
_RELIEFS = ("prompt_wait_relief", "decode_late_relief")
_COEFFICIENTS = (
    "prompt_wait_price",
    "prompt_rank_age_ms",
    "decode_gap_weight",
    "decode_late_price",
    "decode_cadence",
    "token_budget",
)
_ADDED_TO_VIEWS = ("plan_timeline", "shape_minutes", "device_histogram", "graph_observations")
_VIEWS = (*_ADDED_TO_VIEWS, "request_timeline")
# `preset` names the preset whose values a version has, and both are balanced's but for the coefficients that go.
_WITHOUT_COEFFICIENTS = (
    "UPDATE policy_versions SET preset = 'balanced' WHERE preset = 'interactive' OR substr(preset, 1, 7) = 'budget:'"
)
_STEPS = (1, 1.5, 2, 3, 5, 7)
_BOUNDS_US = (*(int(step * decade) for decade in (100, 1000, 10**4, 10**5, 10**6) for step in _STEPS), 10**7)
_BUCKETS = (*(f"device_to_{bound}us" for bound in _BOUNDS_US), "device_over")
_SUMS = ("plans", "device_ms_sum", "selected_cost_ms_sum", "output_tokens", *_BUCKETS)

_PLAN = (
    "run_id", "fence", "committed_at", "committed_ns", *_SHAPE, "reason", "score_kind", "value_rate", "log_scale",
    "token_value", "delivery_value", "age_relief", "terminal_relief", "wait_cost", "score_horizon_ms",
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

_TIMELINE = """
SELECT {columns}, {gap} AS gap_ms, {policy}, {shape} AS shape{more}
FROM plans p
{plan_before}
LEFT JOIN policy_versions v ON v.version = p.policy_version
"""

_REQUESTS = """
SELECT
    l.run_id, l.request_id, l.fence, l.lane, r.arrived_at, p.committed_at, {since_arrival} AS since_arrival_ms,
    {shape} AS shape, p.kind, p.reason, p.policy_version, p.outcome, l.role, l.prompt_tokens, l.query_length,
    l.ceiling, l.proposal_source, l.token_price, l.delivery_price, l.age_ms, l.sigma_ms, l.expected_tokens,
    l.terminal_value, l.lane_value, l.offered_tokens, l.committed_tokens, l.accepted_tokens, l.delivered,
    p.active_rows, p.selected_cost_ms, p.device_ms, p.wall_ms, p.started_ns, p.completed_ns, l.published_ns
FROM plan_lanes l
JOIN plans p ON p.run_id = l.run_id AND p.fence = l.fence{same_day}
LEFT JOIN requests r ON r.run_id = l.run_id AND r.request_id = l.request_id
"""
_SINCE_ARRIVAL = {
    "postgresql": "CAST(EXTRACT(EPOCH FROM p.committed_at - r.arrived_at) * 1000 AS double precision)",
    # Whole microseconds first, as in step 0004.
    "sqlite": (
        "((CAST(strftime('%s', substr(p.committed_at, 1, 19)) AS integer)"
        " - CAST(strftime('%s', substr(r.arrived_at, 1, 19)) AS integer)) * 1000000"
        " + CAST(substr(p.committed_at, 21, 6) AS integer) - CAST(substr(r.arrived_at, 21, 6) AS integer)) / 1000.0"
    ),
}

_MINUTES = """
SELECT
    m.minute, m.run_id, {shape} AS shape, {columns},
    CAST(SUM(m.plans) AS bigint) AS plans,
    SUM(m.device_ms_sum) AS device_ms_sum, MAX(m.device_ms_max) AS device_ms_max,
    SUM(m.device_ms_sum) / SUM(m.plans) AS device_ms_mean,
    SUM(m.selected_cost_ms_sum) AS selected_cost_ms_sum,
    SUM(CASE WHEN m.reason <> 'discovery' THEN m.device_ms_sum END)
        / NULLIF(SUM(CASE WHEN m.reason <> 'discovery' THEN m.selected_cost_ms_sum END), 0.0) AS cost_ratio,
    CAST(SUM(m.output_tokens) AS bigint) AS output_tokens{more}
FROM plan_minutes m
GROUP BY m.minute, m.run_id, {columns}{more}
"""

_HISTOGRAM = """
SELECT
    m.minute, m.run_id, {shape} AS shape, {columns}, m.reason, b.bucket, b.device_to_ms, m.device_ms_max,
    {count} AS plans{more}
FROM plan_minutes m
CROSS JOIN {buckets}
WHERE {count} > 0
"""

_OBSERVATIONS = """
SELECT
    p.run_id, p.fence, {columns},
    p.device_ms - p.exposed_delivery_ms AS sample_ms,
    CASE WHEN p.cost_state <> 'unknown' THEN p.selected_cost_ms END AS estimate_ms,
    {shape} AS shape, p.reason, p.committed_at, p.completed_at{more}
FROM plans p
WHERE p.outcome = 'completed' AND p.device_ms > p.exposed_delivery_ms
"""


def upgrade() -> None:
    """Adds the columns, makes the key of plan_minutes anew and replaces the views."""
    for table in ("plans", "plan_alternatives"):
        op.add_column(table, sa.Column("prompt_rows", sa.Integer(), nullable=False, server_default="1"))
        for name in _RELIEFS:
            op.add_column(table, sa.Column(name, sa.Float(), nullable=False, server_default="0"))
    for name in _COEFFICIENTS:
        op.add_column("policy_versions", _coefficient(name))
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        op.add_column("plan_minutes", sa.Column("prompt_rows", sa.Integer(), nullable=False, server_default="1"))
        _change_key(connection, (*_KEY[:-1], "prompt_rows", _KEY[-1]))
    else:
        _copy_minutes(connection, prompt_rows=True)
    _make_views(connection, prompt_rows=True)


def downgrade() -> None:
    """Takes all of it back."""
    connection = op.get_bind()
    refuse_operator_views(connection, *_ADDED_TO_VIEWS)
    grants = _grants(connection)
    for view in _VIEWS:
        connection.exec_driver_sql(f"DROP VIEW {view}")
    _make_views(connection, prompt_rows=False)
    for grant in grants:
        connection.exec_driver_sql(grant)
    _add_up_minutes(connection)
    if connection.dialect.name == "postgresql":
        op.drop_constraint("pk_plan_minutes", "plan_minutes")
        op.drop_column("plan_minutes", "prompt_rows")
        op.create_primary_key("pk_plan_minutes", "plan_minutes", list(_KEY))
    else:
        _copy_minutes(connection, prompt_rows=False)
    for table in ("plans", "plan_alternatives"):
        for name in ("prompt_rows", *_RELIEFS):
            connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {name}")
    connection.exec_driver_sql(_WITHOUT_COEFFICIENTS)
    for name in _COEFFICIENTS:
        connection.exec_driver_sql(f"ALTER TABLE policy_versions DROP COLUMN {name}")


def _grants(connection: sa.Connection) -> list[str]:
    """What others may do with the views, as statements that allow it again; nothing on SQLite."""
    if connection.dialect.name != "postgresql":
        return []
    views = ", ".join(f"CAST('{view}' AS regclass)" for view in _VIEWS)
    found = connection.exec_driver_sql(
        "SELECT c.relname, g.privilege_type,"
        " CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END,"
        " CASE WHEN g.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END FROM pg_class AS c, aclexplode(c.relacl) AS g"
        f" WHERE c.oid IN ({views}) AND g.grantee <> c.relowner"
    )
    return [f"GRANT {privilege} ON {view} TO {grantee}{option}" for view, privilege, grantee, option in found.all()]


def _coefficient(name: str) -> sa.Column[Any]:
    if name == "decode_cadence":
        return sa.Column(name, sa.Text(), nullable=False, server_default="off")
    if name == "token_budget":
        return sa.Column(name, BIG, nullable=False, server_default="0")
    return sa.Column(name, sa.Float(), nullable=False, server_default="0")


def _change_key(connection: sa.Connection, key: tuple[str, ...]) -> None:
    connection.exec_driver_sql(
        "ALTER TABLE plan_minutes DROP CONSTRAINT pk_plan_minutes,"
        f" ADD CONSTRAINT pk_plan_minutes PRIMARY KEY ({', '.join(key)})"
    )


def _copy_minutes(connection: sa.Connection, *, prompt_rows: bool) -> None:
    """SQLite: the table with another key. It never gets another name, so that views on it need not be looked at."""
    names = ", ".join((*_KEY, "device_ms_max", *_SUMS))
    connection.exec_driver_sql(f"CREATE TABLE plan_minutes_before AS SELECT {names} FROM plan_minutes")
    connection.exec_driver_sql("DROP TABLE plan_minutes")
    more = [sa.Column("prompt_rows", sa.Integer(), nullable=False, server_default="1")] if prompt_rows else []
    key = (*_KEY[:-1], "prompt_rows", _KEY[-1]) if prompt_rows else _KEY
    op.create_table(
        "plan_minutes",
        sa.Column("minute", UtcDateTime(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        *[sa.Column(name, sa.Integer(), nullable=False) for name in _SHAPE[1:6]],
        sa.Column("speculation_enabled", sa.Boolean(), nullable=False),
        sa.Column("allocation", sa.Text(), nullable=False),
        *more,  # here: integrity_check of SQLite 3.40 finds NULLs in values that come before a part of the key
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("plans", BIG, nullable=False),
        sa.Column("device_ms_sum", sa.Float(), nullable=False),
        sa.Column("device_ms_max", sa.Float(), nullable=False),
        sa.Column("selected_cost_ms_sum", sa.Float(), nullable=False),
        sa.Column("output_tokens", BIG, nullable=False),
        *[sa.Column(name, sa.Integer(), nullable=False) for name in _BUCKETS],
        sa.PrimaryKeyConstraint(*key, name="pk_plan_minutes"),
        sqlite_with_rowid=False,
    )
    connection.exec_driver_sql(f"INSERT INTO plan_minutes ({names}) SELECT {names} FROM plan_minutes_before")
    connection.exec_driver_sql("DROP TABLE plan_minutes_before")


def _add_up_minutes(connection: sa.Connection) -> None:
    """Rows of graphs with several prompt rows, into those of the same graph with one."""
    group = ", ".join(_KEY)
    largest = "CASE WHEN excluded.device_ms_max > plan_minutes.device_ms_max THEN excluded.device_ms_max"
    changes = [f"device_ms_max = {largest} ELSE plan_minutes.device_ms_max END"]
    changes += [f"{name} = plan_minutes.{name} + excluded.{name}" for name in _SUMS]
    connection.exec_driver_sql(
        f"INSERT INTO plan_minutes ({group}, prompt_rows, device_ms_max, {', '.join(_SUMS)})"
        f" SELECT {group}, 1, MAX(device_ms_max), {', '.join(f'SUM({name})' for name in _SUMS)} FROM plan_minutes"
        f" WHERE prompt_rows <> 1 GROUP BY {group}"
        f" ON CONFLICT ({group}, prompt_rows) DO UPDATE SET {', '.join(changes)}"
    )
    connection.exec_driver_sql("DELETE FROM plan_minutes WHERE prompt_rows <> 1")


def _label(table: str, *, prompt_rows: bool) -> str:
    """The shape as people write it, such as prefill:B1:C256 or mixed:B8:D0:W1:P8:C256:R4."""
    text = (
        f"{table}.kind || ':B' || {table}.batch_capacity"
        f" || CASE WHEN {table}.kind IN ('speculative', 'mixed') THEN ':D' || {table}.draft_depth"
        f" || ':W' || {table}.target_width || ':P' || {table}.target_rows ELSE '' END"
        f" || CASE WHEN {table}.prefill_capacity > 0 THEN ':C' || {table}.prefill_capacity ELSE '' END"
    )
    if prompt_rows:
        text += f" || CASE WHEN {table}.prompt_rows > 1 THEN ':R' || {table}.prompt_rows ELSE '' END"
    return text


def _bucket_rows(dialect: str) -> dict[str, str]:
    """The table b of buckets, (bucket, device_to_ms) and on PostgreSQL its plans, and the count of plans in one."""
    bounds = [f"CAST({bound / 1000} AS double precision)" for bound in _BOUNDS_US]
    named = list(enumerate(zip(_BUCKETS, [*bounds, "CAST(NULL AS double precision)"], strict=True), 1))
    if dialect == "postgresql":
        values = ", ".join(f"({number}, {bound}, m.{name})" for number, (name, bound) in named)
        return {"buckets": f"LATERAL (VALUES {values}) AS b(bucket, device_to_ms, plans)", "count": "b.plans"}
    rows = " UNION ALL ".join(f"SELECT {number} AS bucket, {bound} AS device_to_ms" for number, (_, bound) in named)
    cases = " ".join(f"WHEN {number} THEN m.{name}" for number, (name, _) in named)
    return {"buckets": f"({rows}) AS b", "count": f"CASE b.bucket {cases} END"}


def _make_views(connection: sa.Connection, *, prompt_rows: bool) -> None:
    """The views with or without what this step adds. PostgreSQL replaces those that are there in place."""
    by_day = connection.dialect.name == "postgresql"

    def columns(table: str, names: tuple[str, ...]) -> str:
        return ", ".join(f"{table}.{name}" for name in names)

    def more(*texts: str) -> str:
        return "".join(f", {text}" for text in texts) if prompt_rows else ""

    plan, minute = _label("p", prompt_rows=prompt_rows), _label("m", prompt_rows=prompt_rows)
    of_timeline = (columns("p", ("prompt_rows", *_RELIEFS)), columns("v", _COEFFICIENTS))
    views = {
        "plan_timeline": _TIMELINE.format(
            columns=columns("p", _PLAN),
            gap=_GAP_BY_DAY if by_day else _GAP,
            policy=_POLICY,
            shape=plan,
            more=more(*of_timeline),
            plan_before="" if by_day else _PLAN_BEFORE,
        ),
        "request_timeline": _REQUESTS.format(
            since_arrival=_SINCE_ARRIVAL[connection.dialect.name],
            shape=plan,
            same_day=" AND p.recorded_on = l.recorded_on" if by_day else "",
        ),
        "shape_minutes": _MINUTES.format(shape=minute, columns=columns("m", _SHAPE), more=more("m.prompt_rows")),
        "device_histogram": _HISTOGRAM.format(
            shape=minute,
            columns=columns("m", _SHAPE),
            more=more("m.prompt_rows"),
            **_bucket_rows(connection.dialect.name),
        ),
        "graph_observations": _OBSERVATIONS.format(
            columns=columns("p", _SHAPE), shape=plan, more=more("p.prompt_rows")
        ),
    }
    for name, text in views.items():  # as they stand: in op.execute a colon begins a parameter
        if not by_day:
            connection.exec_driver_sql(f"DROP VIEW IF EXISTS {name}")
        connection.exec_driver_sql(f"CREATE {'OR REPLACE ' if by_day else ''}VIEW {name} AS{text}")
