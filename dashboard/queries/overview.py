"""What the overview says of this moment: the run, the requests that run and wait, the last minute, the trace.

Every read is bounded by an index to the last minute or to what is unfinished, whatever the store holds.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import sqlalchemy as sa

from dashboard.queries.latencies import Latencies, Percentiles, percentiles, read_latencies
from service.store.engines import read_transaction
from service.store.tables import engine_runs, plan_lanes, plans, policy_versions, requests, trace_gaps

MINUTE = dt.timedelta(minutes=1)
LONGEST = dt.timedelta(minutes=10)
"""Requests that arrived earlier than this are not looked for: no index finds them by their first output or end."""
MOST = 5000
"""Of requests that a minute's percentiles are of: the newest."""
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Waiting:
    """Requests of the running engine that have been in no graph; `oldest_at` is None without any."""

    count: int = 0
    oldest_at: dt.datetime | None = None
    oldest_id: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Now:
    """This moment. `policy`: version, actor, note and applied_at of the version in force; None before the first.

    `busy_ms` by kind is device time of the last minute, and `tokens` its output; `first_token` and `between` are of
    the requests that got their first token, or ended, in it. `gaps` counts the losses of the trace, `newest_gap` is
    the last one.
    """

    at: dt.datetime
    run: Row | None
    policy: Row | None
    running: int
    waiting: Waiting
    plans: int
    tokens: int
    busy_ms: dict[str, float]
    first_token: Percentiles
    between: Percentiles
    gaps: int
    newest_gap: Row | None
    last_plan_at: dt.datetime | None


def read_now(engine: sa.Engine, now: dt.datetime) -> Now:
    """The store as of `now`. Raises StoreError."""
    with read_transaction(engine) as connection:
        run = _one(connection, sa.select(engine_runs).order_by(engine_runs.c.started_at.desc()).limit(1))
        alive = run is not None and run["ended_at"] is None
        open_ = _open(connection, run["run_id"]) if run is not None and alive else 0
        waiting = _waiting(connection, run["run_id"]) if run is not None and alive else Waiting()
        groups = _minute(connection, now)
        return Now(
            at=now,
            run=run,
            policy=_policy(connection),
            running=open_ - waiting.count,
            waiting=waiting,
            plans=sum(group["plans"] for group in groups),
            tokens=sum(int(group["tokens"] or 0) for group in groups),
            busy_ms={group["kind"]: float(group["busy_ms"] or 0) for group in groups},
            first_token=percentiles(_lately(connection, now, requests.c.first_output_at).start_ms),
            between=percentiles(_lately(connection, now, requests.c.finished_at).between_ms),
            gaps=int(connection.execute(sa.select(sa.func.count()).select_from(trace_gaps)).scalar_one()),
            newest_gap=_one(connection, sa.select(trace_gaps).order_by(trace_gaps.c.id.desc()).limit(1)),
            last_plan_at=connection.execute(sa.select(sa.func.max(plans.c.committed_at))).scalar(),
        )


def _one(connection: sa.Connection, query: sa.Select[Any]) -> Row | None:
    found = connection.execute(query).mappings().one_or_none()
    return None if found is None else dict(found)


def _policy(connection: sa.Connection) -> Row | None:
    columns = [policy_versions.c[name] for name in ("version", "actor", "note", "applied_at")]
    query = sa.select(*columns).where(policy_versions.c.state == "applied")
    return _one(connection, query.order_by(policy_versions.c.version.desc()).limit(1))


def _open(connection: sa.Connection, run_id: str) -> int:
    query = sa.select(sa.func.count()).where(requests.c.run_id == run_id, requests.c.finished_at.is_(None))
    return int(connection.execute(query).scalar_one())


def _waiting(connection: sa.Connection, run_id: str) -> Waiting:
    # The empty text keeps SQLite from its first thought, to look through all lanes of the run by their primary key.
    lane = (plan_lanes.c.request_id == requests.c.request_id, plan_lanes.c.run_id.concat("") == requests.c.run_id)
    served = sa.exists().where(*lane)
    unserved = (requests.c.run_id == run_id, requests.c.finished_at.is_(None), sa.not_(served))
    columns = (requests.c.request_id, requests.c.arrived_at, sa.func.count().over().label("waiting"))
    oldest = _one(connection, sa.select(*columns).where(*unserved).order_by(requests.c.arrived_at).limit(1))
    return Waiting() if oldest is None else Waiting(oldest["waiting"], oldest["arrived_at"], oldest["request_id"])


def _minute(connection: sa.Connection, now: dt.datetime) -> list[Row]:
    columns = (
        plans.c.kind,
        sa.func.count().label("plans"),
        sa.func.sum(plans.c.device_ms).label("busy_ms"),
        sa.func.sum(plans.c.output_tokens).label("tokens"),
    )
    query = sa.select(*columns).where(plans.c.committed_at >= now - MINUTE, plans.c.committed_at < now)
    return [dict(row) for row in connection.execute(query.group_by(plans.c.kind).order_by(plans.c.kind)).mappings()]


def _lately(connection: sa.Connection, now: dt.datetime, at: sa.ColumnElement[Any]) -> Latencies:
    """The requests of which something was in the last minute."""
    arrived = requests.c.arrived_at
    return read_latencies(connection, [arrived >= now - LONGEST, arrived < now, at >= now - MINUTE], MOST)
