"""Engine runs in the store: their clocks, placeholders for runs whose start is missing, and their end.

A run's end is written from what the store holds and not from memory, so a recorder that was restarted at any
point writes the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from service.journal.reader import Batch
from service.journal.records import PlanCompleted, Record, RunStarted
from service.recorder.clock import RunClock
from service.store.tables import engine_runs, plan_lanes, plans, requests, trace_gaps

LOST = "lost"
REQUEST_ERROR = "engine lost"
_LAST_PLANS = 200


def clock_in(batches: list[Batch]) -> RunClock | None:
    """The clock that a RunStarted among the batches gives, or None."""
    for batch in batches:
        for record in batch.records:
            if isinstance(record, RunStarted):
                return RunClock(record.wall_ns, record.monotonic_ns)
    return None


def stored_clock(connection: sa.Connection, run_id: str) -> RunClock | None:
    """The clock of a run that the store knows, or None."""
    found = stored_run(connection, run_id)
    return None if found is None else found.clock


class StoredRun(NamedTuple):
    """A run as the store knows it; `about` is its version, host, model and device."""

    clock: RunClock
    about: tuple[str, str, str, str]


def stored_run(connection: sa.Connection, run_id: str) -> StoredRun | None:
    """A run's clock and what is known about it, or None."""
    table = engine_runs
    row = connection.execute(
        sa.select(
            table.c.started_wall_ns,
            table.c.started_monotonic_ns,
            table.c.version,
            table.c.host,
            table.c.model,
            table.c.device,
        ).where(table.c.run_id == run_id)
    ).one_or_none()
    return None if row is None else StoredRun(RunClock(row[0], row[1]), (row[2], row[3], row[4], row[5]))


def insert_placeholder(connection: sa.Connection, run_id: str, clock: RunClock) -> None:
    """A row for a run whose start is missing from the journal, so that its plans have a run and a clock."""
    connection.execute(
        engine_runs.insert().values(
            run_id=run_id,
            started_at=clock.aware(clock.monotonic_ns),
            host="unknown",
            version="unknown",
            model="unknown",
            device="unknown",
            catalog_digest="unknown",
            settings={},
            started_wall_ns=clock.wall_ns,
            started_monotonic_ns=clock.monotonic_ns,
        )
    )


def close_run(
    connection: sa.Connection, run_id: str, clock: RunClock, ended_ns: int | None = None, reason: str = LOST
) -> None:
    """End a run that has not ended: plans in flight are lost, unfinished requests end with an error.

    `ended_ns` is monotonic; None means the last time that the store knows of the run. Idempotent.
    """
    run = engine_runs.c.run_id == run_id
    if connection.execute(sa.select(engine_runs.c.run_id).where(run, engine_runs.c.ended_at.is_(None))).first() is None:
        return
    ended_at = clock.aware(ended_ns) if ended_ns is not None else _last_known(connection, run_id, clock)
    connection.execute(
        plans.update().where(plans.c.run_id == run_id, plans.c.outcome == "in_flight").values(outcome="lost")
    )
    produced = (
        sa.select(sa.func.coalesce(sa.func.sum(plan_lanes.c.committed_tokens), 0))
        .where(plan_lanes.c.run_id == requests.c.run_id, plan_lanes.c.request_id == requests.c.request_id)
        .scalar_subquery()
    )
    connection.execute(
        requests.update()
        .where(requests.c.run_id == run_id, requests.c.finish_reason.is_(None))
        .values(finish_reason="error", error=REQUEST_ERROR, finished_at=ended_at, output_tokens=produced)
    )
    connection.execute(engine_runs.update().where(run).values(ended_at=ended_at, end_reason=reason))


def has_gaps(connection: sa.Connection, run_id: str) -> bool:
    """Whether records of this run are known to be missing."""
    query = sa.select(trace_gaps.c.id).where(trace_gaps.c.run_id == run_id).limit(1)
    return connection.execute(query).first() is not None


def lose_overtaken(connection: sa.Connection, run_id: str, records: Sequence[Record]) -> None:
    """Plans that are in flight behind one of the completions in `records` are lost: frames complete in order, so the
    record of their end is among those that are missing. Idempotent.
    """
    fence = max((record.fence for record in records if isinstance(record, PlanCompleted)), default=0)
    if fence:
        overtaken = (plans.c.run_id == run_id, plans.c.outcome == "in_flight", plans.c.fence < fence)
        connection.execute(plans.update().where(*overtaken).values(outcome=LOST))


def last_fence(connection: sa.Connection, run_id: str | None) -> int | None:
    """The highest fence that the store holds of a run."""
    fence: int | None = connection.execute(
        sa.select(sa.func.max(plans.c.fence)).where(plans.c.run_id == run_id)
    ).scalar_one()
    return fence


def _last_known(connection: sa.Connection, run_id: str, clock: RunClock) -> Any:
    """The latest wall time among the run's start, its requests and its last plans."""
    recent = (
        sa.select(plans.c.committed_ns, plans.c.completed_ns)
        .where(plans.c.run_id == run_id)
        .order_by(plans.c.fence.desc())
        .limit(_LAST_PLANS)
    )
    times = [clock.aware(ns) for row in connection.execute(recent) for ns in row if ns is not None]
    columns = (requests.c.arrived_at, requests.c.admitted_at, requests.c.first_output_at, requests.c.finished_at)
    latest = connection.execute(sa.select(*map(sa.func.max, columns)).where(requests.c.run_id == run_id)).one()
    return max([clock.aware(clock.monotonic_ns), *times, *(time for time in latest if time is not None)])
