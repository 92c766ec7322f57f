"""Requests as lanes under the timeline: how long each waited, read its prompt and answered, and when it was served."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from dashboard.timeline_records import Filters, Life, Lives, Served, Span, to_us
from service.store.epoch import micros
from service.store.partitions import same_day
from service.store.tables import plan_lanes, plans, requests
from service.store.types import UtcDateTime

SHOWN_REQUESTS = 30
SHOWN_BESIDE_BINS = 15
EARLIEST = dt.timedelta(minutes=10)
"""How long before the span requests are looked for that began then and have ended since: there is no index by end."""
PIXELS = 600
"""Services of one request that lie closer than the span's PIXELS-th part are one mark."""
_COLUMNS = (
    *("run_id", "request_id", "arrived_at", "admitted_at", "first_output_at", "finished_at"),
    *("finish_reason", "prompt_tokens", "output_tokens", "queue_ms", "prefill_ms"),
)


def read_lives(connection: sa.Connection, span: Span, filters: Filters, rows: Sequence[dict[str, Any]]) -> Lives:
    """The requests that were there during the span. `rows`: the plans shown one by one, none where they are binned."""
    parts = _there(span, filters)
    counts = [sa.select(sa.func.count()).where(*part).scalar_subquery() for part in parts]
    found = sum(int(count) for count in connection.execute(sa.select(*counts)).one())
    keys = _longest_waits(connection, span, parts, SHOWN_REQUESTS if rows else SHOWN_BESIDE_BINS)
    shown = _of_keys(connection, keys)
    services = _services(connection, span, shown, rows) if rows else {}
    lives = []
    for row in shown:
        served = services.get((row["run_id"], row["request_id"]), [])
        lives.append(Life(row, _graph_at(row), served))
    return Lives(lives, found)


def _there(span: Span, filters: Filters) -> list[list[sa.ColumnElement[bool]]]:
    """Conditions on `requests` of which one at the most holds: came within the span, up to EARLIEST before it and was
    there still, came before that and still runs.

    The first is answered by the index by arrival alone, which is most of a long span's work.
    """
    arrived, finished = requests.c.arrived_at, requests.c.finished_at
    earliest = span[0] - EARLIEST
    wanted = {"run_id": filters.run, "request_id": filters.request}
    chosen = [requests.c[name] == value for name, value in wanted.items() if value is not None]
    return [
        [arrived >= span[0], arrived < span[1], *chosen],
        [arrived >= earliest, arrived < span[0], sa.or_(finished.is_(None), finished >= span[0]), *chosen],
        # Written so that the index of unfinished requests is used, not the one by arrival.
        [finished.is_(None), sa.func.coalesce(arrived, arrived) < earliest, *chosen],
    ]


def _longest_waits(
    connection: sa.Connection, span: Span, parts: Sequence[Sequence[sa.ColumnElement[bool]]], limit: int
) -> list[tuple[str, str]]:
    """Run and request of the longest waits: whole rows would be sorted three times as slowly."""
    c = requests.c
    wait = _wait_ms(connection, c, span[1]).label("wait_ms")
    there = sa.union_all(*(sa.select(c.run_id, c.request_id, wait).where(*part) for part in parts)).subquery("there")
    query = sa.select(there.c.run_id, there.c.request_id)
    query = query.order_by(there.c.wait_ms.desc(), there.c.run_id, there.c.request_id).limit(limit)
    return [(row.run_id, row.request_id) for row in connection.execute(query)]


def _of_keys(connection: sa.Connection, keys: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """These requests in the order of arrival."""
    c = requests.c
    rows: list[dict[str, Any]] = []
    for run_id in dict.fromkeys(run for run, _ in keys):
        names = [name for run, name in keys if run == run_id]
        query = sa.select(*(c[name] for name in _COLUMNS)).where(c.run_id == run_id, c.request_id.in_(names))
        rows += (dict(row) for row in connection.execute(query).mappings())
    return sorted(rows, key=lambda row: (row["arrived_at"], row["run_id"], row["request_id"]))


def _wait_ms(connection: sa.Connection, columns: Any, until: dt.datetime) -> sa.ColumnElement[float]:
    """From arrival to the first output, as far as it is known; up to `until` for those that still wait."""
    end = sa.func.coalesce(columns.first_output_at, columns.finished_at, sa.literal(until, UtcDateTime()))
    by_times = (micros(connection, end) - micros(connection, columns.arrived_at)) / 1000.0
    found: sa.ColumnElement[float] = sa.func.coalesce(columns.queue_ms + columns.prefill_ms, by_times)
    return found


def _graph_at(row: dict[str, Any]) -> dt.datetime | None:
    first: dt.datetime | None = row["first_output_at"]
    if first is not None and row["prefill_ms"] is not None:
        began: dt.datetime = max(row["arrived_at"], first - dt.timedelta(milliseconds=row["prefill_ms"]))
        return began
    admitted: dt.datetime | None = row["admitted_at"]
    return admitted


def _services(
    connection: sa.Connection, span: Span, shown: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]
) -> dict[tuple[str, str], list[Served]]:
    """When the plans in view served each request, close ones put together by the database."""
    width_us = max(1, (to_us(span[1]) - to_us(span[0])) // PIXELS)
    found: dict[tuple[str, str], list[Served]] = {}
    for run_id in dict.fromkeys(row["run_id"] for row in shown):
        fences = [row["fence"] for row in rows if row["run_id"] == run_id]
        names = [row["request_id"] for row in shown if row["run_id"] == run_id]
        if fences:
            query = _services_of(connection, run_id, (min(fences), max(fences)), names, width_us)
            for row in connection.execute(query):
                found.setdefault((run_id, row.request_id), []).append(
                    Served(int(row.since_us), int(row.until_us), row.kind, row.reason, int(row.plans))
                )
    return {key: _joined(sorted(some, key=lambda one: one.since_us), width_us) for key, some in found.items()}


def _services_of(
    connection: sa.Connection, run_id: str, fences: tuple[int, int], names: Sequence[str], width_us: int
) -> sa.Select[Any]:
    p, lanes = plans.c, plan_lanes.c
    at_us = micros(connection, p.committed_at)
    begun = at_us + (sa.func.coalesce(p.started_ns, p.committed_ns) - p.committed_ns) // 1000
    ended = at_us + (sa.func.coalesce(p.completed_ns, p.committed_ns) - p.committed_ns) // 1000
    number = at_us // width_us
    query = sa.select(
        lanes.request_id,
        p.kind,
        p.reason,
        sa.func.min(begun).label("since_us"),
        sa.func.max(ended).label("until_us"),
        sa.func.count().label("plans"),
    )
    joined = plan_lanes.join(
        plans, sa.and_(p.run_id == lanes.run_id, p.fence == lanes.fence, *same_day(connection, plan_lanes, plans))
    )
    query = query.select_from(joined).where(lanes.run_id == run_id, lanes.request_id.in_(names))
    query = query.where(lanes.fence.between(*fences), p.fence.between(*fences), p.run_id == run_id)
    return query.group_by(lanes.request_id, p.kind, p.reason, number)


def _joined(served: Sequence[Served], width_us: int) -> list[Served]:
    """Services of one kind that lie closer than `width_us`, put together."""
    found: list[Served] = []
    for one in served:
        last = found[-1] if found else None
        if last and (last.kind, last.reason) == (one.kind, one.reason) and one.since_us - last.until_us < width_us:
            until_us = max(last.until_us, one.until_us)
            found[-1] = Served(last.since_us, until_us, last.kind, last.reason, last.plans + one.plans)
        else:
            found.append(one)
    return found
