"""What the scheduler learned and what that cost: acceptance of drafts, forecasts, ledgers, probes, discovered graphs.

Long spans are read from the roll-up; drafts are those of the newest MAX_ROUNDS plans that verified any.
"""

from __future__ import annotations

import dataclasses
import datetime as dt

import sqlalchemy as sa

from dashboard.queries.runs import offered_runs, run_begun_before
from dashboard.score import Row
from dashboard.span import Span
from service.store.catalog import graph_label
from service.store.engines import read_transaction
from service.store.hints import among_times
from service.store.ledgers import LEDGERS, ledger_points, list_episodes, newest_ledgers
from service.store.partitions import day_of
from service.store.tables import SHAPE_COLUMNS, plan_lanes, plan_minutes, plans

MINUTE = dt.timedelta(minutes=1)
MAX_ROUNDS = 3000
MAX_EPISODES = 60
POINTS = 120
BINS = 10
EXPLORING = ("discovery", *LEDGERS)
_LONGEST = dt.timedelta(seconds=10)


@dataclasses.dataclass(frozen=True, slots=True)
class Learning:
    """One run over a span.

    `rounds`: lanes with drafts, by `source`, `offered`, `accepted` and `bin` (of the forecast share, 0 to BINS - 1),
    with `lanes` and `forecast`, the sum of forecast shares. `plans`: how many verified these. `points` and `newest`:
    ledgers; `episodes`: as service.store.ledgers gives them. `minutes`: device ms by `at` and `reason`. `graphs`:
    those discovered in the span with `shape`, `kind`, `at`, `discovery_ms`, `plans` and `ordinary_ms` of ordinary work.
    """

    run: Row | None
    runs: list[Row]
    rounds: list[Row] = dataclasses.field(default_factory=list)
    plans: int = 0
    points: list[Row] = dataclasses.field(default_factory=list)
    newest: Row | None = None
    episodes: list[Row] = dataclasses.field(default_factory=list)
    minutes: list[Row] = dataclasses.field(default_factory=list)
    graphs: list[Row] = dataclasses.field(default_factory=list)
    ordinary_ms: float = 0.0
    bin_s: float = 60.0


def read_learning(engine: sa.Engine, span: Span, run: str | None) -> Learning:
    """What a run learned in a span; by default the newest run that had begun before its end. Raises StoreError."""
    with read_transaction(engine) as connection:
        chosen = run_begun_before(connection, span.until, run)
        runs = offered_runs(connection, chosen)
        if chosen is None:
            return Learning(None, runs)
        run_id = chosen["run_id"]
        since = max(span.since, chosen["started_at"])
        until = max(since, min(span.until, chosen["ended_at"] or span.until))
        rounds, plans_ = _rounds(connection, run_id, since, until)
        step = max(MINUTE, (until - since) / POINTS)
        times = [since + step * number for number in range(int((until - since) / step) + 1)] + [until]
        minutes = _minutes(connection, run_id, since, until)
        graphs, ordinary_ms = _graphs(connection, run_id, since, until)
        newest = newest_ledgers(connection, run_id)
        return Learning(
            run=chosen,
            runs=runs,
            rounds=rounds,
            plans=plans_,
            points=list(ledger_points(connection, times, run_id)),
            newest=newest,
            episodes=list(list_episodes(connection, since, until, run=run_id, limit=MAX_EPISODES)),
            minutes=binned(minutes, since, step),
            graphs=graphs,
            ordinary_ms=ordinary_ms,
            bin_s=step.total_seconds(),
        )


