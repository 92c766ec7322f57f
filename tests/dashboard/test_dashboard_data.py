"""The dashboard's own reads, on SQLite and PostgreSQL."""

from __future__ import annotations

import datetime as dt

import sqlalchemy as sa
from factories import fill_store

from dashboard.data import TIMELINE_COLUMNS, Cursor, read_strip, timeline_rows


def test_rows_are_the_newest_first_and_name_their_requests(any_store: sa.Engine) -> None:
    filled = fill_store(any_store, plans=60, requests=8)
    rows, goes_on = timeline_rows(any_store, 25)
    assert [(row["run_id"], row["fence"]) for row in rows] == filled.plan_keys[:-26:-1]
    assert goes_on is False
    assert set(rows[0]) == {*TIMELINE_COLUMNS, "request_ids"}
    assert all(row["request_ids"] and set(row["request_ids"]) <= {r for _, r in filled.request_keys} for row in rows)


def test_after_a_cursor_only_newer_plans_come_across_runs_too(any_store: sa.Engine) -> None:
    filled = fill_store(any_store, plans=60, requests=8)
    for index in (5, 30, 59):
        run, fence = filled.plan_keys[index]
        rows, goes_on = timeline_rows(any_store, 500, after=Cursor(run, fence))
        assert [(row["run_id"], row["fence"]) for row in rows] == filled.plan_keys[:index:-1]
        assert goes_on is True


def test_a_cursor_that_is_gone_reads_everything_again(any_store: sa.Engine) -> None:
    filled = fill_store(any_store, plans=20, requests=4)
    rows, goes_on = timeline_rows(any_store, 500, after=Cursor("gone", 3))
    assert (len(rows), goes_on) == (len(filled.plan_keys), False)


def test_plans_of_one_policy_version_only(any_store: sa.Engine) -> None:
    fill_store(any_store, plans=60, requests=8)
    rows, _ = timeline_rows(any_store, 500, policy_version=2)
    assert rows
    assert {row["policy_version"] for row in rows} == {2}
    assert timeline_rows(any_store, 500, policy_version=99) == ([], False)


def test_plans_of_a_time_window_and_of_one_request_only(any_store: sa.Engine) -> None:
    filled = fill_store(any_store, plans=60, requests=8)
    rows, _ = timeline_rows(any_store, 500)
    name = rows[-1]["request_ids"][0]
    wanted = [row["fence"] for row in rows if name in row["request_ids"]]
    assert [row["fence"] for row in timeline_rows(any_store, 500, request=name)[0]] == wanted
    since = rows[9]["committed_at"]
    assert [row["fence"] for row in timeline_rows(any_store, 500, since=since)[0]] == [r["fence"] for r in rows[:10]]
    assert timeline_rows(any_store, 500, since=filled.last_at + dt.timedelta(seconds=1))[0] == []


def test_the_strip_counts_the_last_minute_and_what_runs(any_store: sa.Engine) -> None:
    filled = fill_store(any_store, plans=60, requests=8)
    strip = read_strip(any_store, filled.last_at)
    assert strip.health.newest_run is not None
    assert strip.health.newest_run["run_id"] == filled.run_ids[-1]
    assert strip.policy_version == 2
    assert strip.running >= 1
    assert strip.minute_tokens > 0
    assert read_strip(any_store, filled.last_at + dt.timedelta(hours=1)).minute_tokens == 0


def test_the_strip_of_an_empty_store_is_empty(any_store: sa.Engine) -> None:
    strip = read_strip(any_store, dt.datetime.now(dt.UTC))
    assert (strip.health.newest_run, strip.policy_version, strip.running, strip.minute_tokens) == (None, None, 0, 0)
