"""Deletes what is older than a store may keep, or more than it may hold, in steps too short to be waited for.

What goes is the detail: plans with their lanes and alternatives, the decision log, finished requests; whole plans only,
the oldest first. Roll-ups stay MINUTES_FACTOR times as long; runs, policy versions and gaps stay. Never deleted are a
plan in flight, the last PLANS_KEPT of a run that has not ended, and a request that has not finished: the recorder
still writes to them, and its changes of rows that are gone would be lost.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import time
from collections.abc import Callable, Iterable, Sequence

import sqlalchemy as sa

from service.store.engines import read_transaction, write_transaction
from service.store.size import used_bytes
from service.store.tables import (
    decision_log,
    engine_runs,
    plan_alternatives,
    plan_lanes,
    plan_minutes,
    plans,
    requests,
)

PLANS_KEPT = 1000
MINUTES_FACTOR = 12
STEP_S = 0.03
"""How long a step should hold the store's write lock; batches grow and shrink towards it."""
PAUSE_FACTOR = 3
"""Of the time of a step: how long the next one waits, so that writers have three quarters of the time to themselves."""
_SMALLEST_BATCH, _FIRST_BATCH, _LARGEST_BATCH = 50, 100, 5000  # a step costs some milliseconds of its own
_ADVISORY_LOCK = 0x68656C707275  # "helpru": one process deletes at a time
_LOCK_TIMEOUT_MS = 500
_LOG_ROWS = 20  # a row holds up to some hundred kilobytes
_MINUTES_AT_ONCE = dt.timedelta(hours=1)


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """`days`: how long details are kept. `store_bytes`: how much the store's rows may take. 0: no limit."""

    days: int
    store_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Pruned:
    """Rows that a step deleted. `used_bytes`: of the store before it, None where nothing limits them.

    `held_s`: how long it held the write lock, without its own waiting for it.
    """

    plans: int = 0
    requests: int = 0
    log_rows: int = 0
    minutes: int = 0
    used_bytes: int | None = None
    held_s: float = 0.0

    @property
    def is_nothing(self) -> bool:
        """Whether there is no more to delete now."""
        return not (self.plans or self.requests or self.log_rows or self.minutes)


