"""The Requests page and one request's page in a browser."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import sqlalchemy as sa
from life_cases import RUN, Case
from playwright.sync_api import Page, expect

from service.store.engines import write_transaction
from service.store.tables import requests

pytestmark = pytest.mark.browser
NASTY = "<img src=x onerror=document.title='hit'>"


def stalled(store: sa.Engine) -> None:
    """150 requests of the last minutes, one of which waited for another one's prompt."""
    now = dt.datetime.now(dt.UTC)
    case = Case(at=now - dt.timedelta(minutes=3))
    case.request("req-7", 0)
    times = {"first_output_at": case.at_ms(1240), "finished_at": case.at_ms(1250)}
    case.request("slow", 5, **times, finish_reason="stop", output_tokens=2, queue_ms=1110.0, prefill_ms=120.0)
    case.request(NASTY, 6, finish_reason="error", error=NASTY, finished_at=case.at_ms(9))
    fence = case.plan(10, 1110, {"req-7": {"prompt_tokens": 640}}, "prefill")
    case.rival(fence, ["slow"], value_rate=1.5)
    case.plan(1120, 1230, {"slow": {"committed_tokens": 1}}, "prefill")
    case.plan(1231, 1240, {"slow": {}, "req-7": {}})
    for number in range(150):
        case.request(f"other-{number:03}", 2000 + number)
    case.write(store)


@pytest.fixture
def pages(store: sa.Engine, fake_engine: Any, serve: Callable[..., AbstractContextManager[str]]) -> Iterator[str]:
    stalled(store)
    with serve(store, fake_engine) as address:
        yield address


def test_on_a_phone_it_says_which_request_and_how_long_before_anything_is_scrolled(page: Page, pages: str) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"{pages}/dashboard/requests")
    for column, words in enumerate(("Request", "First token", "In all"), start=1):
        head = page.locator(f'#requests-grid [role="columnheader"][aria-colindex="{column}"]')
        expect(head).to_have_text(words)
        box = head.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 390


def test_a_search_is_made_by_the_server_and_is_an_address(page: Page, pages: str) -> None:
    page.goto(f"{pages}/dashboard/requests")
    note = page.locator("#requests-note")
    expect(note).to_contain_text("153 requests arrived in the last hour; 1 to 100 are shown.")
    field = page.get_by_label("Id contains")
    field.fill("OTHER-14")
    field.press("Enter")
    expect(note).to_contain_text("10 requests that fit")
    expect(page).to_have_url(re.compile(r"q=OTHER-14"))
    expect(page.locator("#requests-text")).to_be_focused()
    page.locator("#requests-finish").click()
    page.get_by_role("option", name="Failed").click()
    expect(page.locator("#requests-empty")).to_contain_text("No request that fits these filters")
    page.go_back()
    expect(note).to_contain_text("10 requests that fit")
    page.reload()
    expect(page.get_by_label("Id contains")).to_have_value("OTHER-14")
    expect(page.locator("#requests-grid .ag-row").first).to_contain_text("other-149")


def test_the_next_page_goes_on_where_the_first_one_ended(page: Page, pages: str) -> None:
    page.goto(f"{pages}/dashboard/requests")
    page.get_by_role("link", name="Next page").click()
    expect(page.locator("#requests-note")).to_contain_text("101 to 153 are shown")
    page.get_by_role("link", name="Previous page").click()
    expect(page.locator("#requests-note")).to_contain_text("1 to 100 are shown")


def test_why_a_request_stalled_is_found_from_the_list(page: Page, pages: str) -> None:
    page.goto(f"{pages}/dashboard/requests?order=first")
    page.get_by_role("link", name="slow", exact=True).click()
    expect(page).to_have_url(f"{pages}/dashboard/requests/{RUN}/slow")
    expect(page.locator("#request-sentence")).to_contain_text(
        "1,100 ms of prefill for req-7 (640 tokens) was worth more"
    )
    expect(page.locator("#request-life .bars path").first).to_be_visible()
    expect(page.locator("#request-waits")).to_contain_text("req-7")
    expect(page.locator("#request-plans .ag-row")).to_have_count(2)
    page.locator("#request-waits").get_by_role("link", name="req-7").click()
    expect(page.locator("h1")).to_have_text("Request req-7")


def test_a_bar_of_the_life_opens_its_plan(page: Page, pages: str) -> None:
    page.goto(f"{pages}/dashboard/requests/{RUN}/slow")
    page.locator("#request-life .trace.bars").last.scroll_into_view_if_needed()
    bar = page.locator("#request-life .trace.bars").nth(2).locator("path").first
    bar.wait_for()
    box = bar.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page).to_have_url(re.compile(rf"/dashboard/plan/{RUN}/\d+$"))


def test_names_from_outside_are_inert(page: Page, pages: str) -> None:
    page.goto(f"{pages}/dashboard/requests?q=onerror")
    expect(page.locator("#requests-grid .ag-row").first).to_contain_text(NASTY)
    page.get_by_role("link", name=NASTY).click()
    expect(page.locator("h1")).to_have_text(f"Request {NASTY}")
    expect(page.locator(".aside")).to_contain_text(NASTY)
    assert page.title() != "hit"
    assert page.locator("main img").count() == 0


def test_unknown_requests_are_told(page: Page, pages: str, store: sa.Engine) -> None:
    page.goto(f"{pages}/dashboard/requests/{RUN}/nobody")
    expect(page.locator("main")).to_contain_text("has no request nobody")
    page.get_by_role("link", name="Search for it").click()
    expect(page.locator("#requests-empty")).to_contain_text("No request that fits")
    with write_transaction(store) as connection:
        connection.execute(requests.delete())
    page.get_by_role("link", name="Show all requests of this span").click()
    expect(page.locator("#requests-empty")).to_contain_text("No request arrived in the last 7 days")
