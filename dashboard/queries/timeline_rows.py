"""Single plans with the requests that each served, newest first."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from dashboard.queries.timeline_filters import conditions, policy_periods
from dashboard.timeline_records import Filters, PlanRow, Span
from service.store.partitions import same_day
from service.store.tables import plan_lanes, plan_minutes, plans

TIMELINE_COLUMNS = (
    *("run_id", "fence", "committed_at", "committed_ns", "policy_version", "queue_depth", "frame_slot"),
    *("kind", "batch_capacity", "draft_depth", "target_width", "target_rows", "prefill_capacity", "prompt_rows"),
    "active_rows",
    *("reason", "score_kind", "value_rate", "margin", "selected_cost_ms", "cost_state"),
    *("started_ns", "completed_ns", "completed_at", "outcome", "device_ms", "prompt_tokens", "output_tokens"),
)
SEPARATOR = "\n"
_NEWEST_FIRST = (plans.c.committed_at.desc(), plans.c.run_id.desc(), plans.c.fence.desc())
_MINUTE = dt.timedelta(minutes=1)
_SLACK = dt.timedelta(seconds=1)
_LONG_PLAN = dt.timedelta(seconds=10)
Bounds = tuple[dt.datetime | None, dt.datetime | None]


def _select(connection: sa.Connection) -> sa.Select[Any]:
    names = (
        sa.select(sa.func.aggregate_strings(plan_lanes.c.request_id, SEPARATOR))
        .where(plan_lanes.c.run_id == plans.c.run_id, plan_lanes.c.fence == plans.c.fence)
        .where(*same_day(connection, plan_lanes, plans))
        .scalar_subquery()
    )
    return sa.select(*(plans.c[name] for name in TIMELINE_COLUMNS), names.label("request_ids"))


def _rows(connection: sa.Connection, query: sa.Select[Any]) -> list[PlanRow]:
    rows = [dict(row) for row in connection.execute(query).mappings()]
    for row in rows:
        row["request_ids"] = row["request_ids"].split(SEPARATOR) if row["request_ids"] else []
    return rows


def rows_within(connection: sa.Connection, filters: Filters, span: Span, limit: int) -> list[PlanRow]:
    """The newest `limit` plans that were committed within the span and pass the filters but `request`."""
    query = _select(connection).where(plans.c.committed_at >= span[0], plans.c.committed_at < span[1])
    return _rows(connection, query.where(*conditions(plans.c, filters)).order_by(*_NEWEST_FIRST).limit(limit))


def rows_of_outcome(connection: sa.Connection, filters: Filters, span: Span, limit: int) -> tuple[list[PlanRow], int]:
    """As rows_within, for an outcome that few plans have and that has an index; and how many there are in all."""
    at = plans.c.committed_at
    chosen = (plans.c.outcome == filters.outcome, at >= span[0], at < span[1], *conditions(plans.c, filters))
    rows = _rows(connection, _select(connection).where(*chosen).order_by(*_NEWEST_FIRST).limit(limit))
    count = sa.select(sa.func.count()).select_from(plans).where(*chosen)
    return rows, int(connection.execute(count).scalar_one())


def newest_rows(connection: sa.Connection, filters: Filters, limit: int) -> list[PlanRow]:
    """The newest `limit` plans that pass the filters but `request`, whenever they were.

    Of a kind or reason that is rare they are looked for in the minutes in which the roll-up knows of one: up to `limit`
    of these, and the last minute of all.
    """
    bounds = _while_in_force(connection, filters)
    windows = _windows(connection, filters, bounds, limit)
    if windows is None:
        query = _select(connection).where(*conditions(plans.c, filters), *_within(plans.c.committed_at, bounds))
        return _rows(connection, query.order_by(*_NEWEST_FIRST).limit(limit))
    rows: list[PlanRow] = []
    for window in windows:
        rows += rows_within(connection, filters, window, limit - len(rows))
        if len(rows) >= limit:
            break
    return rows


def _within(column: Any, bounds: Bounds) -> list[sa.ColumnElement[bool]]:
    since, until = bounds
    return [*([] if since is None else [column >= since]), *([] if until is None else [column < until])]


def _while_in_force(connection: sa.Connection, filters: Filters) -> Bounds:
    """From when to when the filter's policy version was in force; open where it is or where nothing is known."""
    if filters.policy_version is None:
        return None, None
    periods = policy_periods(connection, filters.policy_version, filters.run)
    if not periods:
        return None, None
    ends = [period.until for period in periods if period.until is not None]
    since = min(period.since for period in periods) - _SLACK
    return since, max(ends) + _SLACK if len(ends) == len(periods) else None


