"""One request's life: its plans in order, and who was served while it waited for the next one.

Everything is found by the request's own lanes; what ran meanwhile is read by the fences and times between two of them.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from typing import Any

import sqlalchemy as sa

from dashboard.score import Row
from dashboard.waits import Clock, Wait, find_waits
from service.store.engines import read_transaction
from service.store.hints import among_times
from service.store.partitions import day_of, same_day
from service.store.queries import get_request
from service.store.tables import engine_runs, plan_alternatives, plan_lanes, plans
from service.store.types import BIG

MAX_LANES = 5000
"""Plans of one request that are looked at; the first ones where there are more."""
MAX_PLANS_PER_WAIT = 5000
MOST_SERVED = 8
MOST_RIVALS = 5000
_LANE = tuple(
    plan_lanes.c[name]
    for name in (
        *("fence", "lane", "role", "prompt_tokens", "committed_tokens", "offered_tokens", "accepted_tokens"),
        *("proposal_source", "delivered", "published_ns", "age_ms", "lane_value"),
    )
)
_SHAPE = ("kind", "batch_capacity", "draft_depth", "target_width", "target_rows", "prefill_capacity", "prompt_rows")
_PLAN = tuple(
    plans.c[name]
    for name in (
        *("run_id", "committed_at", "committed_ns", "started_ns", "completed_ns", "reason", "outcome"),
        *("policy_version", "active_rows", "device_ms", "selected_cost_ms", "cost_state", *_SHAPE),
    )
)


@dataclasses.dataclass(frozen=True, slots=True)
class Meanwhile:
    """What the device did in a wait.

    `groups`: (kind, reason) with `plans`, `ms` (of their device time inside the wait), `requests` (others that were
    served), `prompt_tokens`, `output_tokens`. `served`: requests with `role`, `plans`, `ms`, `prompt_tokens`,
    `committed_tokens`, by ms; `others`: how many there are beside these. `rivals`: for each plan with a recorded
    runner-up that would have served this request the best such one, with the winner's kind, reason, score and ms.
    `capped`: there were more plans than are counted.
    """

    wait: Wait
    groups: list[Row]
    served: list[Row]
    others: int
    rivals: list[Row]
    plans: int
    capped: bool

    @property
    def busy_ms(self) -> float:
        """Device time of other plans inside the wait; two that overlap count twice."""
        return sum((float(group["ms"]) for group in self.groups), 0.0)

    @property
    def idle_ms(self) -> float:
        """The rest of the wait, in which no plan ran."""
        return max(0.0, self.wait.ms - self.busy_ms)


@dataclasses.dataclass(frozen=True, slots=True)
class Life:
    """The `requests` row, its lanes with their plans by fence, and its longest waits, of `all_waits` that count.

    `arrived_ns` is its arrival on the run's monotonic clock; `more_lanes`: it had more plans than are looked at.
    """

    request: Row
    lanes: list[Row]
    more_lanes: bool
    arrived_ns: int
    waits: list[Meanwhile]
    all_waits: int


def read_life(engine: sa.Engine, run_id: str, request_id: str, now: dt.datetime) -> Life | None:
    """The request's life up to `now`, or None when it is not stored. Raises StoreError."""
    with read_transaction(engine) as connection:
        request = get_request(connection, run_id, request_id)
        if request is None:
            return None
        lanes = _lanes(connection, request)
        more, lanes = len(lanes) > MAX_LANES, lanes[:MAX_LANES]
        clock = _clock(connection, request, lanes)
        waits, count = find_waits(request, lanes, clock, now)
        found = [_meanwhile(connection, request, wait) for wait in waits]
        return Life(request, lanes, more, clock.ns_of(request["arrived_at"]), found, count)


def _clock(connection: sa.Connection, request: Row, lanes: list[Row]) -> Clock:
    """Both clocks at the request's first plan; at the run's start where it has none."""
    if lanes:
        return Clock(lanes[0]["committed_at"], lanes[0]["committed_ns"])
    query = sa.select(engine_runs.c.started_at, engine_runs.c.started_monotonic_ns)
    run = connection.execute(query.where(engine_runs.c.run_id == request["run_id"])).one_or_none()
    return Clock(request["arrived_at"], 0) if run is None else Clock(run[0], run[1])


def _lanes(connection: sa.Connection, request: Row) -> list[Row]:
    query = (
        sa.select(*_LANE, *_PLAN)
        .select_from(plan_lanes)
        .join(
            plans,
            sa.and_(
                plans.c.run_id == plan_lanes.c.run_id,
                plans.c.fence == plan_lanes.c.fence,
                *same_day(connection, plans, plan_lanes),
            ),
        )
        .where(plan_lanes.c.request_id == request["request_id"], plan_lanes.c.run_id == request["run_id"])
        .order_by(plan_lanes.c.fence, plan_lanes.c.lane)
        .limit(MAX_LANES + 1)
    )
    return [dict(row) for row in connection.execute(query).mappings()]


def _meanwhile(connection: sa.Connection, request: Row, wait: Wait) -> Meanwhile:
    inside = _inside(connection, request, wait)
    ms = (inside.c.ended_ns - inside.c.begun_ns) / 1e6
    count, longest = sa.func.count(), sa.func.sum(ms)
    groups = (
        sa.select(
            inside.c.kind,
            inside.c.reason,
            count.label("plans"),
            longest.label("ms"),
            sa.func.sum(inside.c.prompt_tokens).label("prompt_tokens"),
            sa.func.sum(inside.c.output_tokens).label("output_tokens"),
        )
        .group_by(inside.c.kind, inside.c.reason)
        .order_by(longest.desc(), inside.c.kind, inside.c.reason)
    )
    found = [_whole(row) for row in connection.execute(groups).mappings()]
    served, others = _served(connection, request, inside)
    requests = _requests_by_group(connection, request, inside)
    found = [{**row, "requests": requests.get((row["kind"], row["reason"]), 0)} for row in found]
    total = sum(group["plans"] for group in found)
    return Meanwhile(
        wait, found, served, others, _rivals(connection, request, inside), total, total >= MAX_PLANS_PER_WAIT
    )


