"""What the server did in the last minute, from SQL. Every read is bounded by an index to about that minute."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from service.store.engines import read_transaction
from service.store.tables import engine_runs, plan_lanes, plans, requests

SPAN = dt.timedelta(minutes=1)
# Requests that arrived earlier than this and have ended are not looked for: there is no index by first output.
LONGEST_START = dt.timedelta(minutes=10)
MAX_REQUESTS = 5000
_COLUMNS = tuple(
    requests.c[name]
    for name in ("run_id", "request_id", "arrived_at", "first_output_at", "finished_at", "prompt_tokens", "tokenize_ms")
)


@dataclasses.dataclass(frozen=True, slots=True)
class KindShare:
    """The plans of one graph kind. `busy_ms` is device time; tokens are consumed and committed ones."""

    kind: str
    plans: int
    busy_ms: float
    prompt_tokens: int
    output_tokens: int


@dataclasses.dataclass(frozen=True, slots=True)
class SlowStart:
    """The request with the longest time to its first output. `queue_ms`: arrival to the commit of its first graph."""

    request_id: str
    start_ms: float
    queue_ms: float | None
    tokenize_ms: float | None
    prompt_tokens: int
    finished: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Minute:
    """One minute. `reasons` counts plans, `starts_ms` are sorted times to first output, `versions` are policy versions.

    `waiting` requests of the running engine have been in no graph; the oldest has waited for `oldest_wait_ms`.
    """

    kinds: list[KindShare]
    reasons: dict[str, int]
    versions: list[int]
    starts_ms: list[float]
    slowest: SlowStart | None
    waiting: int
    oldest_wait_ms: float | None


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of at least one value; `share` lies above 0, up to 1."""
    return sorted_values[max(0, math.ceil(share * len(sorted_values)) - 1)]


def read_minute(engine: sa.Engine, now: dt.datetime) -> Minute:
    """The minute before `now`. Raises StoreError."""
    since = now - SPAN
    with read_transaction(engine) as connection:
        groups = _groups(connection, since)
        started = _started(connection, since)
        slowest = max(started, key=_start_ms, default=None)
        waiting, oldest = _waiting(connection)
        return Minute(
            kinds=_kinds(groups),
            reasons=_sums(groups, "reason"),
            versions=sorted({group["policy_version"] for group in groups}),
            starts_ms=sorted(_start_ms(row) for row in started),
            slowest=None if slowest is None else _slow_start(connection, slowest),
            waiting=waiting,
            oldest_wait_ms=None if oldest is None else max(0.0, (now - oldest).total_seconds() * 1e3),
        )


def _groups(connection: sa.Connection, since: dt.datetime) -> list[dict[str, Any]]:
    keys = (plans.c.kind, plans.c.reason, plans.c.policy_version)
    query = sa.select(
        *keys,
        sa.func.count().label("plans"),
        sa.func.sum(plans.c.device_ms).label("busy_ms"),
        sa.func.sum(plans.c.prompt_tokens).label("prompt_tokens"),
        sa.func.sum(plans.c.output_tokens).label("output_tokens"),
    )
    query = query.where(plans.c.committed_at >= since).group_by(*keys)
    return [dict(row) for row in connection.execute(query).mappings()]


def _kinds(groups: Sequence[dict[str, Any]]) -> list[KindShare]:
    kinds = {group["kind"] for group in groups}
    shares = [
        KindShare(
            kind,
            plans=sum(group["plans"] for group in groups if group["kind"] == kind),
            busy_ms=sum(float(group["busy_ms"] or 0) for group in groups if group["kind"] == kind),
            prompt_tokens=sum(int(group["prompt_tokens"]) for group in groups if group["kind"] == kind),
            output_tokens=sum(int(group["output_tokens"]) for group in groups if group["kind"] == kind),
        )
        for kind in kinds
    ]
    return sorted(shares, key=lambda share: (-share.busy_ms, share.kind))


def _sums(groups: Sequence[dict[str, Any]], key: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for group in groups:
        counts[group[key]] = counts.get(group[key], 0) + group["plans"]
    return dict(sorted(counts.items(), key=lambda entry: -entry[1]))


def _started(connection: sa.Connection, since: dt.datetime) -> list[dict[str, Any]]:
    """Requests whose first output came since then."""
    fresh = requests.c.first_output_at >= since
    recent = sa.select(*_COLUMNS).where(fresh, requests.c.arrived_at >= since - LONGEST_START)
    running = sa.select(*_COLUMNS).where(fresh, requests.c.finished_at.is_(None))
    found = {
        (row["run_id"], row["request_id"]): dict(row)
        for query in (recent.order_by(requests.c.arrived_at.desc()), running)
        for row in connection.execute(query.limit(MAX_REQUESTS)).mappings()
    }
    return list(found.values())


def _start_ms(row: dict[str, Any]) -> float:
    return float((row["first_output_at"] - row["arrived_at"]).total_seconds()) * 1e3


def _slow_start(connection: sa.Connection, row: dict[str, Any]) -> SlowStart:
    lanes = plan_lanes.c
    first_fence = (
        sa.select(sa.func.min(lanes.fence))
        .where(lanes.request_id == row["request_id"], lanes.run_id == row["run_id"])
        .scalar_subquery()
    )
    query = sa.select(plans.c.committed_at).where(plans.c.run_id == row["run_id"], plans.c.fence == first_fence)
    begun = connection.execute(query).scalar()
    return SlowStart(
        request_id=row["request_id"],
        start_ms=_start_ms(row),
        queue_ms=None if begun is None else max(0.0, (begun - row["arrived_at"]).total_seconds() * 1e3),
        tokenize_ms=row["tokenize_ms"],
        prompt_tokens=row["prompt_tokens"],
        finished=row["finished_at"] is not None,
    )


def _waiting(connection: sa.Connection) -> tuple[int, dt.datetime | None]:
    """How many requests of the running engine have been in no graph, and when the oldest arrived."""
    newest = sa.select(engine_runs.c.run_id, engine_runs.c.ended_at).order_by(engine_runs.c.started_at.desc()).limit(1)
    run = connection.execute(newest).one_or_none()
    if run is None or run.ended_at is not None:
        return 0, None
    lanes = plan_lanes.c
    # The empty text keeps SQLite from its first thought, to look through all lanes of the run by their primary key.
    lane = (lanes.request_id == requests.c.request_id, lanes.run_id.concat("") == requests.c.run_id)
    served = sa.exists().where(*lane)
    query = sa.select(sa.func.count(), sa.func.min(requests.c.arrived_at)).where(
        requests.c.run_id == run.run_id, requests.c.finished_at.is_(None), sa.not_(served)
    )
    count, oldest = connection.execute(query).one()
    return int(count), oldest
