"""The dashboard's own narrow reads: just the columns that a page shows, in the order it shows them.

Whole plans, runs and trace health come from service.store.queries, which `/api` uses too. All functions are
synchronous; pages call them through ControlRoom.read.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import sqlalchemy as sa

from service.store.engines import read_transaction
from service.store.partitions import day_of, same_day
from service.store.queries import TraceHealth, trace_health
from service.store.tables import plan_lanes, plans, policy_versions, requests

TIMELINE_COLUMNS = (
    *("run_id", "fence", "committed_at", "committed_ns", "policy_version", "queue_depth"),
    *("kind", "batch_capacity", "draft_depth", "target_width", "target_rows", "prefill_capacity", "active_rows"),
    *("reason", "score_kind", "value_rate", "margin", "selected_cost_ms", "cost_state"),
    *("started_ns", "completed_ns", "outcome", "device_ms", "prompt_tokens", "output_tokens"),
)
SEPARATOR = "\n"


@dataclasses.dataclass(frozen=True, slots=True)
class Cursor:
    """Up to which plan a browser knows everything."""

    run_id: str
    fence: int


@dataclasses.dataclass(frozen=True, slots=True)
class Strip:
    """What the strip above the timeline says. `running` and `minute_tokens` count requests and output tokens."""

    health: TraceHealth
    policy_version: int | None
    running: int
    minute_tokens: int


def timeline_rows(
    engine: sa.Engine,
    limit: int,
    *,
    after: Cursor | None = None,
    since: dt.datetime | None = None,
    policy_version: int | None = None,
    request: str | None = None,
) -> tuple[list[dict[str, Any]], bool]:
    """The newest `limit` plans, newest first, with `request_ids`, and whether they go on from `after`.

    Of those committed since `since`, chosen under `policy_version` and serving `request`, where given.

    With `after` only plans behind it are read; when its row is gone (pruned), everything is read again and the second
    value is False.
    """
    names = (
        sa.select(sa.func.aggregate_strings(plan_lanes.c.request_id, SEPARATOR))
        .where(plan_lanes.c.run_id == plans.c.run_id, plan_lanes.c.fence == plans.c.fence)
        .where(*same_day(engine, plan_lanes, plans))
        .scalar_subquery()
    )
    query = sa.select(*(plans.c[name] for name in TIMELINE_COLUMNS), names.label("request_ids"))
    query = query.order_by(plans.c.committed_at.desc(), plans.c.run_id.desc(), plans.c.fence.desc()).limit(limit)
    if policy_version is not None:
        query = query.where(plans.c.policy_version == policy_version)
    if since is not None:
        query = query.where(plans.c.committed_at >= since)
    if request is not None:
        key = (plan_lanes.c.run_id, plan_lanes.c.fence, *day_of(engine, plan_lanes))
        served = sa.select(*key).select_from(plan_lanes).where(plan_lanes.c.request_id == request)
        query = query.where(sa.tuple_(plans.c.run_id, plans.c.fence, *day_of(engine, plans)).in_(served))
    with read_transaction(engine) as connection:
        known_at = None if after is None else _committed_at(connection, after)
        if after is not None and known_at is not None:
            seen = sa.and_(plans.c.run_id == after.run_id, plans.c.fence <= after.fence)
            query = query.where(plans.c.committed_at >= known_at, sa.not_(seen))
        rows = [dict(row) for row in connection.execute(query).mappings()]
    for row in rows:
        row["request_ids"] = row["request_ids"].split(SEPARATOR) if row["request_ids"] else []
    return rows, known_at is not None


def _committed_at(connection: sa.Connection, cursor: Cursor) -> dt.datetime | None:
    query = sa.select(plans.c.committed_at).where(plans.c.run_id == cursor.run_id, plans.c.fence == cursor.fence)
    found: dt.datetime | None = connection.execute(query).scalar()
    return found


def read_strip(engine: sa.Engine, now: dt.datetime) -> Strip:
    """The newest run, the policy in force, requests running in that run and tokens of the last minute before `now`."""
    with read_transaction(engine) as connection:
        health = trace_health(connection)
        version = connection.execute(
            sa.select(sa.func.max(policy_versions.c.version)).where(policy_versions.c.state == "applied")
        ).scalar()
        run = health.newest_run
        if run is None:
            return Strip(health, version, 0, 0)
        running = connection.execute(
            sa.select(sa.func.count()).where(requests.c.run_id == run["run_id"], requests.c.finished_at.is_(None))
        ).scalar()
        tokens = connection.execute(
            sa.select(sa.func.sum(plans.c.output_tokens)).where(plans.c.committed_at >= now - dt.timedelta(minutes=1))
        ).scalar()
    return Strip(health, version, running or 0, int(tokens or 0))