class Pruner:
    """Deletes step by step; between two steps its caller waits for `pause_s`. `timer` gives seconds."""

    def __init__(self, engine: sa.Engine, limits: Limits, timer: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._limits = limits
        self._timer = timer
        self._batch = _FIRST_BATCH
        self.pause_s = 0.0

    def step(self, now: dt.datetime) -> Pruned:
        """One step of about STEP_S. Raises StoreError."""
        done = prune_step(self._engine, self._limits, now, self._batch, self._timer)
        took = done.held_s
        self.pause_s = PAUSE_FACTOR * took
        if not done.is_nothing:
            wanted = round(self._batch * STEP_S / took) if took > 0 else _LARGEST_BATCH
            self._batch = min(max(wanted, self._batch // 4, _SMALLEST_BATCH), self._batch * 2, _LARGEST_BATCH)
        return done


def prune_step(
    engine: sa.Engine, limits: Limits, now: dt.datetime, batch: int, timer: Callable[[], float] = time.monotonic
) -> Pruned:
    """One transaction that deletes up to `batch` plans, as many requests, and what goes with them.

    Does nothing while another process does it. Raises StoreError.
    """
    with write_transaction(engine) as connection:
        began = timer()
        done = _prune(connection, limits, now, batch) if _may_prune(connection) else Pruned()
    return dataclasses.replace(done, held_s=timer() - began)


def _may_prune(connection: sa.Connection) -> bool:
    """SQLite has one writer at a time; on PostgreSQL one process deletes, and waits for nobody."""
    if connection.dialect.name != "postgresql":
        return True
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS}")
    # The next step must know what this one deleted, or it would delete too much.
    connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
    return bool(connection.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({_ADVISORY_LOCK})").scalar_one())


def _prune(connection: sa.Connection, limits: Limits, now: dt.datetime, batch: int) -> Pruned:
    if not limits.days and not limits.store_bytes:
        return Pruned()
    used = used_bytes(connection) if limits.store_bytes else None
    oldest_kept = now - dt.timedelta(days=limits.days) if limits.days else None
    is_over = used is not None and used > limits.store_bytes
    found = _oldest_plans(connection, None if is_over else oldest_kept, batch) if is_over or oldest_kept else []
    for run_id, first, last in consecutive((run_id, fence) for run_id, fence, _ in found):
        _delete_plans(connection, run_id, first, last)
    until = max([at for _, _, at in found] + ([oldest_kept] if oldest_kept is not None else []), default=None)
    runs = sorted({run_id for run_id, _, _ in found}) or _runs_with_old_log(connection)
    return Pruned(
        plans=len(found),
        requests=_delete_requests(connection, until, batch) if until is not None else 0,
        log_rows=sum(_delete_log(connection, run_id) for run_id in runs),
        minutes=_delete_minutes(connection, now, limits.days),
        used_bytes=used,
    )


def plans_to_delete(engine: sa.Engine, limits: Limits, now: dt.datetime) -> int:
    """About how many plans the limits cost, for a progress bar. Raises StoreError."""
    count = sa.select(sa.func.count()).select_from(plans)
    with read_transaction(engine) as connection:
        used = used_bytes(connection) if limits.store_bytes else 0
        too_old = count.where(plans.c.committed_at < now - dt.timedelta(days=limits.days))
        by_age = connection.execute(too_old).scalar_one() if limits.days else 0
        if used <= limits.store_bytes:
            return int(by_age)
        everything = connection.execute(count).scalar_one()
        return max(int(by_age), round(everything * (1 - limits.store_bytes / used)))


def consecutive(keys: Iterable[tuple[str, int]]) -> list[tuple[str, int, int]]:
    """(run, first fence, last fence) of the keys, without a fence in between that is not among them."""
    ranges: list[tuple[str, int, int]] = []
    for run_id, fence in sorted(keys):
        if ranges and ranges[-1][0] == run_id and ranges[-1][2] == fence - 1:
            ranges[-1] = (run_id, ranges[-1][1], fence)
        else:
            ranges.append((run_id, fence, fence))
    return ranges


def _oldest_plans(
    connection: sa.Connection, before: dt.datetime | None, most: int
) -> Sequence[tuple[str, int, dt.datetime]]:
    """Run, fence and commit time of the oldest plans that may go; `before` None: however young."""
    query = sa.select(plans.c.run_id, plans.c.fence, plans.c.committed_at).where(plans.c.outcome != "in_flight")
    if before is not None:
        query = query.where(plans.c.committed_at < before)
    open_runs = connection.execute(sa.select(engine_runs.c.run_id).where(engine_runs.c.ended_at.is_(None))).scalars()
    for run_id in open_runs.all():
        newest = connection.execute(sa.select(sa.func.max(plans.c.fence)).where(plans.c.run_id == run_id)).scalar_one()
        if newest is not None:
            query = query.where(sa.not_(sa.and_(plans.c.run_id == run_id, plans.c.fence > newest - PLANS_KEPT)))
    order = (plans.c.committed_at, plans.c.run_id, plans.c.fence)
    return [tuple(row) for row in connection.execute(query.order_by(*order).limit(most))]


def _delete_plans(connection: sa.Connection, run_id: str, first: int, last: int) -> None:
    for table in (plan_lanes, plan_alternatives, plans):
        connection.execute(table.delete().where(table.c.run_id == run_id, table.c.fence.between(first, last)))


def _delete_requests(connection: sa.Connection, until: dt.datetime, most: int) -> int:
    """Finished requests that arrived and ended before `until`."""
    old = (
        sa.select(requests.c.run_id, requests.c.request_id)
        .where(requests.c.arrived_at < until, requests.c.finished_at < until)
        .order_by(requests.c.arrived_at, requests.c.run_id, requests.c.request_id)
        .limit(most)
    )
    keys = [tuple(row) for row in connection.execute(old)]
    for run_id, group in itertools.groupby(sorted(keys), key=lambda key: key[0]):
        names = [name for _, name in group]
        connection.execute(requests.delete().where(requests.c.run_id == run_id, requests.c.request_id.in_(names)))
    return len(keys)


def _runs_with_old_log(connection: sa.Connection) -> Sequence[str]:
    """Runs that have a decision log and whose first plan is not fence 1 any more."""
    logged = sa.select(decision_log.c.run_id).where(decision_log.c.run_id == engine_runs.c.run_id).exists()
    first = sa.select(plans.c.fence).where(plans.c.run_id == engine_runs.c.run_id, plans.c.fence == 1).exists()
    return connection.execute(sa.select(engine_runs.c.run_id).where(logged, sa.not_(first))).scalars().all()


def _delete_log(connection: sa.Connection, run_id: str) -> int:
    """Rows before the checkpoint that the run's oldest plan is re-executed from; all rows of a run without plans."""
    log = decision_log.c
    oldest = connection.execute(sa.select(sa.func.min(plans.c.fence)).where(plans.c.run_id == run_id)).scalar_one()
    old = sa.select(log.first_call).where(log.run_id == run_id)
    if oldest is not None or _is_open(connection, run_id):
        checkpoint = sa.select(sa.func.max(log.first_call)).where(log.run_id == run_id, log.is_checkpoint)
        if oldest is not None:
            checkpoint = checkpoint.where(log.last_fence < oldest)
        needed = connection.execute(checkpoint).scalar_one()
        if needed is None:
            return 0
        old = old.where(log.first_call < needed)
    calls = connection.execute(old.order_by(log.first_call).limit(_LOG_ROWS)).scalars().all()
    if calls:
        connection.execute(decision_log.delete().where(log.run_id == run_id, log.first_call.in_(calls)))
    return len(calls)


def _is_open(connection: sa.Connection, run_id: str) -> bool:
    query = sa.select(engine_runs.c.run_id).where(engine_runs.c.run_id == run_id, engine_runs.c.ended_at.is_(None))
    return connection.execute(query).first() is not None


def _delete_minutes(connection: sa.Connection, now: dt.datetime, days: int) -> int:
    """An hour of the oldest roll-ups, when they are too old."""
    minute = plan_minutes.c.minute
    oldest = connection.execute(sa.select(sa.func.min(minute))).scalar_one() if days else None
    if oldest is None:
        return 0
    until = min(now - dt.timedelta(days=days * MINUTES_FACTOR), oldest + _MINUTES_AT_ONCE)
    return connection.execute(plan_minutes.delete().where(minute < until)).rowcount
