"""What the timeline reads: single plans while few are in view, bins of time and their extremes beyond that.

A view of up to SINGLE_PLANS plans is read plan by plan. Up to SCANNED plans are aggregated by the database, with the
longest plan and the longest gap of each bin. Beyond that the sums come from the roll-up by minute, which knows the
longest plan of each minute, kind and reason.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import sqlalchemy as sa

from dashboard.bins import Binned
from dashboard.queries import timeline_bins
from dashboard.queries.timeline_events import read_events
from dashboard.queries.timeline_filters import RunRange, conditions, offered
from dashboard.queries.timeline_requests import read_lives
from dashboard.queries.timeline_rows import newest_rows, rows_by_key, rows_of_outcome, rows_of_request, rows_within
from dashboard.timeline_records import Filters, Picture, PlanRow, Span
from service.store.engines import read_transaction
from service.store.tables import engine_runs, plan_minutes, plans, requests

NEWEST_PLANS = 200
SINGLE_PLANS = 1500
SCANNED = 40_000
LONGEST_ROWS = 100
NEWEST_LOOKED_AT = 3


def read_picture(engine: sa.Engine, span: Span | None, filters: Filters, by: str, now: dt.datetime) -> Picture:
    """The plans of a span, or without one the newest NEWEST_PLANS. `by`: kind or reason. Raises StoreError."""
    with read_transaction(engine) as connection:
        if filters.request is not None:
            rows, total = rows_of_request(connection, filters, span, SINGLE_PLANS)
            return _single(connection, rows, total, span, filters, now)
        if span is None:
            rows = newest_rows(connection, filters, NEWEST_PLANS)
            return _single(connection, rows, len(rows), None, filters, now)
        if filters.outcome not in (None, "completed"):
            rows, total = rows_of_outcome(connection, filters, span, SINGLE_PLANS)
            return _single(connection, rows, total, span, filters, now)
        if _by_minutes(connection, span):
            found = timeline_bins.by_minutes(connection, span, filters, by)
            return _binned(connection, "minutes", found, span, filters)
        ranges = run_ranges(connection, span, filters.run)
        stored = sum(part.plans for part in ranges)
        total = stored if filters.passes_all or not stored else _count(connection, span, filters)
        if total <= SINGLE_PLANS:
            rows = rows_within(connection, filters, span, SINGLE_PLANS)
            return _single(connection, rows, total, span, filters, now)
        found = timeline_bins.by_plans(connection, ranges, span, filters, by)
        return _binned(connection, "bins", found, span, filters)


def _single(
    connection: sa.Connection,
    rows: Sequence[PlanRow],
    total: int,
    span: Span | None,
    filters: Filters,
    now: dt.datetime,
) -> Picture:
    since, until = span or _extent(rows, now)
    lives = read_lives(connection, (since, until), filters, rows)
    return Picture("plans", since, until, total, rows, None, lives, read_events(connection, since, until))


def _extent(rows: Sequence[PlanRow], now: dt.datetime) -> tuple[dt.datetime, dt.datetime]:
    """From the first commit to the last known end, a little more on both sides; the last minute without any plan."""
    if not rows:
        return now - dt.timedelta(minutes=1), now
    first = min(row["committed_at"] for row in rows)
    last = max(max(row["committed_at"], row["completed_at"] or row["committed_at"]) for row in rows)
    last = max(last, min(now, last + dt.timedelta(seconds=1)) if any(_open(row) for row in rows) else last)
    margin = max(dt.timedelta(milliseconds=1), (last - first) / 100)
    return first - margin, last + margin


def _open(row: PlanRow) -> bool:
    return bool(row["outcome"] == "in_flight")


def _binned(connection: sa.Connection, level: str, binned: Binned, span: Span, filters: Filters) -> Picture:
    known = [mark for mark in binned.longest if mark.run_id is not None]
    known.sort(key=lambda mark: -mark.length_ns)
    keys = [(str(mark.run_id), int(mark.fence or 0)) for mark in known[:LONGEST_ROWS]]
    rows = rows_by_key(connection, keys)
    lives = read_lives(connection, span, filters, ())
    return Picture(level, *span, binned.plans, rows, binned, lives, read_events(connection, *span))


def _by_minutes(connection: sa.Connection, span: Span) -> bool:
    """Whether a span holds too many plans to look at each. The roll-up knows completed ones only."""
    if span[1] - span[0] < dt.timedelta(minutes=5):
        return False
    minutes = plan_minutes.c
    query = sa.select(sa.func.sum(minutes.plans)).where(minutes.minute >= span[0], minutes.minute < span[1])
    return int(connection.execute(query).scalar() or 0) > SCANNED


def run_ranges(connection: sa.Connection, span: Span, run: str | None) -> list[RunRange]:
    """The fences that each run committed within a span, and how many of them are stored."""
    at, fence = plans.c.committed_at, plans.c.fence
    query = sa.select(plans.c.run_id, sa.func.min(fence), sa.func.max(fence), sa.func.count())
    query = query.where(at >= span[0], at < span[1]).group_by(plans.c.run_id).order_by(plans.c.run_id)
    if run is not None:
        query = query.where(plans.c.run_id == run)
    return [RunRange(*row) for row in connection.execute(query).all()]


def _count(connection: sa.Connection, span: Span, filters: Filters) -> int:
    query = sa.select(sa.func.count()).select_from(plans)
    query = query.where(plans.c.committed_at >= span[0], plans.c.committed_at < span[1], *conditions(plans.c, filters))
    return int(connection.execute(query).scalar_one())


def offered_filters(engine: sa.Engine) -> tuple[Sequence[str], Sequence[int]]:
    """What the filters offer beside kinds and reasons: the newest runs and policy versions. Raises StoreError."""
    with read_transaction(engine) as connection:
        return offered(connection)


def newest_mark(engine: sa.Engine | sa.Connection) -> str:
    """The newest plans, what became of them, and how many requests run: as text, which differs when there is news."""
    key = (plans.c.run_id, plans.c.fence, plans.c.outcome)
    newest = sa.select(*key).order_by(plans.c.committed_at.desc(), plans.c.run_id.desc(), plans.c.fence.desc())
    run = sa.select(engine_runs.c.run_id).order_by(engine_runs.c.started_at.desc()).limit(1).scalar_subquery()
    running = sa.select(sa.func.count()).where(requests.c.run_id == run, requests.c.finished_at.is_(None))
    with read_transaction(engine) as connection:
        found = connection.execute(newest.limit(NEWEST_LOOKED_AT)).all()
        unfinished = connection.execute(running).scalar_one()
    return " ".join([*(f"{row.run_id}/{row.fence}:{row.outcome}" for row in found), str(unfinished)]) if found else ""


def newest_model(engine: sa.Engine) -> str | None:
    """The model of the newest run. Raises StoreError."""
    query = sa.select(engine_runs.c.model).order_by(engine_runs.c.started_at.desc()).limit(1)
    with read_transaction(engine) as connection:
        found: str | None = connection.execute(query).scalar()
    return found
