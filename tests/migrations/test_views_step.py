"""The step that makes the stable views goes up and down with rows in place and touches none of them."""

from __future__ import annotations

import alembic.command
import sqlalchemy as sa
from factories import fill_store

from scheduler.policy import COEFFICIENT_BY_NAME
from service.store.database import migration_config, read_transaction, upgrade, write_transaction
from service.store.tables import metadata

LATER = (*tuple(COEFFICIENT_BY_NAME)[-7:], "prompt_rows", "prompt_wait_relief", "decode_late_relief")
"""Columns of a step behind the one that is tested here."""
VIEWS = {"device_histogram", "graph_observations", "plan_timeline", "request_timeline", "shape_minutes"}


def views(engine):
    with read_transaction(engine) as connection:
        return set(sa.inspect(connection).get_view_names())


def before(table):
    return [column for column in table.columns if column.name not in LATER]


def contents(engine):
    with read_transaction(engine) as connection:
        found = {
            table.name: sorted(map(repr, connection.execute(sa.select(*before(table)))))
            for table in metadata.sorted_tables
            if table.name in sa.inspect(connection).get_table_names()
        }
    return {name: rows for name, rows in found.items() if rows}


def timeline(engine):
    with read_transaction(engine) as connection:
        rows = connection.exec_driver_sql("SELECT * FROM plan_timeline ORDER BY run_id, fence").mappings().all()
    plans = [{name: value for name, value in row.items() if name not in ("shape", *LATER)} for row in rows]
    return [plan | {"gap_ms": None if plan["gap_ms"] is None else float(plan["gap_ms"])} for plan in plans]


def test_the_views_go_and_come_with_rows_in_place(any_store, store_url):
    fill_store(any_store, plans=40, requests=4)
    before, plans = contents(any_store), timeline(any_store)
    assert views(any_store) == VIEWS
    with write_transaction(any_store) as connection:
        alembic.command.downgrade(migration_config(connection), "0003")
    assert views(any_store) == {"plan_timeline"}
    assert contents(any_store) == before
    assert timeline(any_store) == plans
    any_store.dispose()
    assert upgrade(store_url).before == "0003"
    assert views(any_store) == VIEWS
    assert contents(any_store) == before
    assert timeline(any_store) == plans
