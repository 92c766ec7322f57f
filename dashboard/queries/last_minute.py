"""What the last minute holds, read once for the overview's tiles and the timeline's sentences.

Every read is bounded by an index to about that minute, or to what is unfinished.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import sqlalchemy as sa

from dashboard.queries.latencies import Latencies, joined, read_latencies
from service.store.tables import plan_lanes, plans, requests

MINUTE = dt.timedelta(minutes=1)
LONGEST = dt.timedelta(minutes=10)
"""Requests that arrived earlier than this and have ended are not looked for: no index finds them by their times."""
MOST = 5000
"""Of requests that are looked at: the newest."""
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Waiting:
    """Requests of the running engine that have been in no graph; `oldest_at` is None without any."""

    count: int = 0
    oldest_at: dt.datetime | None = None
    oldest_id: str | None = None


def plan_groups(connection: sa.Connection, now: dt.datetime) -> list[Row]:
    """The plans that were committed in the minute, by kind, reason and policy version.

    `plans`, `busy_ms` (device time), `prompt_tokens` (consumed) and `output_tokens` (committed) are sums.
    """
    p = plans.c
    keys = (p.kind, p.reason, p.policy_version)
    sums = {"busy_ms": p.device_ms, "prompt_tokens": p.prompt_tokens, "output_tokens": p.output_tokens}
    summed = (sa.func.sum(column).label(name) for name, column in sums.items())
    query = sa.select(*keys, sa.func.count().label("plans"), *summed)
    query = query.where(p.committed_at >= now - MINUTE, p.committed_at <= now).group_by(*keys)
    rows = connection.execute(query.order_by(*keys)).mappings()
    return [
        {
            **row,
            "busy_ms": float(row["busy_ms"] or 0),
            "prompt_tokens": int(row["prompt_tokens"] or 0),
            "output_tokens": int(row["output_tokens"] or 0),
        }
        for row in rows
    ]


def first_outputs(connection: sa.Connection, now: dt.datetime) -> Latencies:
    """The requests whose first output came in the minute; those that still run however early they arrived."""
    arrived, at = requests.c.arrived_at, requests.c.first_output_at
    recent = [arrived >= now - LONGEST, arrived <= now, at >= now - MINUTE]
    # Written so that the index of unfinished requests is used, not the one by arrival.
    older = [requests.c.finished_at.is_(None), sa.func.coalesce(arrived, arrived) < now - LONGEST, at >= now - MINUTE]
    return joined(read_latencies(connection, recent, MOST), read_latencies(connection, older, MOST))


def latencies_of_ended(connection: sa.Connection, now: dt.datetime) -> Latencies:
    """The requests that ended in the minute."""
    arrived = requests.c.arrived_at
    within = [arrived >= now - LONGEST, arrived <= now, requests.c.finished_at >= now - MINUTE]
    return read_latencies(connection, within, MOST)


def waiting_requests(connection: sa.Connection, run_id: str) -> Waiting:
    """The requests of a run that have been in no graph."""
    # The empty text keeps SQLite from its first thought, to look through all lanes of the run by their primary key.
    lane = (plan_lanes.c.request_id == requests.c.request_id, plan_lanes.c.run_id.concat("") == requests.c.run_id)
    served = sa.exists().where(*lane)
    unserved = (requests.c.run_id == run_id, requests.c.finished_at.is_(None), sa.not_(served))
    columns = (requests.c.request_id, requests.c.arrived_at, sa.func.count().over().label("waiting"))
    query = sa.select(*columns).where(*unserved).order_by(requests.c.arrived_at).limit(1)
    oldest = connection.execute(query).one_or_none()
    return Waiting() if oldest is None else Waiting(oldest.waiting, oldest.arrived_at, oldest.request_id)
