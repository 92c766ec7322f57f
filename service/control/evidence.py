"""What the trace says about a span of time: the measures that guards compare. Bounded SQL, for both databases.

Everything is seen as it was at `until`: a request that waited then counts with what it had waited, and a stream that
was silent then with that silence. These are less than what became of them, so a limit that they break is broken; and
without them a policy that lets some wait for ever would look the better the fewer it serves.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa

from service.control.guard_terms import Measure, Measures
from service.store.engines import read_transaction
from service.store.partitions import UNNAMED_DAY, has_days, utc_day
from service.store.tables import engine_runs, plan_minutes, plans, requests, trace_gaps
from service.store.types import UtcDateTime

MOST_GAPS = 100_000
"""About so many gaps are looked at. Where there are more, one of n requests stands for the others: not each n-th, since
requests of two kinds may take turns, but the one whose place, multiplied by a number and divided by a prime, says so.
"""
LONGEST_REQUEST = dt.timedelta(hours=1)
"""Requests that arrived longer before a span are not looked for in it."""
QUIET_S = 5.0
"""A recorder that says it is not behind has stored everything that is older."""
PUBLISHED_LATER = dt.timedelta(milliseconds=20)
"""When output became visible is written with a later result, so much later at the most."""
LONGEST_PLAN = dt.timedelta(minutes=1)
_MINUTE = dt.timedelta(minutes=1)
_MICROSECOND = dt.timedelta(microseconds=1)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

# The nearest rank: of n samples in order the one at place ceil(0.99 n), which is n less a hundredth rounded down.
_P99 = """
SELECT ms, n FROM (
    SELECT ms, ROW_NUMBER() OVER (ORDER BY ms) AS place, COUNT(*) OVER () AS n FROM ({samples}) AS samples
) AS ordered WHERE place = n - n / 100
"""
_FIRST_TOKENS = """
    SELECT {waited} AS ms FROM (
        SELECT arrived_at, CASE
            WHEN first_output_at < :until THEN first_output_at
            WHEN first_output_at IS NULL AND finished_at < :until THEN finished_at
            ELSE :until END AS ended_at
        FROM requests
        WHERE arrived_at >= :since AND arrived_at < :until AND run_id IN :runs
            AND (first_output_at IS NOT NULL OR finish_reason IS NULL OR finish_reason = 'abort')
    ) AS waits
"""
_GAPS = """
    WITH chosen AS (
        SELECT run_id, request_id, is_open, from_ns, to_ns FROM (
            SELECT r.run_id, r.request_id, CASE WHEN r.finished_at < :until THEN 0 ELSE 1 END AS is_open,
                e.started_monotonic_ns - e.started_wall_ns + :since_ns AS from_ns,
                e.started_monotonic_ns - e.started_wall_ns + :until_ns AS to_ns,
                ROW_NUMBER() OVER (ORDER BY r.arrived_at, r.run_id, r.request_id) AS place
            FROM requests r{by_arrival} JOIN engine_runs e ON e.run_id = r.run_id
            WHERE r.arrived_at >= :earliest AND r.arrived_at < :until AND r.first_output_at < :until
                AND (r.finished_at IS NULL OR r.finished_at >= :since) AND r.run_id IN :runs
        ) AS running WHERE place * 40503 % 65521 % :stride = 0
    ), published AS (
        SELECT l.run_id, l.request_id, l.published_ns,
            LAG(l.published_ns) OVER (PARTITION BY l.run_id, l.request_id ORDER BY l.published_ns) AS before_ns
        FROM chosen c JOIN plan_lanes l{by_request} ON l.request_id = c.request_id AND l.run_id = c.run_id
        WHERE l.published_ns >= c.from_ns AND l.published_ns < c.to_ns{days}
    ), last AS (
        SELECT run_id, request_id, MAX(published_ns) AS last_ns FROM published GROUP BY run_id, request_id
    )
    SELECT (published_ns - before_ns) / 1e6 AS ms FROM published WHERE before_ns IS NOT NULL
    UNION ALL
    SELECT (c.to_ns - COALESCE(last_ns, c.from_ns)) / 1e6 FROM chosen c
        LEFT JOIN last ON last.run_id = c.run_id AND last.request_id = c.request_id WHERE c.is_open = 1
