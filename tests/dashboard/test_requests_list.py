"""The list of requests: what the address asks for is found by the database, a page at a time."""

from __future__ import annotations

import datetime as dt
import json

import plotly.utils
import pytest
import sqlalchemy as sa
from factories import fill_store
from hypothesis import given
from hypothesis import strategies as st
from life_cases import AT, Case, at

from dashboard.pages.requests.address import address_of, read_address
from dashboard.pages.requests.listing import listing
from dashboard.queries import requests as reads
from dashboard.queries.requests import PAGE_SIZE, Wanted, read_requests
from dashboard.span import Span
from service.store.engines import write_transaction
from service.store.tables import requests

SPAN = Span(AT - dt.timedelta(hours=1), AT + dt.timedelta(days=1))


def test_filters_find_what_a_plain_look_at_every_row_finds(any_store: sa.Engine) -> None:
    filled = fill_store(any_store, plans=120, requests=24)
    every = read_requests(any_store, Wanted(SPAN)).rows
    assert len(every) == len(filled.request_keys)
    run = filled.run_ids[0]
    assert read_requests(any_store, Wanted(SPAN, run=run)).rows == [row for row in every if row["run_id"] == run]
    for finish in ("stop", "length", "error", "running"):
        wanted = [row for row in every if (row["finish_reason"] or "running") == finish]
        assert read_requests(any_store, Wanted(SPAN, finish=finish)).rows == wanted
    part = every[3]["request_id"][3:9].upper()
    wanted = [row for row in every if part.lower() in row["request_id"].lower()]
    found = read_requests(any_store, Wanted(SPAN, text=part))
    assert (found.rows, found.total) == (wanted, len(wanted))
    assert wanted
    half = Span(every[10]["arrived_at"], every[2]["arrived_at"])
    assert read_requests(any_store, Wanted(half)).rows == every[3:11]
    assert read_requests(any_store, Wanted(SPAN, model="another")).rows == []


@pytest.mark.parametrize("order", ["first", "whole"])
def test_the_slowest_come_first_and_the_unfinished_last(any_store: sa.Engine, order: str) -> None:
    fill_store(any_store, plans=120, requests=24)
    values = [row[f"{order}_ms"] for row in read_requests(any_store, Wanted(SPAN, order=order)).rows]
    known = [value for value in values if value is not None]
    assert values == [*sorted(known, reverse=True), *[None] * (len(values) - len(known))]


def test_signs_that_sql_reads_are_looked_for_as_they_are(any_store: sa.Engine) -> None:
    case = Case()
    for name in ("50%", "a_b", "aXb", "back\\slash", "o'clock"):
        case.request(name, 1)
    case.write(any_store)
    for text, found in (("%", ["50%"]), ("_", ["a_b"]), ("\\", ["back\\slash"]), ("'", ["o'clock"])):
        assert [row["request_id"] for row in read_requests(any_store, Wanted(SPAN, text=text)).rows] == found


@pytest.mark.parametrize("order", ["newest", "first", "whole"])
def test_pages_hold_each_request_once(any_store: sa.Engine, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    monkeypatch.setattr(reads, "PAGE_SIZE", 7)
    case = Case()
    for number in range(40):  # groups of equal times
        case.request(f"r-{number:02}", number // 5, first_output_at=at(number // 5 + 3), finished_at=at(number))
    case.write(any_store)
    names = [
        row["request_id"]
        for page in range(1, 8)
        for row in read_requests(any_store, Wanted(SPAN, order=order, page=page)).rows
    ]
    assert len(names) == 40
    assert len(set(names)) == 40


def test_among_20_000_ids_the_server_searches_and_sends_a_page(store: sa.Engine) -> None:
    case = Case()
    row = case.request("seed", 0)
    case.write(store)
    rows = [{**row, "request_id": f"req-{number:05}-x", "arrived_at": at(number)} for number in range(20_000)]
    with write_transaction(store) as connection:
        connection.execute(requests.insert(), rows)
    wanted = Wanted(SPAN, text="1234")
    found = read_requests(store, wanted)
    assert {row["request_id"] for row in found.rows} == {
        "req-01234-x",
        "req-11234-x",
        *(f"req-1234{i}-x" for i in range(10)),
    }
    everything = Wanted(SPAN, text="req-")
    page = json.dumps(listing(everything, read_requests(store, everything), ""), cls=plotly.utils.PlotlyJSONEncoder)
    assert page.count('"request_id": "req-') == PAGE_SIZE
    assert "20,000 requests that fit" in page
    assert len(page) < 100_000


TEXT = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=40)


@given(
    text=st.none() | TEXT,
    model=st.none() | TEXT,
    run=st.none() | TEXT,
    finish=st.sampled_from([None, "stop", "running", "error"]),
    order=st.sampled_from(["newest", "first", "whole"]),
    page=st.integers(1, 500),
)
def test_an_address_says_what_is_asked_for(
    text: str | None, model: str | None, run: str | None, finish: str | None, order: str, page: int
) -> None:
    wanted = Wanted(SPAN, text, model, finish, run, order, page)
    search = address_of(wanted, page=page).partition("?")[2]
    assert read_address(f"?{search}", AT) == wanted


@pytest.mark.parametrize("search", ["?order=cost&finish=lost&page=0", "?page=-3&q=%00", "?page=99999999999999&run=%0a"])
def test_an_address_that_cannot_be_read_asks_for_everything(search: str) -> None:
    wanted = read_address(search, AT)
    assert (wanted.text, wanted.finish, wanted.run, wanted.order, wanted.page) == (None, None, None, "newest", 1)


def test_other_pages_keep_the_end_of_a_span_that_moves_on() -> None:
    wanted = read_address("?last=15m&q=x", AT)
    later = read_address(address_of(wanted, page=2, still=True).partition("?")[2], AT + dt.timedelta(minutes=5))
    assert (later.span.since, later.span.until, later.page, later.text) == (wanted.span.since, AT, 2, "x")
    assert read_address(address_of(wanted).partition("?")[2], AT).span.last == "15m"


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Wanted(SPAN, text="nothing-like-it"), "No request that fits these filters"),
        (Wanted(SPAN, page=9), "There are not so many pages"),
        (Wanted(Span(AT - dt.timedelta(days=9), AT - dt.timedelta(days=8))), "Show the last 7 days"),
        (
            Wanted(Span(AT - dt.timedelta(days=9), AT - dt.timedelta(days=8), "7d")),
            "No request arrived in the last 7 days",
        ),
    ],
)
def test_a_page_without_requests_says_why_and_where_to_go(store: sa.Engine, wanted: Wanted, words: str) -> None:
    fill_store(store, plans=40, requests=6)
    assert words in str(listing(wanted, read_requests(store, wanted), ""))
