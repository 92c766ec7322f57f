"""What happened beside the plans: policy changes, starts of the engine, and where the trace lacks plans."""

from __future__ import annotations

import datetime as dt

import sqlalchemy as sa

from dashboard.timeline_records import Change, Events, Hole
from service.store.tables import plans, policy_applications, policy_versions, trace_gaps

MOST_CHANGES = 60
MOST_HOLES = 40


def read_events(connection: sa.Connection, since: dt.datetime, until: dt.datetime) -> Events:
    """What happened from `since` up to `until`."""
    applied = policy_applications.c
    within = (applied.applied_at >= since, applied.applied_at < until)
    count = connection.execute(sa.select(sa.func.count()).select_from(policy_applications).where(*within)).scalar_one()
    query = sa.select(
        applied.applied_at, applied.version, applied.run_id, applied.fence, policy_versions.c.actor
    ).select_from(policy_applications.outerjoin(policy_versions, policy_versions.c.version == applied.version))
    rows = connection.execute(query.where(*within).order_by(applied.applied_at.desc()).limit(MOST_CHANGES)).all()
    changes = [Change(row.applied_at, int(row.version), row.run_id, row.fence == 0, row.actor) for row in rows]
    return Events(changes[::-1], int(count), _holes(connection, since, until))


def _holes(connection: sa.Connection, since: dt.datetime, until: dt.datetime) -> list[Hole]:
    at = trace_gaps.c.noticed_at
    # A hole is noticed in its time or later: after an old span, the first ones to be noticed are the nearest to it.
    during = sa.select(trace_gaps).where(at >= since, at < until).order_by(at.desc()).limit(MOST_HOLES * 4)
    later = sa.select(trace_gaps).where(at >= until).order_by(at).limit(MOST_HOLES * 4)
    found = []
    for row in (*connection.execute(during).all(), *connection.execute(later).all()):
        if row.reason[:1].isdigit() and "span" in row.reason:
            continue  # spans that a collector never got: the rows are whole
        hole = _hole(connection, row)
        if hole.since < until and hole.until >= since:
            found.append(hole)
    return sorted(found[:MOST_HOLES], key=lambda hole: hole.since)


def _hole(connection: sa.Connection, row: sa.Row[tuple[object, ...]]) -> Hole:
    """Between the plans before and behind the missing ones, as far as these are stored."""
    at, count = row.noticed_at, None
    if row.run_id is None or row.from_fence is None or row.to_fence is None:
        return Hole(at, at, count, row.reason)
    of_run = plans.c.run_id == row.run_id
    before = sa.select(plans.c.committed_at).where(of_run, plans.c.fence < row.from_fence)
    behind = sa.select(plans.c.committed_at).where(of_run, plans.c.fence > row.to_fence)
    first = connection.execute(before.order_by(plans.c.fence.desc()).limit(1)).scalar()
    last = connection.execute(behind.order_by(plans.c.fence).limit(1)).scalar()
    return Hole(first or last or at, last or at, int(row.to_fence - row.from_fence + 1), row.reason)
