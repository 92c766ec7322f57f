"""The store's lists: filters, pages, one plan, and what a bad filter says."""

from __future__ import annotations

import datetime as dt
import re

import pytest
import sqlalchemy as sa
from factories import STARTED_AT, fill_store
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dashboard.queries.timeline import newest_mark
from service.store.database import read_transaction, write_transaction
from service.store.errors import InvalidFilter
from service.store.queries import (
    get_plan,
    get_request,
    list_plans,
    list_requests,
    list_runs,
    plan_neighbours,
)
from service.store.tables import plan_lanes, plans, requests


def timeline(engine):
    """The view `plan_timeline`, as people query it."""
    query = sa.text("SELECT * FROM plan_timeline ORDER BY committed_at DESC, run_id DESC, fence DESC")
    with read_transaction(engine) as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def keys(rows):
    return [(row["run_id"], row["fence"]) for row in rows]


@pytest.fixture
def filled(any_store):
    return fill_store(any_store, plans=60, requests=6)


def all_pages(list_function, engine, limit, **filters):
    pages, cursor = [], None
    while True:
        page = list_function(engine, limit=limit, cursor=cursor, **filters)
        pages.append(page.items)
        cursor = page.next
        if cursor is None:
            return pages


def test_plans_come_newest_first_with_the_sql_columns_and_aware_times(any_store, filled):
    page = list_plans(any_store, limit=1000)
    assert keys(page.items) == filled.plan_keys[::-1]
    assert page.next is None
    assert list(page.items[0]) == [column.name for column in plans.columns]
    assert page.items[-1]["committed_at"] == filled.first_at
    assert page.items[0]["committed_at"].utcoffset() == dt.timedelta(0)


@pytest.mark.parametrize("limit", [1, 7, 59, 60, 61])
def test_pages_cover_every_plan_once(any_store, filled, limit):
    pages = all_pages(list_plans, any_store, limit)
    assert all(len(page) == limit for page in pages[:-1])
    assert keys(row for page in pages for row in page) == filled.plan_keys[::-1]


def test_pages_cover_every_request_once(any_store, filled):
    rows = [row for page in all_pages(list_requests, any_store, 2) for row in page]
    assert sorted((r["run_id"], r["request_id"]) for r in rows) == sorted(filled.request_keys)
    assert [r["arrived_at"] for r in rows] == sorted((r["arrived_at"] for r in rows), reverse=True)


def move_plans(engine, moments):
    """Gives the plans these commit times, in order, so that many share one."""
    with write_transaction(engine) as connection:
        found = connection.execute(sa.select(plans.c.run_id, plans.c.fence)).all()
        for (run_id, fence), moment in zip(found, moments, strict=False):
            at = STARTED_AT + dt.timedelta(microseconds=moment)
            where = (plans.c.run_id == run_id, plans.c.fence == fence)
            connection.execute(plans.update().where(*where).values(committed_at=at))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moments=st.lists(st.integers(0, 5), min_size=24, max_size=24), limit=st.integers(1, 30))
def test_pages_cover_every_plan_once_even_when_times_are_equal(page_store, moments, limit):
    engine, filled = page_store
    move_plans(engine, moments)
    rows = [row for page in all_pages(list_plans, engine, limit) for row in page]
    assert sorted(keys(rows)) == sorted(filled.plan_keys)
    order = [(row["committed_at"], row["run_id"], row["fence"]) for row in rows]
    assert order == sorted(order, reverse=True)


@pytest.fixture
def page_store(any_store):
    return any_store, fill_store(any_store, plans=24, requests=3)


def test_new_plans_do_not_shift_the_pages_behind_a_cursor(any_store, filled):
    first = list_plans(any_store, limit=10)
    with write_transaction(any_store) as connection:
        row = dict(connection.execute(sa.select(plans).limit(1)).mappings().one())
        row.update(fence=999, committed_at=filled.last_at + dt.timedelta(seconds=1))
        connection.execute(plans.insert().values(row))
    second = list_plans(any_store, limit=10, cursor=first.next)
    assert keys(first.items + second.items) == filled.plan_keys[::-1][:20]