def _windows(connection: sa.Connection, filters: Filters, bounds: Bounds, limit: int) -> list[Span] | None:
    """Where plans of the filter's kind and reason are, the newest first; None: anywhere."""
    minutes = plan_minutes.c
    wanted = {"run_id": filters.run, "kind": filters.kind, "reason": filters.reason}
    newest = connection.execute(sa.select(sa.func.max(plans.c.committed_at))).scalar()
    rolled_up = connection.execute(sa.select(minutes.minute).limit(1)).scalar()
    if (filters.kind is None and filters.reason is None) or newest is None or rolled_up is None:
        return None
    query = sa.select(minutes.minute).distinct().where(*_within(minutes.minute, bounds))
    query = query.where(*(minutes[name] == value for name, value in wanted.items() if value is not None))
    found = connection.execute(query.order_by(minutes.minute.desc()).limit(limit)).scalars().all()
    windows = [(newest - _MINUTE, newest + _SLACK)]
    for minute in found:
        # A roll-up's minute is that of the plan's end.
        since, until = minute - _LONG_PLAN, min(minute + _MINUTE, windows[-1][0])
        if since < until:
            windows.append((since, until))
    return windows


def rows_of_request(
    connection: sa.Connection, filters: Filters, span: Span | None, limit: int
) -> tuple[list[PlanRow], int]:
    """The newest `limit` plans that served the filter's request, and how many did; of the span, where one is given."""
    lanes, p = plan_lanes.c, plans.c
    # Written so that the index of lanes by request is used, not the one of plans by time.
    at = sa.func.coalesce(p.committed_at, p.committed_at)
    within = [] if span is None else [at >= span[0], at < span[1]]
    same = (p.run_id == lanes.run_id, p.fence == lanes.fence, *same_day(connection, plan_lanes, plans))
    keys = sa.select(p.run_id, p.fence, p.committed_at).distinct().select_from(plan_lanes.join(plans, sa.and_(*same)))
    keys = keys.where(lanes.request_id == filters.request, *within, *conditions(p, filters))
    total = int(connection.execute(sa.select(sa.func.count()).select_from(keys.subquery())).scalar_one())
    found = connection.execute(keys.order_by(*_NEWEST_FIRST).limit(limit)).all()
    return _of_keys(connection, [(row.run_id, row.fence) for row in found]), total


def rows_by_key(connection: sa.Connection, keys: Sequence[tuple[str, int]]) -> list[PlanRow]:
    """The plans of these (run, fence), in their order; those that are gone are left out."""
    found = {(row["run_id"], row["fence"]): row for row in _of_keys(connection, keys)}
    return [found[key] for key in keys if key in found]


def _of_keys(connection: sa.Connection, keys: Sequence[tuple[str, int]]) -> list[PlanRow]:
    rows: list[PlanRow] = []
    for run_id in dict.fromkeys(run for run, _ in keys):
        fences = [fence for run, fence in keys if run == run_id]
        query = _select(connection).where(plans.c.run_id == run_id, plans.c.fence.in_(fences))
        rows += _rows(connection, query)
    return sorted(rows, key=lambda row: (row["committed_at"], row["run_id"], row["fence"]), reverse=True)
