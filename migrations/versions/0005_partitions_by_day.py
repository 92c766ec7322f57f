"""PostgreSQL: plans, plan_lanes and plan_alternatives in partitions by day, with the column recorded_on.

Purpose: retention drops a day whole instead of deleting its rows one by one, and questions about a time read only its
    days. recorded_on is the UTC day of the plan's committed_at, in all three tables. Each day that holds plans gets a
    partition, and today and two days more; the default partition takes rows of other days. SQLite stays as it is.
Locks: PostgreSQL locks the three tables against everybody until the step ends: their rows are copied and indexed
    again. Stop the server first. It takes about as long as restoring these tables from a dump (437 MB
    of 100,000 plans took 41 s on two busy cores), and as much free disk as they and their indexes use, until it ends;
    `helios db prune` before it makes both smaller.
    The views plan_timeline and request_timeline are replaced in place, so that views on top of them stay; a view of
    an operator's own directly on one of the tables is named and stops the step. Grants on the tables and their
    indexes, an operator's own included, are carried over; triggers and rules are not.
Undo: `downgrade` copies the rows back into plain tables without recorded_on, with the same locks.
    By hand: CREATE TABLE … AS SELECT of every column but recorded_on, with the keys and indexes of step 0001.
"""

from __future__ import annotations

import datetime as dt

import sqlalchemy as sa
from alembic import op

from migrations.operator_views import refuse_operator_views

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_KEYS = {
    "plans": "run_id, fence",
    "plan_lanes": "run_id, fence, lane",
    "plan_alternatives": "run_id, fence, rank",
}
_VIEWS = ("plan_timeline", "request_timeline")
_UNNAMED_DAY = "1970-01-01"
_MOST_DAYS = 400
_DAYS_AHEAD = 2
_DAY = "(committed_at AT TIME ZONE 'UTC')::date"

