"""The requests of a span, a page at a time: filtered, ordered and cut by the database."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import sqlalchemy as sa

from dashboard.span import Span
from service.store.engines import read_transaction
from service.store.epoch import micros
from service.store.queries import FINISHES, RUNNING
from service.store.tables import engine_runs, requests
from service.store.types import by_bytes

PAGE_SIZE = 100
MOST_PAGES = 10_000
MOST_CHOICES = 50
# Of so many of the newest requests the models are listed; there is no index by model.
NEWEST_FOR_MODELS = 20_000
ORDERS = {"newest": "Newest first", "first": "Slowest first token", "whole": "Longest in all"}
DEFAULT_ORDER = "newest"
COLUMNS = (
    *("run_id", "request_id", "model", "arrived_at", "admitted_at", "first_output_at", "finished_at"),
    *("prompt_tokens", "cached_tokens", "output_tokens", "finish_reason", "error", "preemptions"),
    *("queue_ms", "tokenize_ms", "prefill_ms", "decode_ms", "publish_ms"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """What the page asks for. `text` is a part of a request's id in any case; None stands for all of them."""

    span: Span
    text: str | None = None
    model: str | None = None
    finish: str | None = None
    run: str | None = None
    order: str = DEFAULT_ORDER
    page: int = 1

    @property
    def is_filtered(self) -> bool:
        """Whether anything but the span is asked for."""
        return any(value is not None for value in (self.text, self.model, self.finish, self.run))


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """One page of requests with COLUMNS, `first_ms` and `whole_ms`, and how many there are on all pages."""

    rows: list[dict[str, Any]]
    total: int
    models: list[str]
    runs: list[dict[str, Any]]


def read_requests(engine: sa.Engine, wanted: Wanted) -> Found:
    """The page that is asked for, and what the filters can choose. Raises StoreError."""
    columns = requests.c
    chosen = _conditions(wanted)
    query = sa.select(*(columns[name] for name in COLUMNS)).where(*chosen).order_by(*_order(engine, wanted.order))
    query = query.limit(PAGE_SIZE).offset((wanted.page - 1) * PAGE_SIZE)
    newest = (
        sa.select(columns.model)
        .where(columns.arrived_at >= wanted.span.since, columns.arrived_at < wanted.span.until)
        .order_by(columns.arrived_at.desc())
        .limit(NEWEST_FOR_MODELS)
        .subquery()
    )
    runs = sa.select(engine_runs.c.run_id, engine_runs.c.started_at, engine_runs.c.model)
    with read_transaction(engine) as connection:
        rows = [dict(row) for row in connection.execute(query).mappings()]
        total = connection.execute(sa.select(sa.func.count()).select_from(requests).where(*chosen)).scalar_one()
        models = connection.execute(sa.select(newest.c.model).distinct().limit(MOST_CHOICES)).scalars().all()
        known = connection.execute(runs.order_by(engine_runs.c.started_at.desc()).limit(MOST_CHOICES)).mappings().all()
    return Found([_timed(row) for row in rows], total, sorted(models), [dict(row) for row in known])


def _conditions(wanted: Wanted) -> list[sa.ColumnElement[bool]]:
    columns = requests.c
    chosen: list[sa.ColumnElement[bool]] = [
        columns.arrived_at >= wanted.span.since,
        columns.arrived_at < wanted.span.until,
    ]
    if wanted.text is not None:
        chosen.append(sa.func.lower(columns.request_id).contains(wanted.text.lower(), autoescape=True))
    if wanted.model is not None:
        chosen.append(columns.model == wanted.model)
    if wanted.run is not None:
        chosen.append(columns.run_id == wanted.run)
    if wanted.finish == RUNNING:
        chosen.append(columns.finish_reason.is_(None))
    elif wanted.finish in FINISHES:
        chosen.append(columns.finish_reason == wanted.finish)
    return chosen


def _order(engine: sa.Engine, order: str) -> list[sa.ColumnElement[Any]]:
    columns = requests.c
    newest: list[sa.ColumnElement[Any]] = [
        columns.arrived_at.desc(),
        by_bytes(columns.run_id).desc(),
        by_bytes(columns.request_id).desc(),
    ]
    ends = {"first": columns.first_output_at, "whole": columns.finished_at}
    if order not in ends:
        return newest
    end = ends[order]
    elapsed = micros(engine, end) - micros(engine, columns.arrived_at)
    # Without an end yet it is not known how slow it is: these come last.
    return [sa.case((end.is_(None), 1), else_=0), elapsed.desc(), *newest]


def _timed(row: dict[str, Any]) -> dict[str, Any]:
    return row | {
        "first_ms": elapsed_ms(row["arrived_at"], row["first_output_at"]),
        "whole_ms": elapsed_ms(row["arrived_at"], row["finished_at"]),
    }


def elapsed_ms(start: dt.datetime | None, end: dt.datetime | None) -> float | None:
    """From one moment to the other, None where one is not known."""
    return None if start is None or end is None else (end - start).total_seconds() * 1e3
