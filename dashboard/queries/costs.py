"""Graph durations: how far observed ones lie from predicted ones, and how one graph's have drifted."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import sqlalchemy as sa

from dashboard.queries.driver_rows import driver_rows
from dashboard.queries.runs import offered_runs, run_begun_before
from dashboard.score import Row
from dashboard.span import Span
from service.store.catalog import GraphCatalog, graph_label, read_catalog
from service.store.engines import read_transaction
from service.store.hints import among_times
from service.store.tables import SHAPE_COLUMNS, plan_minutes, plans

MINUTE = dt.timedelta(minutes=1)
MAX_COMPARED = 10_000
"""Plans whose predicted and observed durations are compared, the newest of the span."""
MAX_OBSERVED = 40_000
"""Plans of a span up to which single observations are drawn; beyond, the roll-up's minutes are."""
MAX_POINTS = 20_000


@dataclasses.dataclass(frozen=True, slots=True)
class Costs:
    """The graphs as of the span's end, each with `median_ratio`, `p90_ratio` (observed over predicted) and `compared`.

    `compared` plans of `completed` completed ones in the span are behind the ratios.
    """

    catalog: GraphCatalog
    run: Row | None
    runs: list[Row]
    compared: int
    completed: int


@dataclasses.dataclass(frozen=True, slots=True)
class Drift:
    """One graph's durations over time.

    `rows`, oldest first, hold `at`, `least_ms`, `most_ms`, `mean_ms` and `estimate_ms` (None: it had none); of one
    observation, or of one minute where `by_minute` (least_ms is None then: the roll-up keeps the largest alone).
    """

    rows: list[Row]
    by_minute: bool
    count: int


def read_costs(engine: sa.Engine, span: Span, run: str | None) -> Costs:
    """The costs of a run, by default the newest that had begun in the span's time. Raises StoreError."""
    with read_transaction(engine) as connection:
        catalog = read_catalog(connection, run=run, since=span.since, until=span.until)
        if catalog.run_id is None:
            return Costs(catalog, None, offered_runs(connection, None), 0, 0)
        chosen = run_begun_before(connection, span.until, catalog.run_id)
        known = offered_runs(connection, chosen)
        completed = sum(row["plans"] for row in catalog.rows)
        # A run that completed nothing in this time would be looked for among all plans of the span.
        ratios = _ratios(connection, span, catalog.run_id) if completed else {}
    nothing = {"median_ratio": None, "p90_ratio": None, "compared": 0}
    rows = [{**row, **ratios.get(row["shape"], nothing)} for row in catalog.rows]
    compared = sum(row["compared"] for row in rows)
    return Costs(dataclasses.replace(catalog, rows=rows), chosen, known, compared, completed)


def _ratios(connection: sa.Connection, span: Span, run_id: str) -> dict[str, Row]:
    """By label, the median and the 90th percentile (nearest rank) of observed over predicted.

    Ranked here: window functions take the database longer than reading the MAX_COMPARED rows.
    """
    p = plans.c
    newest = (
        sa.select(*(p[name] for name in SHAPE_COLUMNS), p.device_ms / p.selected_cost_ms)
        .where(
            p.committed_at >= span.since,
            p.committed_at < span.until,
            among_times(p.run_id, run_id),
            among_times(p.outcome, "completed"),
            p.cost_state != "unknown",
            p.selected_cost_ms > 0,
        )
        .order_by(p.committed_at.desc(), p.run_id.desc(), p.fence.desc())
        .limit(MAX_COMPARED)
    )
    by_shape: dict[tuple[Any, ...], list[float]] = {}
    for *shape, ratio in driver_rows(connection, newest):
        by_shape.setdefault(tuple(shape), []).append(ratio)
    return {
        graph_label(dict(zip(SHAPE_COLUMNS, shape, strict=True))): {
            "median_ratio": _ranked(ratios, 50),
            "p90_ratio": _ranked(ratios, 90),
            "compared": len(ratios),
        }
        for shape, ratios in by_shape.items()
    }


def _ranked(values: list[float], percent: int) -> float:
    """The nearest-rank percentile: the smallest value that at least so many percent do not exceed."""
    return sorted(values)[-(-len(values) * percent // 100) - 1]


def read_drift(engine: sa.Engine, span: Span, run_id: str, shape: Row) -> Drift:
    """How the durations of one graph of a run went over the span; `shape` has the shape columns. Raises StoreError."""
    minutes = plan_minutes.c
    of_run = (minutes.minute > span.since - MINUTE, minutes.minute < span.until, minutes.run_id == run_id)
    is_it = [minutes[name] == shape[name] for name in SHAPE_COLUMNS]
    counts = sa.select(sa.func.sum(minutes.plans), sa.func.sum(sa.case((sa.and_(*is_it), minutes.plans), else_=0)))
    with read_transaction(engine) as connection:
        everything, count = (int(value or 0) for value in connection.execute(counts.where(*of_run)).one())
        if everything <= MAX_OBSERVED and count <= MAX_POINTS:
            rows = _observations(connection, span, run_id, shape)
            return Drift(rows, False, len(rows))
        return Drift(_minutes(connection, [*of_run, *is_it]), True, count)


def _observations(connection: sa.Connection, span: Span, run_id: str, shape: Row) -> list[Row]:
    p = plans.c
    sample = p.device_ms - p.exposed_delivery_ms
    query = (
        sa.select(p.completed_at, sample, p.selected_cost_ms, p.cost_state)
        .where(
            p.committed_at >= span.since,
            p.committed_at < span.until,
            among_times(p.run_id, run_id),
            among_times(p.outcome, "completed"),
            sample > 0,
            *(p[name] == shape[name] for name in SHAPE_COLUMNS),
        )
        .order_by(p.committed_at.desc(), p.run_id.desc(), p.fence.desc())
        .limit(MAX_POINTS)
    )
    rows: list[Row] = []
    for at, ms, predicted_ms, state in connection.execute(query).all():
        estimate = None if state == "unknown" else predicted_ms
        rows.append({"at": at, "least_ms": ms, "most_ms": ms, "mean_ms": ms, "estimate_ms": estimate})
    return sorted(rows, key=lambda row: row["at"])


def _minutes(connection: sa.Connection, conditions: list[Any]) -> list[Row]:
    minutes = plan_minutes.c
    ordinary = minutes.reason != "discovery"
    query = (
        sa.select(
            minutes.minute,
            sa.func.max(minutes.device_ms_max),
            sa.func.sum(minutes.device_ms_sum),
            sa.func.sum(minutes.plans),
            sa.func.sum(sa.case((ordinary, minutes.selected_cost_ms_sum))),
            sa.func.sum(sa.case((ordinary, minutes.plans))),
        )
        .where(*conditions)
        .group_by(minutes.minute)
        .order_by(minutes.minute)
    )
    return [
        {
            "at": minute,
            "least_ms": None,
            "most_ms": most,
            "mean_ms": total / int(count),
            "estimate_ms": predicted / int(known) if known and predicted else None,
        }
        for minute, most, total, count, predicted, known in connection.execute(query).all()
    ]
