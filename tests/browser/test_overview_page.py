"""The overview in a real browser."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from playwright.sync_api import Page, expect

from dashboard.pages.overview import ids
from service.load.million import Made, fill_store
from service.store.engines import open_database, write_transaction
from service.store.tables import requests

pytestmark = pytest.mark.browser
CHARTS = (ids.TOKENS, ids.FIRST_TOKEN, ids.BETWEEN, ids.DEVICE)
DRAWN = ".js-plotly-plot .main-svg"


@pytest.fixture
def traffic(
    sqlite_url: str, fake_engine: Any, serve: Callable[..., contextlib.AbstractContextManager[str]]
) -> Iterator[tuple[str, Made, sa.Engine]]:
    """The dashboard over some minutes of traffic that end now."""
    made = fill_store(sqlite_url, dt.datetime.now(dt.UTC), 2000)
    store = open_database(sqlite_url)
    with serve(store, fake_engine) as address:
        yield address, made, store
    store.dispose()


def open_overview(page: Page, address: str, query: str = "") -> None:
    page.goto(f"{address}/dashboard/{query}")
    for chart in CHARTS:
        expect(page.locator(f"#{chart} {DRAWN}").first).to_be_visible()


def test_it_says_how_things_are_and_draws_the_last_hour(page: Page, traffic: tuple[str, Made, sa.Engine]) -> None:
    address, _, _ = traffic
    open_overview(page, address)
    expect(page).to_have_title("Overview · Helios")
    tiles = page.locator(f"#{ids.TILES}")
    for words in ("Running", "Waiting", "First token", "Time per token", "Output tokens", "Device busy", "version 3"):
        expect(tiles).to_contain_text(words)
    expect(page.get_by_role("heading", name="The last hour")).to_be_visible()
    expect(page.locator(f"#{ids.TREND_WORDS}")).to_contain_text("plans; a point is 1 minute")
    expect(page.locator(f"#{ids.DETAILS}")).to_contain_text("Slowest first tokens")
    expect(page.locator(f"#{ids.VERDICT}")).to_contain_text("The trace lost something")


def test_a_request_that_waits_long_appears_by_itself_and_leads_to_its_page(
    page: Page, traffic: tuple[str, Made, sa.Engine]
) -> None:
    address, made, store = traffic
    open_overview(page, address)
    waiting = requests.c.admitted_at.is_(None)
    long_ago = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=90)
    with write_transaction(store) as connection:
        connection.execute(requests.update().where(waiting).values(arrived_at=long_ago))
    verdict = page.locator(f"#{ids.VERDICT}")
    expect(verdict).to_contain_text(re.compile(r"3 requests wait for a first graph, the oldest for (9|10)\d\.\d s"))
    verdict.get_by_role("link", name="Why?").click()
    page.wait_for_url(re.compile(rf"/dashboard/requests/{made.run_ids[1]}/"))


def test_the_keyboard_stays_where_it_was_when_the_moment_is_drawn_anew(
    page: Page, traffic: tuple[str, Made, sa.Engine]
) -> None:
    address, _, store = traffic
    open_overview(page, address)
    link = page.locator(f"#{ids.TILES}").get_by_role("link", name="version 3")
    link.focus()
    link.evaluate("(one) => (window.heliosStop = one)")
    with write_transaction(store) as connection:
        waiting = requests.c.admitted_at.is_(None)
        connection.execute(requests.update().where(waiting).values(arrived_at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC)))
    expect(page.locator(f"#{ids.VERDICT}")).to_contain_text("3 requests wait for a first graph")
    # Whether or not the browser kept the element, another one is put into its place here.
    page.evaluate(
        "(() => { const link = window.heliosStop; if (link.isConnected) link.replaceWith(link.cloneNode(true)); })()"
    )
    expect(link).to_be_focused()


def test_another_span_is_another_address_and_the_back_button_leads_back(
    page: Page, traffic: tuple[str, Made, sa.Engine]
) -> None:
    address, _, _ = traffic
    open_overview(page, address, "?last=15m")
    picker = page.get_by_role("group", name="Span of time")
    expect(picker.locator("[aria-current]")).to_have_text("15 min")
    picker.get_by_role("link", name="6 h").click()
    page.wait_for_url(re.compile(r"\?last=6h$"))
    expect(page.get_by_role("heading", name="The last 6 hours")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="The last 15 minutes")).to_be_visible()
    picker.get_by_role("link", name="Hold").click()
    page.wait_for_url(re.compile(r"\?since=.*&until="))
    expect(page.get_by_role("heading", name=" UTC")).to_be_visible()
    picker.get_by_role("link", name="Show the last hour").click()
    expect(page.get_by_role("heading", name="The last hour")).to_be_visible()


def test_dragging_across_a_chart_makes_that_the_span(page: Page, traffic: tuple[str, Made, sa.Engine]) -> None:
    address, _, _ = traffic
    open_overview(page, address, "?last=5m")
    box = page.locator(f"#{ids.TOKENS} .nsewdrag").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    page.wait_for_url(re.compile(r"\?since=.*&until="))
    expect(page.get_by_role("link", name="Show the last hour")).to_be_visible()


def test_a_kind_leads_to_its_plans(page: Page, traffic: tuple[str, Made, sa.Engine]) -> None:
    address, _, _ = traffic
    open_overview(page, address)
    page.locator(f"#{ids.DETAILS}").get_by_role("link", name="speculative").click()
    page.wait_for_url(re.compile(r"/dashboard/timeline\?kind=speculative&last=1h$"))


def test_a_tab_that_nobody_sees_asks_nothing(page: Page, traffic: tuple[str, Made, sa.Engine]) -> None:
    address, _, _ = traffic
    page.add_init_script("Object.defineProperty(document, 'hidden', { get: () => window.away === true })")
    open_overview(page, address)

    with page.expect_response(re.compile("_dash-update-component")):
        pass
    page.evaluate("window.away = true")
    ticks = "window.dash_clientside.helios.askWhileSeen(7, false) === window.dash_clientside.no_update"
    assert page.evaluate(ticks)
    assert page.evaluate("window.away = false, window.dash_clientside.helios.askWhileSeen(7, false)") == 7
    assert page.evaluate("window.dash_clientside.helios.askWhileSeen(7, true) === window.dash_clientside.no_update")


def test_an_empty_store_says_how_to_begin(
    page: Page, store: sa.Engine, fake_engine: Any, serve: Callable[..., contextlib.AbstractContextManager[str]]
) -> None:
    with serve(store, fake_engine) as address:
        page.goto(f"{address}/dashboard/")
        expect(page.locator("main")).to_contain_text("No engine has run on this store yet")
        expect(page.locator("main")).to_contain_text("helios serve")
        page.goto("about:blank")
