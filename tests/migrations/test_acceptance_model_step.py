"""The step of the coefficient acceptance_model goes up and down; what an operator made of the view stays."""

from __future__ import annotations

import datetime as dt

import alembic.command
import pytest
import sqlalchemy as sa
from factories import fill_store

from scheduler.policy import PolicyConfig
from service.control.versions import insert, version_of
from service.store.database import check, migration_config, open_database, read_transaction, upgrade, write_transaction
from service.store.errors import UpgradeBlocked
from service.store.tables import policy_versions


def downgrade(engine):
    with write_transaction(engine) as connection:
        alembic.command.downgrade(migration_config(connection), "0008")


def timeline(engine):
    """The view's columns and its rows in order."""
    with read_transaction(engine) as connection:
        found = connection.exec_driver_sql("SELECT * FROM plan_timeline ORDER BY run_id, fence")
        return list(found.keys()), [tuple(row) for row in found]


def test_versions_from_before_are_prefix_and_the_view_is_the_same_but_for_its_end(any_store, store_url):
    fill_store(any_store, plans=30, requests=3)
    names, rows = timeline(any_store)
    assert names[-1] == "acceptance_model"
    with write_transaction(any_store) as connection:
        connection.execute(policy_versions.update().values(acceptance_model="pooled"))
    downgrade(any_store)
    assert timeline(any_store) == (names[:-1], [row[:-1] for row in rows])
    any_store.dispose()
    assert upgrade(store_url).before == "0008"
    with read_transaction(any_store) as connection:
        query = sa.select(policy_versions.c.acceptance_model).distinct()
        assert connection.execute(query).scalars().all() == ["prefix"]
    assert timeline(any_store) == (names, rows)


def test_an_operators_view_of_the_column_does_not_stop_the_way_back_on_sqlite(sqlite_url):
    engine = open_database(sqlite_url)
    with write_transaction(engine) as connection:
        connection.exec_driver_sql("CREATE VIEW mine AS SELECT version, acceptance_model FROM policy_versions")
    downgrade(engine)
    with write_transaction(engine) as connection:
        assert connection.exec_driver_sql("PRAGMA legacy_alter_table").scalar_one() == 0
        assert connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE name = 'mine'").all()
    engine.dispose()
    upgrade(sqlite_url)
    with read_transaction(engine) as connection:
        assert connection.exec_driver_sql("SELECT * FROM mine").all() == []


def test_versions_called_interactive_from_before_have_their_values_and_no_preset_s_name(any_store, store_url):
    now = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    with write_transaction(any_store) as connection:
        for config in (PolicyConfig.interactive(), PolicyConfig.throughput()):
            insert(connection, config, state="applied", actor="anna", note="", parent=None, now=now)
    downgrade(any_store)
    with read_transaction(any_store) as connection:
        names = connection.exec_driver_sql("SELECT preset FROM policy_versions ORDER BY version").scalars().all()
    assert names[-2:] == ["interactive", "throughput"]  # the values that this name had
    any_store.dispose()
    upgrade(store_url)
    with read_transaction(any_store) as connection:
        rows = connection.execute(sa.select(policy_versions).order_by(policy_versions.c.version)).mappings().all()
    assert [row["preset"] for row in rows[-2:]] == [None, "throughput"]
    assert all(version_of(row).config.preset_name == row["preset"] for row in rows[-2:])


@pytest.mark.postgresql
def test_a_view_on_the_timeline_outlives_the_step_and_stops_its_undo(postgresql_url):
    engine = open_database(postgresql_url)
    fill_store(engine, plans=20, requests=3)
    downgrade(engine)
    with write_transaction(engine) as connection:
        connection.exec_driver_sql("CREATE VIEW mine AS SELECT shape, gap_ms FROM plan_timeline")
    upgrade(postgresql_url)
    with pytest.raises(UpgradeBlocked, match=r"public\.mine"):
        downgrade(engine)
    assert check(postgresql_url).state == "current"
    engine.dispose()
