"""Deletes what is older than a store may keep, or more than it may hold, in steps too short to be waited for.

What goes is the detail: plans with their lanes and alternatives, the decision log, finished requests; whole plans only,
the oldest first. Roll-ups stay MINUTES_FACTOR times as long; runs, policy versions and gaps stay. Never deleted are a
plan in flight, the last PLANS_KEPT of a run that has not ended, and a request that has not finished: the recorder
still writes to them, and its changes of rows that are gone would be lost.

On PostgreSQL plans lie in partitions by day. A day goes whole when all of it is too old, or when the store stays too
large without it; only then are plans deleted one by one that lie in no such day: those of the day in which a limit of
size falls, of a day that holds a plan which stays, and of no partition. So an age limit is one of whole days there.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import time
from collections.abc import Callable, Iterable, Sequence

import sqlalchemy as sa

from service.store import partitions
from service.store.engines import read_transaction, write_transaction
from service.store.partitions import RECORDED_ON, has_days, start_of, utc_day
from service.store.size import bytes_of_day, used_bytes
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
"""How long a step should hold the store's write lock; batches of plans and of rows of the log grow and shrink
towards it."""
PAUSE_FACTOR = 3
"""Of the time of a step: how long the next one waits, so that writers have three quarters of the time to themselves."""
_SMALLEST_BATCH, _FIRST_BATCH, _LARGEST_BATCH = 50, 100, 5000  # a step costs some milliseconds of its own
_ADVISORY_LOCK = 0x68656C707275  # "helpru": one process deletes at a time
_LOCK_TIMEOUT_MS = 500
_DAY = dt.timedelta(days=1)
_MINUTES_AT_ONCE = dt.timedelta(hours=1)


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """`days`: how long details are kept. `store_bytes`: how much the store's rows may take. 0: no limit."""

    days: int
    store_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Pruned:
    """Rows that a step deleted. `used_bytes`: of the store before it, None where nothing limits them.

    `dropped`: the day whose partitions went whole; `plans` are then what the fences between its first and last make.
    `held_s`: how long it held the write lock, without its own waiting for it.
    """

    plans: int = 0
    requests: int = 0
    log_rows: int = 0
    minutes: int = 0
    dropped: dt.date | None = None
    used_bytes: int | None = None
    held_s: float = 0.0

    @property
    def is_nothing(self) -> bool:
        """Whether there is no more to delete now."""
        return not (self.plans or self.requests or self.log_rows or self.minutes or self.dropped)