@pytest.mark.parametrize(
    ("filters", "keep"),
    [
        ({"kind": "decode"}, lambda row: row["kind"] == "decode"),
        ({"kind": "vision"}, lambda _row: False),
        ({"reason": "discovery"}, lambda row: row["reason"] == "discovery"),
        ({"outcome": "in_flight"}, lambda row: row["outcome"] == "in_flight"),
        ({"policy_version": 2}, lambda row: row["policy_version"] == 2),
        ({"shape": "prefill:C256"}, lambda row: (row["kind"], row["prefill_capacity"]) == ("prefill", 256)),
        ({"shape": "decode:B1"}, lambda row: (row["kind"], row["batch_capacity"]) == ("decode", 1)),
        ({"shape": "decode:B1", "kind": "prefill"}, lambda _row: False),
    ],
)
def test_filters_keep_exactly_the_matching_plans(store, filters, keep):
    fill_store(store, plans=60, requests=6)
    everything = list_plans(store, limit=1000).items
    assert keys(list_plans(store, limit=1000, **filters).items) == keys(row for row in everything if keep(row))


def test_the_run_and_request_filters_name_the_plans_that_served_them(any_store, filled):
    run_id, request_id = filled.request_keys[-1]
    with read_transaction(any_store) as connection:
        query = sa.select(plan_lanes.c.run_id, plan_lanes.c.fence).where(plan_lanes.c.request_id == request_id)
        expected = sorted(tuple(row) for row in connection.execute(query))
    found = list_plans(any_store, request=request_id, limit=1000).items
    assert sorted(keys(found)) == expected != []
    assert keys(list_plans(any_store, request=request_id, run=filled.run_ids[0]).items) == []
    assert {row["run_id"] for row in list_plans(any_store, run=run_id, limit=1000).items} == {run_id}


def test_rows_written_with_one_offset_are_found_with_another(any_store, filled):
    """C34: 13:00-08:00 lies between 20:30Z and 21:30Z."""
    pacific = dt.timezone(dt.timedelta(hours=-8))
    run_id, fence = filled.plan_keys[0]
    with write_transaction(any_store) as connection:
        where = (plans.c.run_id == run_id, plans.c.fence == fence)
        at = dt.datetime(2026, 3, 5, 13, 0, tzinfo=pacific)
        connection.execute(plans.update().where(*where).values(committed_at=at))
    for since, until in [
        ("2026-03-05T20:30:00Z", "2026-03-05T21:30:00Z"),
        ("2026-03-05T12:30:00-08:00", "2026-03-05T13:30:00-08:00"),
        ("2026-03-06T02:00:00+05:30", "2026-03-06t03:00:00.5+05:30"),
        (dt.datetime(2026, 3, 5, 21, 0, tzinfo=dt.UTC), None),
    ]:
        found = list_plans(any_store, since=since, until=until).items
        assert keys(found) == [(run_id, fence)]
        assert found[0]["committed_at"] == dt.datetime(2026, 3, 5, 21, 0, tzinfo=dt.UTC)
    assert list_plans(any_store, since="2026-03-05T13:30:00-08:00", until="2026-03-05T21:45:00Z").items == []


