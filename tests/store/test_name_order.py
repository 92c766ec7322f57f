"""Lists order names by their bytes on both databases, whatever the locale of the PostgreSQL database is."""

from __future__ import annotations

import datetime as dt
import uuid

import pytest
import sqlalchemy as sa
from factory_cookbook import filled_row
from needs import missing

from service.store.database import open_database, upgrade, write_transaction
from service.store.queries import list_plans, list_requests, list_runs
from service.store.tables import engine_runs, plans, requests

AT = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
NAMES = ["run-B", "run-a", "run_c", "Run-b", "run-b", "9", "10", "é", "z", "run-", "_"]


@pytest.fixture
def english_url(_postgresql_server):
    """A store whose database orders texts as people do: a before B before c, whatever stands between."""
    name = f"helios_test_{uuid.uuid4().hex}"
    admin = sa.create_engine(_postgresql_server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        if connection.exec_driver_sql("SELECT 1 FROM pg_collation WHERE collprovider = 'i'").first() is None:
            missing("the order of names is tested on a PostgreSQL that was built with ICU")
        made = f'CREATE DATABASE "{name}" TEMPLATE template0 ENCODING utf8 LOCALE_PROVIDER icu ICU_LOCALE'
        connection.exec_driver_sql(f"{made} 'en-US'")
    url = _postgresql_server.set(database=name).render_as_string(hide_password=False)
    try:
        upgrade(url)
        yield url
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        admin.dispose()


def names(list_function, engine, column, limit):
    found, cursor = [], None
    while True:
        page = list_function(engine, limit=limit, cursor=cursor)
        found.extend(row[column] for row in page.items)
        if (cursor := page.next) is None:
            return found


@pytest.mark.postgresql
def test_names_of_one_moment_are_ordered_by_their_bytes_on_both_databases(english_url, sqlite_url):
    expected = sorted(NAMES, key=str.encode, reverse=True)
    for url in (english_url, sqlite_url):
        engine = open_database(url)
        with write_transaction(engine) as connection:
            for name in NAMES:
                run = {"run_id": name, "started_at": AT, "settings": {}}
                connection.execute(engine_runs.insert(), filled_row(engine_runs, run))
                plan = {"run_id": name, "fence": 1, "committed_at": AT}
                connection.execute(plans.insert(), filled_row(plans, plan))
                request = {"run_id": "r", "request_id": name, "arrived_at": AT}
                connection.execute(requests.insert(), filled_row(requests, request))
        for limit in (2, 1000):
            assert names(list_plans, engine, "run_id", limit) == expected
            assert names(list_requests, engine, "request_id", limit) == expected
        assert [row["run_id"] for row in list_runs(engine)] == expected
        with engine.connect() as connection:
            plain = connection.execute(sa.select(plans.c.run_id).order_by(plans.c.run_id.desc())).scalars().all()
        assert (plain == expected) == (url == sqlite_url), "the database's own order is another one"
        engine.dispose()
