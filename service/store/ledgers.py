"""The exploration ledgers as plans recorded them, and the probes that they paid for.

Each plan holds the ledgers from before its own charge, so the last plan of a moment says how they stood. A probe's
charge is what its ledger's `spent` grew by until the next probe of the same ledger, or until the run's newest plan.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from service.store import filters
from service.store.engines import read_transaction
from service.store.hints import among_times
from service.store.queries import Bind, Row, Time
from service.store.tables import SHAPE_COLUMNS, plan_minutes, plans

MINUTE = dt.timedelta(minutes=1)
LEDGERS = {"timing_refresh": "timing", "acceptance_learning": "acceptance"}
"""The reason of a probe, and the ledger that pays for it."""
LEDGER_COLUMNS = (
    *("timing_credit_ms", "timing_spent_ms", "timing_ordinary_ms"),
    *("acceptance_credit_ms", "acceptance_spent_ms", "acceptance_ordinary_ms"),
    "discovery_ms",
)
_STATE = tuple(plans.c[name] for name in ("run_id", "fence", "committed_at", *LEDGER_COLUMNS))
_PROBE = (
    *("run_id", "fence", "committed_at", "completed_at", "outcome", "reason", *SHAPE_COLUMNS),
    *("exploration_credit_ms", "selected_cost_ms", "device_ms", "wall_ms", "exposed_delivery_ms"),
    *("offered_tokens", "accepted_tokens", "output_tokens", "active_rows", "timing_spent_ms", "acceptance_spent_ms"),
)
# A plan is counted in the minute of its completion; it was committed this much earlier at the most, but for odd ones.
_LONGEST = dt.timedelta(seconds=10)


def list_ledgers(
    bind: Bind, *, run: str | None = None, since: Time = None, until: Time = None, limit: int | str = 100
) -> list[Row]:
    """How the ledgers of each run stood at the end of each minute in which it completed a plan, newest first.

    A row is `minute`, `run_id`, and of the last plan committed before the minute's end `fence`, `committed_at` and
    LEDGER_COLUMNS; so a run's first row is its newest. Raises InvalidFilter and StoreError.
    """
    first, last = filters.time_range(since, until)
    run_id, size = filters.identifier("run", run), filters.limit_filter(limit)
    minutes = plan_minutes.c
    query = sa.select(minutes.minute, minutes.run_id).distinct()
    query = query.order_by(minutes.minute.desc(), minutes.run_id.desc()).limit(size)
    if first is not None:
        query = query.where(minutes.minute > filters.earlier(first, MINUTE))
    if last is not None:
        query = query.where(minutes.minute < last)
    if run_id is not None:
        query = query.where(minutes.run_id == run_id)
    rows = []
    with read_transaction(bind) as connection:
        for minute, of_run in connection.execute(query).all():
            end = minute + MINUTE if last is None else min(last, minute + MINUTE)
            state = _state_before(connection, end, minute - MINUTE, of_run)
            if state is not None:
                rows.append({"minute": minute, **state})
    return rows


def ledger_points(connection: sa.Connection, times: Sequence[dt.datetime], run: str | None = None) -> list[Row]:
    """How the ledgers stood at the end of each interval between two neighbouring `times`, by its last plan.

    Intervals without a plan give no row. One look-up by index for each interval.
    """
    found = [_state_before(connection, end, start, run) for start, end in itertools.pairwise(times)]
    return [row for row in found if row is not None]


def newest_ledgers(connection: sa.Connection, run: str) -> Row | None:
    """The ledgers of a run's newest plan."""
    query = sa.select(*_STATE).where(plans.c.run_id == run).order_by(plans.c.fence.desc()).limit(1)
    found = connection.execute(query).mappings().one_or_none()
    return None if found is None else dict(found)


def _state_before(connection: sa.Connection, end: dt.datetime, start: dt.datetime, run: str | None) -> Row | None:
    at = plans.c.committed_at
    query = sa.select(*_STATE).where(at >= start, at < end)
    if run is not None:
        query = query.where(among_times(plans.c.run_id, run))
    order = (at.desc(), plans.c.run_id.desc(), plans.c.fence.desc())
    found = connection.execute(query.order_by(*order).limit(1)).mappings().one_or_none()
    return None if found is None else dict(found)


def list_episodes(
    connection: sa.Connection, since: dt.datetime, until: dt.datetime, *, run: str | None = None, limit: int = 100
) -> list[Row]:
    """The newest probes that completed in a span, newest first, each with `ledger` and `charged_ms` (None: open).

    The roll-up says in which minutes there are any, so that no other plan is looked at. Raises StoreError.
    """
    minutes = plan_minutes.c
    query = sa.select(minutes.minute, sa.func.sum(minutes.plans)).where(
        minutes.minute > since - MINUTE, minutes.minute < until, minutes.reason.in_(LEDGERS)
    )
    if run is not None:
        query = query.where(minutes.run_id == run)
    query = query.group_by(minutes.minute).order_by(minutes.minute.desc()).limit(limit)
    rows: list[Row] = []
    for minute, _ in connection.execute(query).all():
        rows += _probes(connection, minute, since, until, run)
        if len(rows) >= limit:
            break
    ordered = sorted(rows, key=lambda row: (row["committed_at"], row["run_id"], row["fence"]), reverse=True)
    return _charged(connection, ordered, until)[:limit]


def _probes(
    connection: sa.Connection, minute: dt.datetime, since: dt.datetime, until: dt.datetime, run: str | None
) -> list[Row]:
    at, done = plans.c.committed_at, plans.c.completed_at
    query = sa.select(*(plans.c[name] for name in _PROBE)).where(
        at >= minute - _LONGEST,
        at < minute + MINUTE,
        done >= max(since, minute),
        done < min(until, minute + MINUTE),
        plans.c.reason.in_(LEDGERS),
    )
    if run is not None:
        query = query.where(among_times(plans.c.run_id, run))
    return [dict(row) for row in connection.execute(query).mappings()]


def _charged(connection: sa.Connection, newest_first: Iterable[Row], until: dt.datetime) -> list[Row]:
    """The rows with `ledger` and `charged_ms`; what a plan before `until` does not show yet is None."""
    spent: dict[tuple[str, str], float] = {}
    rows = []
    for row in newest_first:
        ledger = LEDGERS[row["reason"]]
        column, run_id = f"{ledger}_spent_ms", row["run_id"]
        if (run_id, ledger) not in spent:
            newest = _state_before(connection, until, row["committed_at"], run_id)
            spent[run_id, ledger] = row[column] if newest is None else newest[column]
        charged = spent[run_id, ledger] - row[column]
        spent[run_id, ledger] = row[column]
        rows.append({**row, "ledger": ledger, "charged_ms": charged if charged > 0 else None})
    return rows
