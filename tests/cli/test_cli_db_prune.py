"""helios db prune deletes what the limits say and says what it deleted."""

from __future__ import annotations

import datetime as dt
import json

import pytest
import sqlalchemy as sa
from factories import fill_store

from service.store.database import open_database, read_transaction, write_transaction
from service.store.tables import engine_runs, plans

NOW = dt.datetime.now(dt.UTC)


@pytest.fixture
def filled(store_url):
    """Forty plans of two runs that have ended: one of five days ago, one of today."""
    engine = open_database(store_url)
    fill_store(engine, plans=40, requests=4, started_at=NOW - dt.timedelta(days=5))
    with write_transaction(engine) as connection:
        connection.execute(engine_runs.update().values(ended_at=NOW))
        connection.execute(plans.update().values(outcome="completed"))
        runs = connection.execute(sa.select(engine_runs.c.run_id).order_by(engine_runs.c.started_at)).scalars().all()
        connection.execute(plans.update().where(plans.c.run_id == runs[1]).values(committed_at=NOW))
    engine.dispose()
    return store_url


def count(url):
    engine = open_database(url)
    with read_transaction(engine) as connection:
        found = connection.execute(sa.select(sa.func.count()).select_from(plans)).scalar_one()
    engine.dispose()
    return found


def test_what_is_too_old_goes(helios, filled):
    result = helios("db", "prune", "--database", filled, "--retention-days", "4", "--json")
    assert result.exit_code == 0, result.stderr
    done = json.loads(result.stdout)
    assert (done["plans"], count(filled)) == (8, 32)
    assert done["requests"] == 2  # the others still run
    assert (done["used_bytes"] > 0) or "postgresql" in filled


def test_it_says_what_it_did(helios, filled):
    result = helios("db", "prune", "--database", filled, "--retention-days", "1")
    assert "deleted 8 plans, 2 requests, 0 rows of the decision log, 0 roll-ups; " in result.stdout
    again = helios("db", "prune", "--database", filled, "--retention-days", "1").stdout
    assert "deleted 0 plans" in again
    assert "stay" not in again


def test_it_says_that_a_run_which_has_not_ended_keeps_its_last_plans(helios, filled):
    engine = open_database(filled)
    with write_transaction(engine) as connection:
        connection.execute(engine_runs.update().values(ended_at=None))
    engine.dispose()
    limits = ("db", "prune", "--database", filled, "--retention-days", "4")
    said = helios(*limits).stdout
    assert "deleted 0 plans" in said
    assert "about 8 plans are over the limits and stay" in said
    assert "the last 1000 of each run that has not ended" in said
    assert json.loads(helios(*limits, "--json").stdout)["plans_over_limits"] == 8
    assert count(filled) == 40


def test_the_limits_of_the_server_are_the_defaults(helios, filled):
    assert json.loads(helios("db", "prune", "--database", filled, "--json").stdout)["plans"] == 0
    assert count(filled) == 40


def test_a_size_on_sqlite(helios, sqlite_url):
    engine = open_database(sqlite_url)
    fill_store(engine, plans=400, requests=4)
    with write_transaction(engine) as connection:
        connection.execute(engine_runs.update().values(ended_at=NOW))
    engine.dispose()
    result = helios(
        "db", "prune", "--database", sqlite_url, "--retention-days", 0, "--retention-bytes", "400KB", "--json"
    )
    assert json.loads(result.stdout)["used_bytes"] <= 400_000
    assert 0 < count(sqlite_url) < 400


def test_a_store_that_is_missing_is_said_and_not_made(helios, tmp_path):
    path = tmp_path / "none.db"
    result = helios("db", "prune", "--database", path)
    assert result.exit_code == 2
    assert "helios db upgrade" in result.stderr
    assert not path.exists()


@pytest.mark.parametrize("option", [("--retention-days", "-1"), ("--retention-bytes", "much")])
def test_a_limit_that_is_none_is_refused(option, helios, tmp_path):
    assert helios("db", "prune", "--data-dir", tmp_path, *option).exit_code == 2
