"""GET /api/catalog and /api/ledgers over a filled store."""

from __future__ import annotations

import json
import shutil

import pytest
from factories import fill_store
from fake_engine import serving
from plain_minutes import write_minutes

from service.store.database import open_database
from service.store.ledgers import LEDGER_COLUMNS
from service.store.tables import SHAPE_COLUMNS


@pytest.fixture(scope="module")
def api(_sqlite_template, tmp_path_factory):
    folder = tmp_path_factory.mktemp("catalog")
    shutil.copy(_sqlite_template, folder / "helios.db")
    store = open_database(f"sqlite:///{folder / 'helios.db'}")
    made = fill_store(store)
    write_minutes(store)
    with serving(store, folder) as running:
        yield running, made
    store.dispose()


def strict(answer) -> dict:
    assert answer.status_code == 200, answer.text
    return json.loads(answer.text, parse_constant=pytest.fail)


def test_the_catalog_has_the_sql_columns(api):
    running, made = api
    body = strict(running.http.get("/api/catalog"))
    assert set(body) == {"run_id", "as_of", "source", "items", "next"}
    assert (body["run_id"], body["source"]) == (made.run_ids[1], "plan_minutes")
    assert {"run_id", "shape", "estimate_ms", "cost_state", *SHAPE_COLUMNS} <= set(body["items"][0])
    assert {row["kind"] for row in strict(running.http.get("/api/catalog?kind=decode"))["items"]} == {"decode"}
    assert strict(running.http.get("/api/catalog", params={"run": made.run_ids[0]}))["run_id"] == made.run_ids[0]
    assert strict(running.http.get("/api/catalog?run=nobody"))["items"] == []


def test_ledgers_come_newest_first(api):
    running, made = api
    items = strict(running.http.get("/api/ledgers"))["items"]
    assert set(items[0]) == {"minute", "run_id", "fence", "committed_at", *LEDGER_COLUMNS}
    assert items[0]["run_id"] == made.run_ids[1]
    assert strict(running.http.get("/api/ledgers?limit=1"))["items"] == items[:1]


@pytest.mark.parametrize("view", ["catalog", "ledgers"])
def test_the_whole_calendar_is_a_span(api, view):
    whole = "since=0001-01-01T00:00:00Z&until=9999-12-31T23:59:59Z"
    assert strict(api[0].http.get(f"/api/{view}?{whole}"))["items"]


@pytest.mark.parametrize(
    "query", ["catalog?kind=x", "catalog?limit=3", "ledgers?limit=0", "ledgers?since=x", "ledgers?kind=decode"]
)
def test_filters_that_cannot_be_used_are_refused(api, query):
    assert api[0].http.get(f"/api/{query}").status_code == 400