class Pruner:
    """Deletes step by step; between two steps its caller waits for `pause_s`. `timer` gives seconds."""

    def __init__(self, engine: sa.Engine, limits: Limits, timer: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._limits = limits
        self._timer = timer
        self._batch = _FIRST_BATCH
        self._gone_until: dt.datetime | None = None
        self.pause_s = 0.0

    def step(self, now: dt.datetime) -> Pruned:
        """One step of about STEP_S. Raises StoreError."""
        done = prune_step(self._engine, self._limits, now, self._batch, self._timer, self._gone_until)
        if done.dropped is not None:
            self._gone_until = start_of(done.dropped + _DAY)
        took = done.held_s
        self.pause_s = PAUSE_FACTOR * took
        if not done.is_nothing:
            wanted = round(self._batch * STEP_S / took) if took > 0 else _LARGEST_BATCH
            self._batch = min(max(wanted, self._batch // 4, _SMALLEST_BATCH), self._batch * 2, _LARGEST_BATCH)
        return done


def prune_step(
    engine: sa.Engine,
    limits: Limits,
    now: dt.datetime,
    batch: int,
    timer: Callable[[], float] = time.monotonic,
    gone_until: dt.datetime | None = None,
) -> Pruned:
    """One transaction that deletes up to `batch` plans, as many requests, and what goes with them; or a whole day.

    `gone_until`: the end of the newest day that an earlier step dropped: its requests are still to go. Does nothing
    while another process does it. Raises StoreError, among them StoreBusy for a day that somebody reads or writes.
    """
    with write_transaction(engine) as connection:
        began = timer()
        done = _prune(connection, limits, now, batch, gone_until) if _may_prune(connection) else Pruned()
    return dataclasses.replace(done, held_s=timer() - began)


def _may_prune(connection: sa.Connection) -> bool:
    """SQLite has one writer at a time; on PostgreSQL one process deletes, and waits for nobody."""
    if connection.dialect.name != "postgresql":
        return True
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS}")
    # The next step must know what this one deleted, or it would delete too much.
    connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
    return bool(connection.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({_ADVISORY_LOCK})").scalar_one())


def _prune(
    connection: sa.Connection, limits: Limits, now: dt.datetime, batch: int, gone_until: dt.datetime | None
) -> Pruned:
    if not limits.days and not limits.store_bytes:
        return Pruned()
    used = used_bytes(connection) if limits.store_bytes else None
    oldest_kept = _oldest_kept(connection, limits, now)
    is_over = used is not None and used > limits.store_bytes
    if has_days(connection) and (is_over or oldest_kept):
        excess = max(0, used - limits.store_bytes) if used is not None else 0
        dropped = _drop_oldest_day(connection, oldest_kept, excess, utc_day(now))
        if dropped is not None:
            return dataclasses.replace(dropped, used_bytes=used)
    found = _oldest_plans(connection, None if is_over else oldest_kept, batch) if is_over or oldest_kept else []
    for run_id, first, last in consecutive((run_id, fence) for run_id, fence, _ in found):
        _delete_plans(connection, run_id, first, last)
    until = max([at for _, _, at in found] + [at for at in (oldest_kept, gone_until) if at is not None], default=None)
    runs = sorted({run_id for run_id, _, _ in found}) or _runs_with_old_log(connection)
    return Pruned(
        plans=len(found),
        requests=_delete_requests(connection, until, batch) if until is not None else 0,
        log_rows=sum(_delete_log(connection, run_id, batch) for run_id in runs),
        minutes=_delete_minutes(connection, now, limits.days),
        used_bytes=used,
    )


def _oldest_kept(bind: sa.Connection, limits: Limits, now: dt.datetime) -> dt.datetime | None:
    """Since when plans are kept by their age, None without such a limit; on PostgreSQL a day's first moment."""
    if not limits.days:
        return None
    since = now - dt.timedelta(days=limits.days)
    return start_of(utc_day(since)) if has_days(bind) else since


def _drop_oldest_day(
    connection: sa.Connection, oldest_kept: dt.datetime | None, excess: int, today: dt.date
) -> Pruned | None:
    """Drop the partitions of the oldest day that may go whole: one that is too old, or no larger than the excess.

    None when there is none, or none without a plan that stays. Yesterday's and today's are never dropped, as the
    recorder may still write to them. Raises StoreBusy's cause when somebody reads or writes.
    """
    for number, day in enumerate(partitions.days_with_partitions(connection)):
        is_old = oldest_kept is not None and start_of(day + _DAY) <= oldest_kept
        if day >= today - _DAY or not (is_old or (number == 0 and excess)):
            return None
        if not is_old and bytes_of_day(connection, day) > excess:
            return None
        if _holds_protected(connection, day):
            continue
        partitions.lock_for_dropping(connection)
        if _holds_protected(connection, day):  # somebody was faster
            continue
        plans_gone = partitions.count_plans(connection, day)
        if partitions.drop_day(connection, day):
            return Pruned(plans=plans_gone, dropped=day)
    return None


def _holds_protected(connection: sa.Connection, day: dt.date) -> bool:
    """Whether a plan of this day stays."""
    found = sa.select(plans.c.fence).where(RECORDED_ON.in_([day]), _protected(connection)).limit(1)
    return connection.execute(found).first() is not None


def plans_to_delete(engine: sa.Engine, limits: Limits, now: dt.datetime) -> int:
    """About how many plans the limits cost, for a progress bar. Raises StoreError."""
    count = sa.select(sa.func.count()).select_from(plans)
    with read_transaction(engine) as connection:
        used = used_bytes(connection) if limits.store_bytes else 0
        oldest_kept = _oldest_kept(connection, limits, now)
        by_age = 0
        if oldest_kept is not None:
            by_age = connection.execute(count.where(plans.c.committed_at < oldest_kept)).scalar_one()
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
    query = sa.select(plans.c.run_id, plans.c.fence, plans.c.committed_at).where(sa.not_(_protected(connection)))
    if before is not None:
        query = query.where(plans.c.committed_at < before)
    order = (plans.c.committed_at, plans.c.run_id, plans.c.fence)
    return [tuple(row) for row in connection.execute(query.order_by(*order).limit(most))]


def _protected(connection: sa.Connection) -> sa.ColumnElement[bool]:
    """The condition of a plan that stays whatever the limits: in flight, or among the last of an open run."""
    stays: list[sa.ColumnElement[bool]] = [plans.c.outcome == "in_flight"]
    open_runs = connection.execute(sa.select(engine_runs.c.run_id).where(engine_runs.c.ended_at.is_(None))).scalars()
    for run_id in open_runs.all():
        newest = connection.execute(sa.select(sa.func.max(plans.c.fence)).where(plans.c.run_id == run_id)).scalar_one()
        if newest is not None:
            stays.append(sa.and_(plans.c.run_id == run_id, plans.c.fence > newest - PLANS_KEPT))
    return sa.or_(*stays)


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


def _delete_log(connection: sa.Connection, run_id: str, most: int) -> int:
    """Up to `most` rows before the checkpoint that the run's oldest plan is re-executed from; of a run without plans,
    of all its rows.
    """
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
    calls = connection.execute(old.order_by(log.first_call).limit(most)).scalars().all()
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