"""
_WAITED = {
    # Whole microseconds, as strftime alone knows only milliseconds.
    "sqlite": (
        "((CAST(strftime('%s', substr(ended_at, 1, 19)) AS integer)"
        " - CAST(strftime('%s', substr(arrived_at, 1, 19)) AS integer)) * 1000000"
        " + CAST(substr(ended_at, 21, 6) AS integer) - CAST(substr(arrived_at, 21, 6) AS integer)) / 1000.0"
    ),
    "postgresql": "CAST(EXTRACT(EPOCH FROM ended_at - arrived_at) * 1000 AS double precision)",
}
# SQLite without statistics would look for each request's lanes among all lanes of its run.
_INDEXES = {
    "sqlite": {"by_arrival": " INDEXED BY ix_requests_newest", "by_request": " INDEXED BY ix_plan_lanes_request"},
    "postgresql": {"by_arrival": "", "by_request": ""},
}


def measure(connection: sa.Connection, since: dt.datetime, until: dt.datetime, most_gaps: int = MOST_GAPS) -> Measures:
    """The measures from `since` (included) to `until` (excluded), aware times, of the runs that planned in that span.

    Raises what the driver raises.
    """
    tokens, busy_ms, completed = _throughput(connection, since, until)
    runs = _runs(connection, since, until)
    return Measures(
        first_token_p99=_first_token_p99(connection, since, until, runs),
        inter_token_p99=_inter_token_p99(connection, since, until, runs, stride=1 + tokens // most_gaps),
        throughput=Measure(tokens * 1000 / busy_ms if busy_ms > 0 else None, completed),
    )


def read_measures(engine: sa.Engine, since: dt.datetime, until: dt.datetime) -> Measures:
    """`measure` in a transaction of its own. Raises StoreError."""
    with read_transaction(engine) as connection:
        return measure(connection, since, until)


def missing_trace(connection: sa.Connection, since: dt.datetime, until: dt.datetime) -> tuple[str, ...]:
    """Why the trace from `since` to `until` cannot be trusted, in words: gaps, and plans without an end."""
    spans = trace_gaps.c.reason.like("% spans were not sent:%")  # a collector's, not the store's
    query = sa.select(sa.func.count()).where(trace_gaps.c.noticed_at >= since, ~spans)
    gaps = connection.execute(query.select_from(trace_gaps)).scalar_one()
    left = (plans.c.outcome == "in_flight", plans.c.committed_at >= since, plans.c.committed_at < until - LONGEST_PLAN)
    unfinished = connection.execute(sa.select(sa.func.count()).select_from(plans).where(*left)).scalar_one()
    problems = []
    if gaps:
        problems.append(f"the trace has {_count(gaps, 'gap')} (see trace_gaps)")
    if unfinished:
        problems.append(
            f"the end of {_count(unfinished, 'plan')} is missing: an engine or its recorder does not answer"
        )
    return tuple(problems)


def stored_until(
    connection: sa.Connection, since: dt.datetime, now: dt.datetime, local_run: str | None, lag_s: float | None
) -> dt.datetime:
    """Up to when everything is stored that the runs which planned since `since` have written.

    A run's records are stored in their order, so its newest plan says how far the recorder is. An engine that has
    nothing to do, or hangs, plans nothing: of `local_run`, whose recorder is `lag_s` behind, everything is stored that
    is older than that and QUIET_S. Of a run elsewhere the same holds only while it has no request.
    """
    quiet = since if lag_s is None else now - dt.timedelta(seconds=lag_s + QUIET_S)
    found = [quiet if lag_s is not None else now]
    for run_id in connection.execute(sa.select(engine_runs.c.run_id).where(engine_runs.c.ended_at.is_(None))).scalars():
        of_run = sa.select(plans.c.committed_at).where(plans.c.run_id == run_id)
        newest = connection.execute(of_run.order_by(plans.c.fence.desc()).limit(1)).scalar()
        if newest is None or newest < since:
            continue
        found.append(_stored_of(connection, run_id, newest - PUBLISHED_LATER, quiet, local=run_id == local_run))
    return found[0] if len(found) == 1 else min(found[1:])


def _stored_of(
    connection: sa.Connection, run_id: str, newest: dt.datetime, quiet: dt.datetime, *, local: bool
) -> dt.datetime:
    if newest >= quiet or local:
        return max(newest, quiet)
    unfinished = sa.select(requests.c.run_id).where(requests.c.run_id == run_id, requests.c.finished_at.is_(None))
    return quiet if connection.execute(unfinished.limit(1)).first() is None else newest


def _runs(connection: sa.Connection, since: dt.datetime, until: dt.datetime) -> list[str]:
    """Runs that planned in the span: what one left behind that died before it is no evidence."""
    planned = sa.select(plans.c.fence).where(
        plans.c.run_id == engine_runs.c.run_id, plans.c.committed_at >= since, plans.c.committed_at < until
    )
    lived = (
        engine_runs.c.started_at < until,
        sa.or_(engine_runs.c.ended_at.is_(None), engine_runs.c.ended_at >= since),
    )
    return list(connection.execute(sa.select(engine_runs.c.run_id).where(*lived, planned.exists())).scalars())


def _first_token_p99(connection: sa.Connection, since: dt.datetime, until: dt.datetime, runs: list[str]) -> Measure:
    waits = _FIRST_TOKENS.format(waited=_WAITED[connection.dialect.name])
    return _p99(connection, waits, runs, {"since": since, "until": until}, {})


def _inter_token_p99(
    connection: sa.Connection, since: dt.datetime, until: dt.datetime, runs: list[str], stride: int
) -> Measure:
    times = {"since": since, "until": until, "earliest": since - LONGEST_REQUEST}
    numbers = {"since_ns": _ns(since), "until_ns": _ns(until), "stride": stride}
    samples = _GAPS.format(days=_days(connection, since, until), **_INDEXES[connection.dialect.name])
    return _p99(connection, samples, runs, times, numbers)


def _p99(
    connection: sa.Connection, samples: str, runs: list[str], times: dict[str, dt.datetime], numbers: dict[str, int]
) -> Measure:
    typed: list[sa.BindParameter[Any]] = [sa.bindparam("runs", type_=sa.Text(), expanding=True)]
    typed.extend(sa.bindparam(name, type_=UtcDateTime()) for name in times)
    typed.extend(sa.bindparam(name, type_=sa.BigInteger()) for name in numbers)
    query = sa.text(_P99.format(samples=samples)).bindparams(*typed)
    row = connection.execute(query, {"runs": runs, **times, **numbers}).first()
    return Measure(None, 0) if row is None else Measure(float(row[0]), int(row[1]))


def _days(connection: sa.Connection, since: dt.datetime, until: dt.datetime) -> str:
    """A condition that lets PostgreSQL read only the days that it is about."""
    if not has_days(connection):
        return ""
    first, last = utc_day(since - LONGEST_PLAN), utc_day(until)
    days = [UNNAMED_DAY, *(first + dt.timedelta(days=n) for n in range((last - first).days + 1))]
    listed = ", ".join(f"DATE '{day}'" for day in days)
    return f" AND l.recorded_on IN ({listed})"


def _throughput(connection: sa.Connection, since: dt.datetime, until: dt.datetime) -> tuple[int, float, int]:
    """Output tokens, device ms and number of the plans that were completed: whole minutes from the roll-up."""
    first = since if since == _minute(since) else _minute(since) + _MINUTE
    last = _minute(until)
    if first >= last:
        return _of_plans(connection, since, until)
    minutes = plan_minutes.c
    sums = (sa.func.sum(c) for c in (minutes.output_tokens, minutes.device_ms_sum, minutes.plans))
    query = sa.select(*(sa.func.coalesce(total, 0) for total in sums))
    whole = connection.execute(query.where(minutes.minute >= first, minutes.minute < last)).one()
    parts = [whole, _of_plans(connection, since, first), _of_plans(connection, last, until)]
    return int(sum(p[0] for p in parts)), float(sum(p[1] for p in parts)), int(sum(p[2] for p in parts))


def _of_plans(connection: sa.Connection, since: dt.datetime, until: dt.datetime) -> tuple[int, float, int]:
    query = sa.select(
        sa.func.coalesce(sa.func.sum(plans.c.output_tokens), 0),
        sa.func.coalesce(sa.func.sum(plans.c.device_ms), 0.0),
        sa.func.count(),
    ).where(
        plans.c.committed_at >= since - LONGEST_PLAN,
        plans.c.committed_at < until,
        plans.c.completed_at >= since,
        plans.c.completed_at < until,
        plans.c.outcome == "completed",
    )
    tokens, busy_ms, count = connection.execute(query).one()
    return int(tokens), float(busy_ms), int(count)


def _minute(at: dt.datetime) -> dt.datetime:
    return at.replace(second=0, microsecond=0)


def _ns(at: dt.datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND * 1000


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")
