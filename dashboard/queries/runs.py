"""The engine runs that a page offers, and the one that it shows."""

from __future__ import annotations

import datetime as dt

import sqlalchemy as sa

from dashboard.score import Row
from service.store.tables import engine_runs

MOST_RUNS = 50


def offered_runs(connection: sa.Connection, shown: Row | None) -> list[Row]:
    """The newest MOST_RUNS rows of engine_runs, newest first, and behind them the shown one if it is older."""
    query = sa.select(engine_runs).order_by(engine_runs.c.started_at.desc()).limit(MOST_RUNS)
    newest: list[Row] = [dict(row) for row in connection.execute(query).mappings()]
    return newest if shown is None or shown in newest else [*newest, shown]


def run_begun_before(connection: sa.Connection, until: dt.datetime, run: str | None) -> Row | None:
    """The run of this id, by default the newest, if it had begun before `until`; however many runs there were since."""
    query = sa.select(engine_runs).where(engine_runs.c.started_at < until)
    if run is not None:
        query = query.where(engine_runs.c.run_id == run)
    found = connection.execute(query.order_by(engine_runs.c.started_at.desc()).limit(1)).mappings().one_or_none()
    return None if found is None else dict(found)
