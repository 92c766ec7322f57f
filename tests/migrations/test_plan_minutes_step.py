"""The step that makes plan_minutes fills it from the plans that are there."""

from __future__ import annotations

import alembic.command
import sqlalchemy as sa
from factories import fill_store
from plain_minutes import assert_minutes_equal_plans, stored_minutes

from service.store.database import migration_config, read_transaction, upgrade, write_transaction


def test_the_step_fills_the_minutes_from_the_plans_and_can_be_undone(any_store, store_url):
    fill_store(any_store, plans=200, requests=5)
    with write_transaction(any_store) as connection:
        alembic.command.downgrade(migration_config(connection), "0001")
    with read_transaction(any_store) as connection:
        assert "plan_minutes" not in sa.inspect(connection).get_table_names()
        assert connection.exec_driver_sql("SELECT COUNT(*) FROM plans").scalar_one() == 200
    any_store.dispose()
    assert upgrade(store_url).before == "0001"
    assert stored_minutes(any_store)
    assert_minutes_equal_plans(any_store)