def test_since_is_included_and_until_is_not(any_store, filled):
    whole = list_plans(any_store, since=filled.first_at, until=filled.last_at, limit=1000).items
    assert keys(whole) == filled.plan_keys[::-1][1:]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("since", "yesterday", "RFC 3339"),
        ("since", "2026-03-01T12:00:00", "RFC 3339"),
        ("since", "2026-03-01", "RFC 3339"),
        ("since", "2026-W09-7T12:00:00Z", "RFC 3339"),
        ("since", "2026-02-30T12:00:00Z", "day"),
        ("since", "2026-03-01T12:00:00 08:00", "%2B"),
        ("since", "2026-03-01T12:00:00+24:00", "RFC 3339"),
        ("since", "0001-01-01T00:00:00+08:00", "years 1 to 9999"),
        ("since", dt.datetime(2026, 3, 1), "time zone"),
        ("until", "\u0662\u0660\u0662\u0666-03-01T12:00:00Z", "RFC 3339"),
        ("kind", "decod", "prefill"),
        ("kind", "DECODE", "decode"),
        ("reason", "because", "solo_prefill"),
        ("outcome", "done", "abandoned"),
        ("shape", "decode:X4", "decode:B4"),
        ("shape", "decode:B99999999", "decode:B4"),
        ("limit", 0, "1 to 1000"),
        ("limit", 1001, "1 to 1000"),
        ("limit", "ten", "1 to 1000"),
        ("limit", True, "1 to 1000"),
        ("limit", 1.0, "1 to 1000"),
        ("limit", "9" * 5000, "1 to 1000"),
        ("run", "a\0b", "no id has"),
        ("run", "", "1 to 256"),
        ("request", "\ud800", "no id has"),
        ("request", "x" * 300, "1 to 256"),
        ("cursor", "", "start again"),
        ("cursor", "not a cursor", "start again"),
        ("cursor", "WzEsMl0", "start again"),
        ("cursor", "\u00e9", "start again"),
    ],
)
def test_a_bad_filter_is_named_and_the_allowed_values_are_said(store, name, value, says):
    with pytest.raises(InvalidFilter, match=re.escape(says)) as caught:
        list_plans(store, **{name: value})
    assert caught.value.name == name
    assert len(str(caught.value)) < 400


def test_until_before_since_is_refused(store):
    with pytest.raises(InvalidFilter, match="before since"):
        list_plans(store, since="2026-03-02T00:00:00Z", until="2026-03-01T00:00:00Z")


def test_a_cursor_of_another_list_is_refused(any_store, filled):
    cursor = list_plans(any_store, limit=1).next
    with pytest.raises(InvalidFilter, match="cursor"):
        list_requests(any_store, cursor=cursor)


@given(text=st.text(max_size=40))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_in_a_filter_is_answered_or_refused_by_name(store, text):
    for name in ("since", "until", "kind", "reason", "shape", "request", "run", "limit", "cursor"):
        assert refused_name(store, name, text) in {None, name}


def refused_name(store, name, text):
    try:
        list_plans(store, **{name: text})
    except InvalidFilter as error:
        return error.name
    return None


def test_one_plan_comes_with_its_lanes_and_runner_ups_in_order(any_store, filled):
    run_id, fence = filled.plan_keys[40]
    detail = get_plan(any_store, run_id, fence)
    assert (detail.plan["run_id"], detail.plan["fence"]) == (run_id, fence)
    assert [lane["lane"] for lane in detail.lanes] == list(range(detail.plan["active_rows"]))
    assert [a["rank"] for a in detail.alternatives] == list(range(1, len(detail.alternatives) + 1))
    assert all(isinstance(a["request_ids"], list) for a in detail.alternatives)
    assert any(get_plan(any_store, *key).alternatives for key in filled.plan_keys)


@pytest.mark.parametrize("key", [("no-such-run", 1), ("run\0", 1), ("\ud800", 1), ("run", 2**70), ("run", -(2**70))])
def test_a_plan_that_is_not_there_is_none(any_store, key):
    assert get_plan(any_store, *key) is None
    assert plan_neighbours(any_store, *key) == (None, None)
    assert get_request(any_store, key[0], "req") is None


def test_neighbours_skip_missing_fences_and_stay_in_the_run(any_store, filled):
    run_id = filled.run_ids[1]
    fences = [fence for run, fence in filled.plan_keys if run == run_id]
    with write_transaction(any_store) as connection:
        connection.execute(plans.delete().where(plans.c.run_id == run_id, plans.c.fence == fences[3]))
    assert plan_neighbours(any_store, run_id, fences[2]) == (fences[1], fences[4])
    assert plan_neighbours(any_store, run_id, fences[0]) == (None, fences[1])
    assert plan_neighbours(any_store, run_id, fences[-1]) == (fences[-2], None)


