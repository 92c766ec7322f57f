"""What the server did in the last minute, from SQL. Every read is bounded by an index to about that minute."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from dashboard.queries.last_minute import MINUTE, Waiting, first_outputs, plan_groups, waiting_requests
from dashboard.queries.latencies import slowest_starts
from dashboard.span import EARLIEST
from service.store.engines import read_transaction
from service.store.tables import engine_runs, plan_lanes, plans

MILLISECOND = dt.timedelta(milliseconds=1)


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
    with read_transaction(engine) as connection:
        groups = plan_groups(connection, now)
        started = first_outputs(connection, now)
        slowest = slowest_starts(connection, started, EARLIEST, now + MINUTE, 1)
        waiting = _waiting(connection)
        return Minute(
            kinds=_kinds(groups),
            reasons=_sums(groups, "reason"),
            versions=sorted({group["policy_version"] for group in groups}),
            starts_ms=sorted(float(start) for start in started.start_ms),
            slowest=_slow_start(connection, slowest[0]) if slowest else None,
            waiting=waiting.count,
            oldest_wait_ms=None if waiting.oldest_at is None else max(0.0, (now - waiting.oldest_at) / MILLISECOND),
        )


def _kinds(groups: Sequence[dict[str, Any]]) -> list[KindShare]:
    kinds = {group["kind"] for group in groups}
    shares = [
        KindShare(
            kind,
            plans=sum(group["plans"] for group in groups if group["kind"] == kind),
            busy_ms=sum(group["busy_ms"] for group in groups if group["kind"] == kind),
            prompt_tokens=sum(group["prompt_tokens"] for group in groups if group["kind"] == kind),
            output_tokens=sum(group["output_tokens"] for group in groups if group["kind"] == kind),
        )
        for kind in kinds
    ]
    return sorted(shares, key=lambda share: (-share.busy_ms, share.kind))


def _sums(groups: Sequence[dict[str, Any]], key: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for group in groups:
        counts[group[key]] = counts.get(group[key], 0) + group["plans"]
    return dict(sorted(counts.items(), key=lambda entry: -entry[1]))


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
        start_ms=row["start_ms"],
        queue_ms=None if begun is None else max(0.0, (begun - row["arrived_at"]) / MILLISECOND),
        tokenize_ms=row["tokenize_ms"],
        prompt_tokens=row["prompt_tokens"],
        finished=row["finished_at"] is not None,
    )


def _waiting(connection: sa.Connection) -> Waiting:
    """The requests of the running engine that have been in no graph."""
    newest = sa.select(engine_runs.c.run_id, engine_runs.c.ended_at).order_by(engine_runs.c.started_at.desc()).limit(1)
    run = connection.execute(newest).one_or_none()
    return Waiting() if run is None or run.ended_at is not None else waiting_requests(connection, run.run_id)