def _inside(connection: sa.Connection, request: Row, wait: Wait) -> sa.CTE:
    """The plans that ran in a wait, with the part of their device time that lies in it."""
    p = plans.c
    start, end, run_id = wait.start_ns, wait.end_ns, request["run_id"]
    query = (
        sa.select(
            *(p[name] for name in ("run_id", "fence", "kind", "reason", "prompt_tokens", "output_tokens")),
            *(p[name] for name in ("score_kind", "value_rate", *_SHAPE[1:])),
            *(day.label("day") for day in day_of(connection, plans)),
            sa.case((p.started_ns < start, sa.literal(start, BIG)), else_=p.started_ns).label("begun_ns"),
            sa.case((p.completed_ns > end, sa.literal(end, BIG)), else_=p.completed_ns).label("ended_ns"),
        )
        .where(
            p.run_id == run_id if wait.after is not None else among_times(p.run_id, run_id),
            # Frames run in the order of their fences. Times too, since they name the days and a first fence is unknown.
            *([p.fence > wait.after] if wait.after is not None else []),
            *([p.fence < wait.before] if wait.before is not None else []),
            p.committed_at >= wait.since,
            p.committed_at < wait.ends,
            p.started_ns < end,
            p.completed_ns > start,
        )
        .order_by(p.committed_at, p.run_id, p.fence)
        .limit(MAX_PLANS_PER_WAIT)
    )
    return query.cte("inside")


def _served(connection: sa.Connection, request: Row, inside: sa.CTE) -> tuple[list[Row], int]:
    """The requests that were served, those with the most device time first, and how many there are beside them."""
    lanes = plan_lanes.c
    ms = sa.func.sum((inside.c.ended_ns - inside.c.begun_ns) / 1e6)
    days = [inside.c.day == day for day in day_of(connection, plan_lanes)]
    by_request = (
        sa.select(
            lanes.request_id,
            lanes.role,
            sa.func.count().label("plans"),
            ms.label("ms"),
            sa.func.sum(lanes.prompt_tokens).label("prompt_tokens"),
            sa.func.sum(lanes.committed_tokens).label("committed_tokens"),
        )
        .select_from(plan_lanes)
        .join(inside, sa.and_(inside.c.run_id == lanes.run_id, inside.c.fence == lanes.fence, *days))
        .where(lanes.request_id != request["request_id"])
        .group_by(lanes.request_id, lanes.role)
        .cte("by_request")
    )
    query = sa.select(by_request).order_by(by_request.c.ms.desc(), by_request.c.request_id).limit(MOST_SERVED)
    rows = [_whole(row) for row in connection.execute(query).mappings()]
    everyone = connection.execute(sa.select(sa.func.count(by_request.c.request_id.distinct()))).scalar_one()
    return rows, max(0, everyone - len({row["request_id"] for row in rows}))


def _requests_by_group(connection: sa.Connection, request: Row, inside: sa.CTE) -> dict[tuple[str, str], int]:
    """How many other requests the plans of each kind and reason served."""
    lanes = plan_lanes.c
    days = [inside.c.day == day for day in day_of(connection, plan_lanes)]
    query = (
        sa.select(inside.c.kind, inside.c.reason, sa.func.count(lanes.request_id.distinct()))
        .select_from(inside)
        .join(plan_lanes, sa.and_(inside.c.run_id == lanes.run_id, inside.c.fence == lanes.fence, *days))
        .where(lanes.request_id != request["request_id"])
        .group_by(inside.c.kind, inside.c.reason)
    )
    return {(kind, reason): number for kind, reason, number in connection.execute(query).all()}


def _rivals(connection: sa.Connection, request: Row, inside: sa.CTE) -> list[Row]:
    """The best runner-up of each plan that would have served this request."""
    other = plan_alternatives.c
    name = json.dumps(request["request_id"])
    days = [inside.c.day == day for day in day_of(connection, plan_alternatives)]
    query = (
        sa.select(
            *(other[column] for column in ("fence", "rank", "barred_by", "score_kind", "value_rate", *_SHAPE)),
            inside.c.kind.label("won_kind"),
            inside.c.reason.label("won_reason"),
            inside.c.score_kind.label("won_score_kind"),
            inside.c.value_rate.label("won_value_rate"),
            ((inside.c.ended_ns - inside.c.begun_ns) / 1e6).label("ms"),
        )
        .select_from(plan_alternatives)
        .join(inside, sa.and_(inside.c.run_id == other.run_id, inside.c.fence == other.fence, *days))
        .where(sa.cast(other.request_ids, sa.Text).contains(name, autoescape=True))
        .order_by(other.fence, other.rank)
        .limit(MOST_RIVALS)
    )
    best: dict[int, Row] = {}
    for row in connection.execute(query).mappings():
        best.setdefault(row["fence"], dict(row))
    return list(best.values())


def _whole(row: Any) -> Row:
    """A row of sums as Python numbers: PostgreSQL's sums of bigint are decimals."""
    whole = ("plans", "prompt_tokens", "output_tokens", "committed_tokens")
    numbers = {name: int(row[name]) for name in whole if name in row}
    return {**row, **numbers, "ms": float(row["ms"])}
