"""What the timeline's reads share: filters, times as whole microseconds, and when a policy version was in force."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from dashboard.timeline_records import Filters
from service.store.tables import engine_runs, policy_applications
from service.store.types import BIG

MAX_OFFERED = 50


@dataclasses.dataclass(frozen=True, slots=True)
class RunRange:
    """Plans of one run: from the first to the last fence, both included."""

    run_id: str
    first: int
    last: int
    plans: int


@dataclasses.dataclass(frozen=True, slots=True)
class Period:
    """While a run planned with one policy version; `until` None: it still does, or did to its end."""

    run_id: str
    since: dt.datetime
    until: dt.datetime | None


def conditions(columns: Any, filters: Filters) -> list[sa.ColumnElement[bool]]:
    """The filters but `request`, on the columns of `plans` or of a query with the same names.

    They never lead the database to an index: a span of time leaves fewer plans than a policy version or an outcome.
    """
    wanted = {
        "run_id": filters.run,
        "kind": filters.kind,
        "reason": filters.reason,
        "outcome": filters.outcome,
        "policy_version": filters.policy_version,
    }
    return [_by_looking(columns[name]) == value for name, value in wanted.items() if value is not None]


def _by_looking(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return column + 0 if isinstance(column.type, sa.Integer) else column.concat("")


def padded(bind: sa.Engine | sa.Connection, number: sa.ColumnElement[int]) -> sa.ColumnElement[str]:
    """A whole number, 0 or more, as text of 19 digits, so that the larger of two texts is the larger number."""
    if bind.dialect.name == "postgresql":
        return sa.func.lpad(sa.cast(number, sa.Text), 19, "0")
    return sa.func.printf("%019d", number)


def whole(value: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """A number as a 64-bit whole one."""
    return sa.cast(value, BIG)


def policy_periods(connection: sa.Connection, version: int, run: str | None) -> list[Period]:
    """When a policy version was in force, oldest first."""
    applied = policy_applications.c
    runs = sa.select(applied.run_id).where(applied.version == version)
    query = sa.select(applied.run_id, applied.version, applied.applied_at).where(applied.run_id.in_(runs))
    if run is not None:
        query = query.where(applied.run_id == run)
    rows = connection.execute(query.order_by(applied.run_id, applied.fence, applied.applied_at)).all()
    found = []
    for row, following in zip(rows, [*rows[1:], None], strict=False):
        if row.version == version:
            same_run = following is not None and following.run_id == row.run_id
            until = following.applied_at if following is not None and same_run else None
            found.append(Period(row.run_id, row.applied_at, until))
    return found


def offered(connection: sa.Connection) -> tuple[Sequence[str], Sequence[int]]:
    """The newest runs and the newest policy versions that were applied, newest first."""
    runs = sa.select(engine_runs.c.run_id).order_by(engine_runs.c.started_at.desc()).limit(MAX_OFFERED)
    version = policy_applications.c.version
    versions = sa.select(version).distinct().order_by(version.desc()).limit(MAX_OFFERED)
    return connection.execute(runs).scalars().all(), connection.execute(versions).scalars().all()