def _rounds(connection: sa.Connection, run_id: str, since: dt.datetime, until: dt.datetime) -> tuple[list[Row], int]:
    start = _start_of_rounds(connection, run_id, since, until)
    if start is None:
        return [], 0
    p, lanes = plans.c, plan_lanes.c
    newest = (
        sa.select(p.run_id, p.fence, *(day.label("day") for day in day_of(connection, plans)))
        .where(
            p.committed_at >= start,
            p.committed_at < until,
            among_times(p.run_id, run_id),
            p.offered_tokens > 0,
        )
        .order_by(p.committed_at.desc(), p.run_id.desc(), p.fence.desc())
        .limit(MAX_ROUNDS)
        .cte("newest")
    )
    share = (lanes.expected_tokens - 1.0) / lanes.offered_tokens
    steps = [(share < (number + 1) / BINS, number) for number in range(BINS - 1)]
    bin_ = sa.case(*steps, else_=BINS - 1)
    source = sa.func.coalesce(lanes.proposal_source, "unknown")
    days = [newest.c.day == day for day in day_of(connection, plan_lanes)]
    groups = (source, lanes.offered_tokens, lanes.accepted_tokens, bin_)
    query = (
        sa.select(
            source.label("source"),
            lanes.offered_tokens.label("offered"),
            lanes.accepted_tokens.label("accepted"),
            bin_.label("bin"),
            sa.func.count().label("lanes"),
            sa.func.sum(share).label("forecast"),
        )
        .select_from(plan_lanes)
        .join(newest, sa.and_(newest.c.run_id == lanes.run_id, newest.c.fence == lanes.fence, *days))
        .where(lanes.offered_tokens > 0)
        .group_by(*(sa.literal_column(str(place)) for place in range(1, len(groups) + 1)))
    )
    rows: list[Row] = [dict(row) for row in connection.execute(query).mappings()]
    return rows, connection.execute(sa.select(sa.func.count()).select_from(newest)).scalar_one()


def _start_of_rounds(
    connection: sa.Connection, run_id: str, since: dt.datetime, until: dt.datetime
) -> dt.datetime | None:
    """From when on there are MAX_ROUNDS plans with a draft depth, or all of the span's; None where there is none."""
    minutes = plan_minutes.c
    query = (
        sa.select(minutes.minute, sa.func.sum(minutes.plans))
        .where(minutes.minute > since - MINUTE, minutes.minute < until, minutes.run_id == run_id)
        .where(minutes.target_width > 1)
        .group_by(minutes.minute)
        .order_by(minutes.minute.desc())
    )
    start, counted = None, 0
    for minute, number in connection.execute(query.limit(MAX_ROUNDS)).all():
        start, counted = max(since, minute - _LONGEST), counted + int(number)
        if counted >= MAX_ROUNDS:
            break
    return start


def _minutes(connection: sa.Connection, run_id: str, since: dt.datetime, until: dt.datetime) -> list[Row]:
    minutes = plan_minutes.c
    query = (
        sa.select(minutes.minute, minutes.reason, sa.func.sum(minutes.device_ms_sum).label("ms"))
        .where(minutes.minute > since - MINUTE, minutes.minute < until, minutes.run_id == run_id)
        .group_by(minutes.minute, minutes.reason)
        .order_by(minutes.minute)
    )
    return [dict(row) for row in connection.execute(query).mappings()]


def binned(minutes: list[Row], since: dt.datetime, step: dt.timedelta) -> list[Row]:
    """Device ms of minutes (`minute`, `reason`, `ms`) summed by steps from `since` on, oldest first: `at`, `reason`."""
    sums: dict[tuple[int, str], float] = {}
    for row in minutes:
        place = max(0, (row["minute"] - since) // step)
        sums[place, row["reason"]] = sums.get((place, row["reason"]), 0.0) + row["ms"]
    return [{"at": since + step * place, "reason": reason, "ms": ms} for (place, reason), ms in sorted(sums.items())]


def _graphs(connection: sa.Connection, run_id: str, since: dt.datetime, until: dt.datetime) -> tuple[list[Row], float]:
    """Graphs that were discovered, those with the most ordinary time first, and all ordinary time."""
    minutes = plan_minutes.c
    shape = [minutes[name] for name in SHAPE_COLUMNS]
    found, ordinary = minutes.reason == "discovery", minutes.reason.not_in(EXPLORING)
    query = (
        sa.select(
            *shape,
            sa.func.min(sa.case((found, minutes.minute))).label("at"),
            sa.func.sum(sa.case((found, minutes.device_ms_sum), else_=0.0)).label("discovery_ms"),
            sa.func.sum(sa.case((ordinary, minutes.device_ms_sum), else_=0.0)).label("ordinary_ms"),
            sa.func.sum(sa.case((ordinary, minutes.plans), else_=0)).label("plans"),
        )
        .where(minutes.minute > since - MINUTE, minutes.minute < until, minutes.run_id == run_id)
        .group_by(*shape)
    )
    rows = [dict(row) for row in connection.execute(query).mappings()]
    total = sum((float(row["ordinary_ms"]) for row in rows), 0.0)
    discovered = [
        {**row, "plans": int(row["plans"]), "shape": graph_label(row)} for row in rows if row["at"] is not None
    ]
    return sorted(discovered, key=lambda row: (-row["ordinary_ms"], row["shape"])), total
