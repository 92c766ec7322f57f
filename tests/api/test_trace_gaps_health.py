"""A gap in the trace is told at /health/ready for an hour after it was noticed, and keeps the server ready."""

from __future__ import annotations

import datetime as dt

import pytest
from fake_engine import serving

from service.store.database import open_database, write_transaction
from service.store.gaps import count_gaps_since
from service.store.tables import trace_gaps


def note_gap(store, age: dt.timedelta) -> None:
    row = {"run_id": "r", "from_fence": 1, "to_fence": 2, "noticed_at": dt.datetime.now(dt.UTC) - age, "reason": "x"}
    with write_transaction(store) as connection:
        connection.execute(trace_gaps.insert().values(row))


def test_gaps_of_the_last_hour_are_a_warning(sqlite_url, tmp_path):
    store = open_database(sqlite_url)
    with serving(store, tmp_path) as api:
        note_gap(store, dt.timedelta(minutes=61))
        assert api.http.get("/health/ready").json()["warnings"] == []
        note_gap(store, dt.timedelta(minutes=59))
        note_gap(store, dt.timedelta())
        answer = api.http.get("/health/ready")
        assert (answer.status_code, answer.json()["reasons"]) == (200, [])
        assert answer.json()["warnings"] == ["records of the trace are missing: 2 gaps in the last 1 h, see trace_gaps"]
    store.dispose()


@pytest.mark.parametrize("minutes", [0, 30])
def test_both_databases_compare_the_times_alike(any_store, minutes):
    note_gap(any_store, dt.timedelta(minutes=minutes))
    now = dt.datetime.now(dt.UTC)
    assert count_gaps_since(any_store, now - dt.timedelta(minutes=minutes + 1)) == 1
    assert count_gaps_since(any_store, now - dt.timedelta(minutes=minutes - 1)) == 0
