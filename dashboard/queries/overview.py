"""What the overview says of this moment: the run, the requests that run and wait, the last minute, the trace.

Every read is bounded by an index to the last minute or to what is unfinished, whatever the store holds.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from dashboard.queries.last_minute import Waiting, first_outputs, latencies_of_ended, plan_groups, waiting_requests
from dashboard.queries.latencies import Percentiles, percentiles
from service.store.engines import read_transaction
from service.store.tables import engine_runs, plans, policy_versions, requests, trace_gaps

Row = dict[str, Any]


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
        waiting = waiting_requests(connection, run["run_id"]) if run is not None and alive else Waiting()
        groups = plan_groups(connection, now)
        return Now(
            at=now,
            run=run,
            policy=_policy(connection),
            running=open_ - waiting.count,
            waiting=waiting,
            plans=sum(group["plans"] for group in groups),
            tokens=sum(group["output_tokens"] for group in groups),
            busy_ms=_busy_ms(groups),
            first_token=percentiles(first_outputs(connection, now).start_ms),
            between=percentiles(latencies_of_ended(connection, now).between_ms),
            gaps=int(connection.execute(sa.select(sa.func.count()).select_from(trace_gaps)).scalar_one()),
            newest_gap=_one(connection, sa.select(trace_gaps).order_by(trace_gaps.c.id.desc()).limit(1)),
            last_plan_at=connection.execute(sa.select(sa.func.max(plans.c.committed_at))).scalar(),
        )


def _one(connection: sa.Connection, query: sa.Select[Any]) -> Row | None:
    found = connection.execute(query).mappings().one_or_none()
    return None if found is None else dict(found)


def _busy_ms(groups: Sequence[Row]) -> dict[str, float]:
    busy: dict[str, float] = {}
    for group in groups:
        busy[group["kind"]] = busy.get(group["kind"], 0.0) + group["busy_ms"]
    return busy


def _policy(connection: sa.Connection) -> Row | None:
    columns = [policy_versions.c[name] for name in ("version", "actor", "note", "applied_at")]
    query = sa.select(*columns).where(policy_versions.c.state == "applied")
    return _one(connection, query.order_by(policy_versions.c.version.desc()).limit(1))


def _open(connection: sa.Connection, run_id: str) -> int:
    query = sa.select(sa.func.count()).where(requests.c.run_id == run_id, requests.c.finished_at.is_(None))
    return int(connection.execute(query).scalar_one())