_PLAN_COLUMNS = (
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
_SHAPE = (
    "p.kind || ':B' || p.batch_capacity"
    " || CASE WHEN p.kind IN ('speculative', 'mixed') THEN ':D' || p.draft_depth || ':W' || p.target_width"
    " || ':P' || p.target_rows ELSE '' END"
    " || CASE WHEN p.prefill_capacity > 0 THEN ':C' || p.prefill_capacity ELSE '' END"
)
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

# The plan before lies on the same day, or is looked for on the days before: one partition instead of all.
_TIMELINE = f"""
CREATE OR REPLACE VIEW plan_timeline AS
SELECT
    {", ".join(f"p.{name}" for name in _PLAN_COLUMNS)},
    (SELECT {_GAP} FROM (
        (SELECT e.completed_ns FROM plans e
         WHERE e.run_id = p.run_id AND e.recorded_on = p.recorded_on AND e.fence < p.fence
         ORDER BY e.fence DESC LIMIT 1)
        UNION ALL
        (SELECT e.completed_ns FROM plans e
         WHERE e.run_id = p.run_id AND e.recorded_on < p.recorded_on AND e.fence < p.fence AND NOT EXISTS (
             SELECT 1 FROM plans s
             WHERE s.run_id = p.run_id AND s.recorded_on = p.recorded_on AND s.fence < p.fence)
         ORDER BY e.fence DESC LIMIT 1)
    ) AS q) AS gap_ms,
    {_POLICY}, {_SHAPE} AS shape
FROM plans p
LEFT JOIN policy_versions v ON v.version = p.policy_version
"""
_TIMELINE_BEFORE = f"""
CREATE OR REPLACE VIEW plan_timeline AS
SELECT
    {", ".join(f"p.{name}" for name in _PLAN_COLUMNS)},
    {_GAP} AS gap_ms,
    {_POLICY}, {_SHAPE} AS shape
FROM plans p
LEFT JOIN plans q
    ON q.run_id = p.run_id
    AND q.fence = (SELECT MAX(e.fence) FROM plans e WHERE e.run_id = p.run_id AND e.fence < p.fence)
LEFT JOIN policy_versions v ON v.version = p.policy_version
"""
_REQUESTS = f"""
CREATE OR REPLACE VIEW request_timeline AS
SELECT
    l.run_id, l.request_id, l.fence, l.lane, r.arrived_at, p.committed_at,
    CAST(EXTRACT(EPOCH FROM p.committed_at - r.arrived_at) * 1000 AS double precision) AS since_arrival_ms,
    {_SHAPE} AS shape, p.kind, p.reason, p.policy_version, p.outcome, l.role, l.prompt_tokens, l.query_length,
    l.ceiling, l.proposal_source, l.token_price, l.delivery_price, l.age_ms, l.sigma_ms, l.expected_tokens,
    l.terminal_value, l.lane_value, l.offered_tokens, l.committed_tokens, l.accepted_tokens, l.delivered,
    p.active_rows, p.selected_cost_ms, p.device_ms, p.wall_ms, p.started_ns, p.completed_ns, l.published_ns
FROM plan_lanes l
JOIN plans p ON p.run_id = l.run_id AND p.fence = l.fence{{same_day}}
LEFT JOIN requests r ON r.run_id = l.run_id AND r.request_id = l.request_id
"""


def upgrade() -> None:
    """Moves the rows into partitions; nothing to do on SQLite."""
    connection = op.get_bind()
    if connection.dialect.name != "postgresql":
        return
    _lock(connection)
    days = _days(connection)
    for table, key in _KEYS.items():
        before, indexes = _set_aside(connection, table)
        connection.exec_driver_sql(
            f"CREATE TABLE {table} (LIKE {before} INCLUDING DEFAULTS,"
            f" recorded_on date NOT NULL DEFAULT '{_UNNAMED_DAY}') PARTITION BY RANGE (recorded_on)"
        )
        connection.exec_driver_sql(f"CREATE TABLE {table}_default PARTITION OF {table} DEFAULT")
        for day in days:
            _add_partition(connection, table, day)
        connection.exec_driver_sql(f"INSERT INTO {table} {_rows_with_days(table, before)}")
        _finish(connection, table, f"{key}, recorded_on", before, indexes)
    _replace_views(connection, _TIMELINE, " AND p.recorded_on = l.recorded_on")
    _drop_set_aside(connection)


def downgrade() -> None:
    """Moves the rows back into plain tables."""
    connection = op.get_bind()
    if connection.dialect.name != "postgresql":
        return
    _lock(connection)
    for table, key in _KEYS.items():
        before, indexes = _set_aside(connection, table)
        connection.exec_driver_sql(f"CREATE TABLE {table} (LIKE {before} INCLUDING DEFAULTS)")
        connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN recorded_on")
        names = ", ".join(_column_names(connection, table))
        connection.exec_driver_sql(f"INSERT INTO {table} ({names}) SELECT {names} FROM {before}")
        _finish(connection, table, key, before, indexes)
    _replace_views(connection, _TIMELINE_BEFORE, "")
    _drop_set_aside(connection)


def _lock(connection: sa.Connection) -> None:
    """Nobody else until the end. Raises UpgradeBlocked for an operator's view on one of the tables."""
    connection.exec_driver_sql(f"LOCK TABLE {', '.join(_KEYS)} IN ACCESS EXCLUSIVE MODE")
    refuse_operator_views(connection, *_KEYS, ours=_VIEWS)


def _days(connection: sa.Connection) -> list[dt.date]:
    """The days that hold plans, the newest of them if there are very many, and those that the next plans need."""
    found = connection.exec_driver_sql(f"SELECT DISTINCT {_DAY} AS day FROM plans ORDER BY day DESC LIMIT {_MOST_DAYS}")
    today = dt.datetime.now(dt.UTC).date()
    ahead = {today + dt.timedelta(days=number) for number in range(_DAYS_AHEAD + 1)}
    return sorted(ahead.union(found.scalars()))


def _set_aside(connection: sa.Connection, table: str) -> tuple[str, list[str]]:
    """Give the table another name and drop its indexes. Returns the name, and how the indexes but the key were made."""
    found = connection.exec_driver_sql(
        "SELECT CAST(CAST(i.indexrelid AS regclass) AS text), pg_get_indexdef(i.indexrelid) FROM pg_index AS i"
        f" WHERE i.indrelid = CAST('{table}' AS regclass) AND NOT i.indisprimary ORDER BY 1"
    ).all()
    for name, _ in found:
        connection.exec_driver_sql(f"DROP INDEX {name}")
    connection.exec_driver_sql(f"ALTER TABLE {table} DROP CONSTRAINT pk_{table}")
    connection.exec_driver_sql(f"ALTER TABLE {table} RENAME TO {table}_before")
    return f"{table}_before", [made.replace(" ON ONLY ", " ON ") for _, made in found]


def _add_partition(connection: sa.Connection, table: str, day: dt.date) -> None:
    name, following = f"{table}_{day:%Y%m%d}", day + dt.timedelta(days=1)
    connection.exec_driver_sql(f"CREATE TABLE {name} PARTITION OF {table} FOR VALUES FROM ('{day}') TO ('{following}')")
    connection.exec_driver_sql(f"ALTER TABLE {name} ALTER COLUMN recorded_on SET DEFAULT '{day}'")
    if table == "plans":
        connection.exec_driver_sql(
            f"ALTER TABLE {name} ADD CONSTRAINT {name}_committed_at"
            f" CHECK (committed_at >= '{day} 00:00:00+00' AND committed_at < '{following} 00:00:00+00')"
        )


def _rows_with_days(table: str, before: str) -> str:
    """The rows with their day as the last column; a lane or runner-up without a plan lies on no day."""
    if table == "plans":
        return f"SELECT b.*, {_DAY} FROM {before} AS b"
    return (
        f"SELECT b.*, coalesce(p.recorded_on, '{_UNNAMED_DAY}') FROM {before} AS b"
        " LEFT JOIN plans AS p ON p.run_id = b.run_id AND p.fence = b.fence"
    )


def _finish(connection: sa.Connection, table: str, key: str, before: str, indexes: list[str]) -> None:
    """The key, and the indexes and grants of the table that was set aside."""
    connection.exec_driver_sql(f"ALTER TABLE {table} ADD CONSTRAINT pk_{table} PRIMARY KEY ({key})")
    for made in indexes:
        connection.exec_driver_sql(made)
    grants = connection.exec_driver_sql(
        "SELECT g.privilege_type, CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END,"
        " CASE WHEN g.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END FROM pg_class AS c, aclexplode(c.relacl) AS g"
        f" WHERE c.oid = CAST('{before}' AS regclass) AND g.grantee <> c.relowner"
    )
    for privilege, grantee, option in grants.all():
        connection.exec_driver_sql(f"GRANT {privilege} ON {table} TO {grantee}{option}")
    connection.exec_driver_sql(f"ANALYZE {table}")


def _replace_views(connection: sa.Connection, timeline: str, same_day: str) -> None:
    connection.exec_driver_sql(timeline)
    connection.exec_driver_sql(_REQUESTS.format(same_day=same_day))


def _drop_set_aside(connection: sa.Connection) -> None:
    connection.exec_driver_sql(f"DROP TABLE {', '.join(f'{table}_before' for table in _KEYS)}")


def _column_names(connection: sa.Connection, table: str) -> list[str]:
    found = connection.exec_driver_sql(
        f"SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = CAST('{table}' AS regclass)"
        " AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
    )
    return list(found.scalars())