def test_requests_can_be_found_by_their_state(any_store, filled):
    running = list_requests(any_store, finish_reason="running").items
    failed = list_requests(any_store, finish_reason="error").items
    assert running
    assert failed
    assert all(row["finished_at"] is None for row in running)
    assert {row["finish_reason"] for row in failed} == {"error"}
    run_id, request_id = filled.request_keys[0]
    assert get_request(any_store, run_id, request_id)["request_id"] == request_id
    assert list(get_request(any_store, run_id, request_id)) == [column.name for column in requests.columns]


def test_runs_come_newest_first(any_store, filled):
    assert [row["run_id"] for row in list_runs(any_store)] == filled.run_ids[::-1]
    assert list_runs(any_store)[0]["settings"] == {"port": 8000, "dtype": "float32"}


def test_an_empty_store_is_answered_too(any_store):
    assert list_plans(any_store).items == []
    assert list_runs(any_store) == []


def test_queries_share_the_view_of_an_open_transaction(any_store, filled):
    with read_transaction(any_store) as connection:
        before = len(list_plans(connection, limit=1000).items)
        assert before == 60
        assert len(list_runs(connection)) == 2


def test_the_timeline_shows_the_gap_before_each_plan(any_store, filled):
    bars = timeline(any_store)
    rows = {(r["run_id"], r["fence"]): r for r in list_plans(any_store, limit=1000).items}
    assert keys(bars) == filled.plan_keys[::-1]
    for bar in bars:
        before = rows.get((bar["run_id"], bar["fence"] - 1))
        if bar["started_ns"] is None or before is None:
            assert bar["gap_ms"] is None
        else:
            gap = max(0, bar["started_ns"] - before["completed_ns"]) / 1e6
            assert float(bar["gap_ms"]) == pytest.approx(gap)  # a decimal on PostgreSQL
    assert bars[0]["policy_actor"] is not None


def test_overlapping_plans_have_no_gap(any_store, filled):
    run_id, fence = filled.plan_keys[30]
    with write_transaction(any_store) as connection:
        where = (plans.c.run_id == run_id, plans.c.fence == fence)
        connection.execute(plans.update().where(*where).values(started_ns=1))
    found = {(bar["run_id"], bar["fence"]): bar["gap_ms"] for bar in timeline(any_store)}
    assert found[run_id, fence] == 0.0


NEWEST_OF_TIMELINE = sa.text("SELECT * FROM plan_timeline ORDER BY committed_at DESC, run_id DESC, fence DESC LIMIT 20")
READS = {
    "plans": (lambda bind: list_plans(bind, limit=20)),
    "plans since": (lambda bind: list_plans(bind, limit=20, since="2026-03-01T12:00:01Z")),
    "plans of a request": (lambda bind: list_plans(bind, request="req-0002-00003")),
    "timeline": (lambda bind: bind.execute(NEWEST_OF_TIMELINE).all()),
    "requests": (lambda bind: list_requests(bind, limit=20)),
}


def steps_of(store, read):
    """SQLite's query plan of each statement of `read`."""
    seen = []

    def note(_connection, _cursor, text, values, *_rest):
        seen.append((text, values))

    with read_transaction(store) as connection:
        sa.event.listen(connection, "before_cursor_execute", note)
        read(connection)
        return [
            row[3]
            for text, values in list(seen)
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values).all()
        ]


def test_the_dashboard_counts_running_requests_in_the_index_of_those(store):
    fill_store(store, plans=40, requests=4)
    steps = steps_of(store, newest_mark)
    assert "SEARCH requests USING INDEX ix_requests_unfinished (run_id=?)" in steps


@pytest.mark.parametrize("name", READS)
def test_lists_read_an_index_and_never_a_whole_table(store, name):
    fill_store(store, plans=40, requests=4)
    steps = steps_of(store, READS[name])
    assert steps
    assert [step for step in steps if re.fullmatch(r"SCAN (plans|p|q|requests|plan_lanes)", step)] == []
    sorts = [step for step in steps if "TEMP B-TREE FOR ORDER" in step]
    assert sorts == [] or name in {"plans of a request", "health"}
