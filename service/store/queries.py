"""Reads of the trace store, for `/api` and the dashboard alike.

Functions take an engine or an open connection and return rows as dicts whose keys are the SQL column names; times
are aware UTC datetimes. Lists are newest first. They raise InvalidFilter for a filter that cannot be used and
StoreError for what the database cannot do. All are synchronous: call them in a thread from asyncio.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from scheduler.plans import Reason
from scheduler.records import FinishReason
from scheduler.shapes import GraphKind
from service.store import filters
from service.store.engines import read_transaction
from service.store.episode import episode_of
from service.store.partitions import day_of
from service.store.tables import (
    engine_runs,
    plan_alternatives,
    plan_lanes,
    plans,
    requests,
)
from service.store.types import by_bytes

Bind = sa.Engine | sa.Connection
Row = dict[str, Any]
Time = str | dt.datetime | None

KINDS = tuple(kind.value for kind in GraphKind)
REASONS = tuple(reason.value for reason in Reason)
RUNNING = "running"
FINISHES = (*(reason.value for reason in FinishReason), RUNNING)
OUTCOMES = ("in_flight", "completed", "failed", "abandoned", "lost")

_PLAN_KEY = (plans.c.committed_at, by_bytes(plans.c.run_id), plans.c.fence)
_PLAN_ORDER = tuple(column.desc() for column in _PLAN_KEY)
_plan_position = sa.tuple_(*_PLAN_KEY)
_REQUEST_KEY = (requests.c.arrived_at, by_bytes(requests.c.run_id), by_bytes(requests.c.request_id))
_REQUEST_ORDER = tuple(column.desc() for column in _REQUEST_KEY)
_request_position = sa.tuple_(*_REQUEST_KEY)


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """One page of a list. `next` is the cursor of the following page, None on the last one."""

    items: list[Row]
    next: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class PlanDetail:
    """One plan with its lanes (by lane number), runner-ups (by rank), and episode, if a ledger paid for it."""

    plan: Row
    lanes: list[Row]
    alternatives: list[Row]
    episode: Row | None = None


def list_plans(
    bind: Bind,
    *,
    since: Time = None,
    until: Time = None,
    kind: str | None = None,
    reason: str | None = None,
    shape: str | None = None,
    request: str | None = None,
    run: str | None = None,
    outcome: str | None = None,
    policy_version: int | None = None,
    limit: int | str = 100,
    cursor: str | None = None,
) -> Page:
    """Plans, newest first. `since` is included, `until` excluded; `request` keeps the plans that served it."""
    size, start = filters.limit_filter(limit), filters.read_plan_cursor(cursor)
    query = _within(sa.select(plans), plans.c.committed_at, since, until)
    query = _equal(query, plans.c.kind, filters.one_of("kind", kind, KINDS))
    query = _equal(query, plans.c.reason, filters.one_of("reason", reason, REASONS))
    query = _equal(query, plans.c.outcome, filters.one_of("outcome", outcome, OUTCOMES))
    query = _equal(query, plans.c.run_id, filters.identifier("run", run))
    query = _equal(query, plans.c.policy_version, policy_version)
    for name, value in filters.shape_filter(shape).items():
        query = _equal(query, plans.c[name], value)
    served = filters.identifier("request", request)
    if served is not None:
        key = (plan_lanes.c.run_id, plan_lanes.c.fence, *day_of(bind, plan_lanes))
        lanes = sa.select(*key).select_from(plan_lanes).where(plan_lanes.c.request_id == served)
        query = query.where(sa.tuple_(plans.c.run_id, plans.c.fence, *day_of(bind, plans)).in_(lanes))
    if start is not None:
        query = query.where(_plan_position < _key(start.at, start.run_id, start.fence))
    rows = _rows(bind, query.order_by(*_PLAN_ORDER).limit(size + 1))
    return _page(rows, size, lambda row: filters.PlanCursor(row["committed_at"], row["run_id"], row["fence"]))


def get_plan(bind: Bind, run_id: str, fence: int) -> PlanDetail | None:
    """The plan with its lanes and runner-ups, or None."""
    if not _could_be_key(run_id, fence):
        return None
    with read_transaction(bind) as connection:
        found = _rows(connection, sa.select(plans).where(plans.c.run_id == run_id, plans.c.fence == fence))
        if not found:
            return None
        lanes, alternatives = (
            _rows(connection, sa.select(table).where(table.c.run_id == run_id, table.c.fence == fence).order_by(order))
            for table, order in ((plan_lanes, plan_lanes.c.lane), (plan_alternatives, plan_alternatives.c.rank))
        )
        episode = episode_of(connection, found[0])
    return PlanDetail(found[0], lanes, alternatives, episode)


def plan_neighbours(bind: Bind, run_id: str, fence: int) -> tuple[int | None, int | None]:
    """The fences before and after `fence` that the run has plans for."""
    if not _could_be_key(run_id, fence):
        return None, None
    of_run = plans.c.run_id == run_id
    query = sa.select(
        sa.select(sa.func.max(plans.c.fence)).where(of_run, plans.c.fence < fence).scalar_subquery(),
        sa.select(sa.func.min(plans.c.fence)).where(of_run, plans.c.fence > fence).scalar_subquery(),
    )
    with read_transaction(bind) as connection:
        before, behind = connection.execute(query).one()
    return before, behind


def list_requests(
    bind: Bind,
    *,
    since: Time = None,
    until: Time = None,
    run: str | None = None,
    request: str | None = None,
    finish_reason: str | None = None,
    limit: int | str = 100,
    cursor: str | None = None,
) -> Page:
    """Requests by arrival, newest first. finish_reason "running" keeps those that have not ended."""
    size, start = filters.limit_filter(limit), filters.read_request_cursor(cursor)
    query = _within(sa.select(requests), requests.c.arrived_at, since, until)
    query = _equal(query, requests.c.run_id, filters.identifier("run", run))
    query = _equal(query, requests.c.request_id, filters.identifier("request", request))
    if filters.one_of("finish_reason", finish_reason, FINISHES) == RUNNING:
        query = query.where(requests.c.finish_reason.is_(None))
    else:
        query = _equal(query, requests.c.finish_reason, finish_reason)
    if start is not None:
        query = query.where(_request_position < _key(start.at, start.run_id, start.request_id))
    rows = _rows(bind, query.order_by(*_REQUEST_ORDER).limit(size + 1))
    return _page(rows, size, lambda row: filters.RequestCursor(row["arrived_at"], row["run_id"], row["request_id"]))


def get_request(bind: Bind, run_id: str, request_id: str) -> Row | None:
    """The request, or None. Its plans: `list_plans(bind, run=run_id, request=request_id)`."""
    if not (_could_be_key(run_id, 0) and _could_be_key(request_id, 0)):
        return None
    query = sa.select(requests).where(requests.c.run_id == run_id, requests.c.request_id == request_id)
    found = _rows(bind, query)
    return found[0] if found else None


def list_runs(bind: Bind, *, limit: int | str = 100) -> list[Row]:
    """Engine runs, newest first."""
    order = (engine_runs.c.started_at.desc(), by_bytes(engine_runs.c.run_id).desc())
    return _rows(bind, sa.select(engine_runs).order_by(*order).limit(filters.limit_filter(limit)))


def _within(
    query: sa.Select[*tuple[Any, ...]], column: sa.ColumnClause[Any], since: Time, until: Time
) -> sa.Select[*tuple[Any, ...]]:
    """`query` limited to `column` from `since` (included) to `until` (excluded). Raises InvalidFilter."""
    first, last = filters.time_range(since, until)
    if first is not None:
        query = query.where(column >= first)
    return query if last is None else query.where(column < last)


def _equal(
    query: sa.Select[*tuple[Any, ...]], column: sa.Column[Any], value: str | int | None
) -> sa.Select[*tuple[Any, ...]]:
    return query if value is None else query.where(column == value)


def _key(at: dt.datetime, run_id: str, last: str | int) -> sa.Tuple:
    """A keyset position; bound with the column types, so that times compare as the database stores them."""
    return sa.tuple_(
        sa.bindparam(None, at, type_=plans.c.committed_at.type), sa.literal(run_id, sa.Text), sa.literal(last)
    )


def _could_be_key(text: str, number: int) -> bool:
    return text.isprintable() and len(text) <= filters.MAX_TEXT and -(1 << 63) <= number < 1 << 63


def _rows(bind: Bind, query: sa.Select[*tuple[Any, ...]]) -> list[Row]:
    """The query's rows as dicts. Raises StoreError."""
    with read_transaction(bind) as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def _page(rows: Sequence[Row], size: int, cursor_of: Any) -> Page:
    more = len(rows) > size
    items = list(rows[:size])
    return Page(items, filters.write_cursor(cursor_of(items[-1])) if more else None)
