"""The overview's span of time in SQL: sums of the roll-up `plan_minutes` by stretch of time, percentiles of requests.

What a span costs does not depend on how many plans it holds; requests are read by their arrival, the newest
MAX_REQUESTS at the most, and `Trends.capped` says when there were more.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from dashboard.queries.latencies import Percentiles, percentiles, percentiles_by, read_latencies, slowest_starts
from dashboard.span import Span
from service.store.engines import read_transaction
from service.store.epoch import epoch_s
from service.store.tables import engine_runs, plan_minutes, policy_applications, requests, trace_gaps

MAX_REQUESTS = 50_000
MOST_BUCKETS = 90
WIDTHS_MIN = (1, 2, 5, 10, 20, 30, 60, 120, 360, 720, 1440)
SLOWEST = 5
MOST_CHANGES = 12
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Bucket:
    """One stretch of time. `seconds`: how much of it lies in the span; `busy_ms` is device time by kind."""

    start: dt.datetime
    seconds: float
    tokens: int
    plans: int
    busy_ms: dict[str, float]
    first_token: Percentiles
    between: Percentiles


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """What the device did of one kind or for one reason in the span."""

    name: str
    plans: int
    busy_ms: float
    longest_ms: float
    tokens: int


@dataclasses.dataclass(frozen=True, slots=True)
class Trends:
    """A span of time. `width` is that of a bucket; buckets lie without holes from the span's begin to its end.

    `finishes` counts requests by finish_reason (None: unfinished); `slowest` are those with the longest time to the
    first token; `changes` are policy_applications, newest first; `capped`: only the newest MAX_REQUESTS requests count.
    """

    span: Span
    width: dt.timedelta
    buckets: list[Bucket]
    kinds: list[Share]
    reasons: list[Share]
    first_token: Percentiles
    between: Percentiles
    finishes: dict[str | None, int]
    slowest: list[Row]
    changes: list[Row]
    gaps: int
    capped: bool

    @property
    def seconds(self) -> float:
        """How much time the buckets cover."""
        return sum(bucket.seconds for bucket in self.buckets)


def bucket_width(span: Span) -> dt.timedelta:
    """The smallest of WIDTHS_MIN, or whole days, that cuts the span into at most MOST_BUCKETS pieces."""
    minutes = span.seconds / 60
    fitting = (width for width in WIDTHS_MIN if minutes / width <= MOST_BUCKETS)
    found = next(fitting, None)
    return dt.timedelta(minutes=found if found is not None else 1440 * math.ceil(minutes / 1440 / MOST_BUCKETS))


def read_trends(engine: sa.Engine, span: Span) -> Trends:
    """The span in buckets of bucket_width. Raises StoreError."""
    width = bucket_width(span)
    within = [requests.c.arrived_at >= span.since, requests.c.arrived_at < span.until]
    with read_transaction(engine) as connection:
        sums = _sums(connection, span, width)
        found = read_latencies(connection, within, MAX_REQUESTS)
        slowest = slowest_starts(connection, found, span.since, span.until, SLOWEST)
        recorded, changes, gaps = _first_run_at(connection), _changes(connection, span), _gaps(connection, span)
    groups = found.arrived_s // _seconds(width)
    return Trends(
        span=span,
        width=width,
        buckets=_buckets(
            span,
            width,
            recorded,
            sums,
            percentiles_by(groups, found.start_ms),
            percentiles_by(groups, found.between_ms),
        ),
        kinds=_shares(sums, "kind"),
        reasons=_shares(sums, "reason"),
        first_token=percentiles(found.start_ms),
        between=percentiles(found.between_ms),
        finishes=dict(found.finishes),
        slowest=slowest,
        changes=changes,
        gaps=gaps,
        capped=found.capped,
    )


def _seconds(width: dt.timedelta) -> int:
    return round(width.total_seconds())


def _sums(connection: sa.Connection, span: Span, width: dt.timedelta) -> list[Row]:
    minutes = plan_minutes.c
    bucket = (epoch_s(connection, minutes.minute) // _seconds(width)).label("bucket")
    columns = (
        bucket,
        minutes.kind,
        minutes.reason,
        sa.func.sum(minutes.plans).label("plans"),
        sa.func.sum(minutes.device_ms_sum).label("busy_ms"),
        sa.func.max(minutes.device_ms_max).label("longest_ms"),
        sa.func.sum(minutes.output_tokens).label("tokens"),
    )
    query = sa.select(*columns).where(minutes.minute >= _minute(span.since), minutes.minute < span.until)
    return [dict(row) for row in connection.execute(query.group_by(bucket, minutes.kind, minutes.reason)).mappings()]


def _minute(at: dt.datetime) -> dt.datetime:
    return at.replace(second=0, microsecond=0)


def _first_run_at(connection: sa.Connection) -> dt.datetime | None:
    found: dt.datetime | None = connection.execute(sa.select(sa.func.min(engine_runs.c.started_at))).scalar()
    return found


def _buckets(
    span: Span,
    width: dt.timedelta,
    recorded: dt.datetime | None,
    sums: Sequence[Row],
    firsts: dict[int, Percentiles],
    between: dict[int, Percentiles],
) -> list[Bucket]:
    """From the first run on: before it nothing was recorded, which is not the same as idle."""
    since = _minute(max(span.since, recorded) if recorded is not None else span.since)
    size = _seconds(width)
    by_number: dict[int, list[Row]] = {}
    for row in sums:
        by_number.setdefault(row["bucket"], []).append(row)
    found = []
    for number in range(int(since.timestamp()) // size, math.ceil(span.until.timestamp() / size)):
        start = dt.datetime.fromtimestamp(number * size, dt.UTC)
        covered = (min(span.until, start + width) - max(since, start)).total_seconds()
        if covered <= 0:
            continue
        own = by_number.get(number, [])
        busy: dict[str, float] = {}
        for row in own:
            busy[row["kind"]] = busy.get(row["kind"], 0.0) + float(row["busy_ms"])
        found.append(
            Bucket(
                start=start,
                seconds=covered,
                tokens=sum(int(row["tokens"]) for row in own),
                plans=sum(int(row["plans"]) for row in own),
                busy_ms=busy,
                first_token=firsts.get(number, Percentiles()),
                between=between.get(number, Percentiles()),
            )
        )
    return found


def _shares(sums: Sequence[Row], key: str) -> list[Share]:
    groups: dict[str, list[Row]] = {}
    for row in sums:
        groups.setdefault(row[key], []).append(row)
    shares = [
        Share(
            name,
            plans=sum(int(row["plans"]) for row in own),
            busy_ms=math.fsum(float(row["busy_ms"]) for row in own),
            longest_ms=max(float(row["longest_ms"]) for row in own),
            tokens=sum(int(row["tokens"]) for row in own),
        )
        for name, own in groups.items()
    ]
    return sorted(shares, key=lambda share: (-share.busy_ms, share.name))


def _changes(connection: sa.Connection, span: Span) -> list[Row]:
    at = policy_applications.c.applied_at
    query = sa.select(policy_applications).where(at >= span.since, at < span.until)
    return [dict(row) for row in connection.execute(query.order_by(at.desc()).limit(MOST_CHANGES)).mappings()]


def _gaps(connection: sa.Connection, span: Span) -> int:
    at = trace_gaps.c.noticed_at
    query = sa.select(sa.func.count()).where(at >= span.since, at < span.until)
    return int(connection.execute(query).scalar_one())
