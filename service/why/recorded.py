"""What the store holds of a plan and its run: the rows that an explanation starts from."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import sqlalchemy as sa

from service.store.engines import read_transaction
from service.store.filters import time_range
from service.store.queries import PlanDetail, get_plan
from service.store.tables import engine_runs, plan_alternatives, plan_lanes, plans, policy_versions
from service.why.errors import NotRecorded

_NAME = re.compile(r"(?P<run>.+)/(?P<fence>[0-9]{1,18})\Z")
_RANGE = re.compile(r"(?P<run>[^/]+)(?:/(?P<first>[0-9]{1,18})\.\.(?P<last>[0-9]{1,18}))?\Z")


class FenceName(NamedTuple):
    """RUN/FENCE."""

    run_id: str
    fence: int


class FenceRange(NamedTuple):
    """RUN/A..B, both included; without numbers all of the run."""

    run_id: str
    first: int = 1
    last: int = 2**63 - 1


def parse_name(text: str) -> FenceName:
    """RUN/FENCE. Raises ValueError."""
    found = _NAME.match(text)
    if found is None:
        raise ValueError(f"{text!r} names no plan; write RUN/FENCE, as in run-1/42")
    return FenceName(found["run"], int(found["fence"]))


def parse_range(text: str) -> FenceRange:
    """RUN/A..B, or RUN. Raises ValueError."""
    found = _RANGE.match(text)
    if found is None or (found["first"] and int(found["first"]) > int(found["last"])):
        raise ValueError(f"{text!r} names no range of plans; write RUN/A..B, as in run-1/40..60, or RUN")
    return FenceRange(found["run"], *(int(found[name]) for name in ("first", "last") if found[name]))


def recorded_plan(engine: sa.Engine, name: FenceName) -> PlanDetail:
    """The plan with lanes and runner-ups. Raises NotRecorded and StoreError."""
    found = get_plan(engine, name.run_id, name.fence)
    if found is not None:
        return found
    of_run = plans.c.run_id == name.run_id
    bounds = sa.select(sa.func.min(plans.c.fence), sa.func.max(plans.c.fence)).where(of_run)
    with read_transaction(engine) as connection:
        first, last = connection.execute(bounds).one()
        runs = connection.execute(
            sa.select(engine_runs.c.run_id).order_by(engine_runs.c.started_at.desc()).limit(3)
        ).scalars()
        newest = list(runs)
    if first is None:
        known = f"the newest runs are {', '.join(newest)}" if newest else "there is no run at all"
        raise NotRecorded(f"there is no plan of a run {name.run_id}; {known}")
    raise NotRecorded(f"there is no plan {name.fence} of run {name.run_id} here, only fences {first} to {last}")


def last_fence(engine: sa.Engine, wanted: FenceRange) -> int | None:
    """The highest fence of the range that the store has a plan of."""
    of_range = (plans.c.run_id == wanted.run_id) & plans.c.fence.between(wanted.first, wanted.last)
    with read_transaction(engine) as connection:
        found: int | None = connection.execute(sa.select(sa.func.max(plans.c.fence)).where(of_range)).scalar_one()
    return found


def ranges_between(engine: sa.Engine, since: str | None, until: str | None) -> list[tuple[FenceRange, int]]:
    """Runs with plans committed from `since` (included) to `until` (excluded), oldest first: their fences, and how many
    plans. Raises InvalidFilter and StoreError.
    """
    first, last = time_range(since, until)
    at, fence = plans.c.committed_at, plans.c.fence
    columns = (plans.c.run_id, sa.func.min(fence), sa.func.max(fence), sa.func.count())
    query = sa.select(*columns).group_by(plans.c.run_id).order_by(sa.func.min(at))
    query = query if first is None else query.where(at >= first)
    query = query if last is None else query.where(at < last)
    with read_transaction(engine) as connection:
        return [(FenceRange(*row[:3]), row[3]) for row in connection.execute(query)]


def recorded_run(engine: sa.Engine, run_id: str) -> dict[str, Any]:
    """The row of engine_runs, empty without one."""
    with read_transaction(engine) as connection:
        row = connection.execute(sa.select(engine_runs).where(engine_runs.c.run_id == run_id)).mappings().one_or_none()
    return {} if row is None else dict(row)


def recorded_policy(engine: sa.Engine, version: int) -> str | None:
    """A policy version's preset, or else the token budget that it plans by; None where it has neither, or no row."""
    query = sa.select(policy_versions.c.preset, policy_versions.c.token_budget).where(
        policy_versions.c.version == version
    )
    with read_transaction(engine) as connection:
        row = connection.execute(query).one_or_none()
    if row is None:
        return None
    preset: str | None = row.preset
    return preset or (f"token_budget {row.token_budget}" if row.token_budget else None)


def recorded_plans(engine: sa.Engine, run_id: str, first: int, last: int) -> dict[int, PlanDetail]:
    """The plans with fences from `first` to `last`, by fence."""

    def rows(connection: sa.Connection, table: sa.Table, order: sa.Column[Any]) -> list[dict[str, Any]]:
        within = sa.and_(table.c.run_id == run_id, table.c.fence.between(first, last))
        query = sa.select(table).where(within).order_by(table.c.fence, order)
        return [dict(row) for row in connection.execute(query).mappings()]

    with read_transaction(engine) as connection:
        details = {row["fence"]: PlanDetail(row, [], []) for row in rows(connection, plans, plans.c.fence)}
        for row in rows(connection, plan_lanes, plan_lanes.c.lane):
            if row["fence"] in details:
                details[row["fence"]].lanes.append(row)
        for row in rows(connection, plan_alternatives, plan_alternatives.c.rank):
            if row["fence"] in details:
                details[row["fence"]].alternatives.append(row)
    return details
