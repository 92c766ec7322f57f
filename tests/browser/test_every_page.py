"""What holds for every page: local requests only, nothing on the console, titles, names, contrast in light and dark, no
scrolling sideways on a phone, the keyboard; on a store of some minutes, on an empty one and on one of a million plans.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import sqlalchemy as sa
from million import Million
from page_checks import CONTRAST, FOCUS, NAMELESS, SIDEWAYS
from playwright.sync_api import Browser, Page, expect
from waiting import wait_in_page

from service.load.million import Made, fill_store
from service.store.database import open_database

pytestmark = pytest.mark.browser
PHONE = {"width": 360, "height": 740}
MOST_TABS = 40
TITLES = ["Overview", "Timeline", "Requests", "Costs", "Learning", "Policy", "SQL"]
NAMES = ("overview", "timeline", "plan", "requests", "request", "costs", "learning", "policy", "sql")


def pages(made: Made, span: str = "") -> dict[str, tuple[str, str]]:
    """(path, what is there once the page is complete) of every page, over a span such as `last=24h`."""
    (run, fence), (slow_run, slow) = made.outlier, made.slow_request
    query = f"?{span}" if span else ""
    found = {
        "overview": (f"/dashboard/{query}", "#overview-device .main-svg"),
        "timeline": (f"/dashboard/timeline{query}", "#timeline-grid .ag-row"),
        "plan": (f"/dashboard/plan/{run}/{fence}", "#plan-lanes .ag-row"),
        "requests": (f"/dashboard/requests{query}", "#requests-grid .ag-row"),
        "request": (f"/dashboard/requests/{slow_run}/{slow}", "#request-plans .ag-row"),
        "costs": (f"/dashboard/costs{query}", "#costs-maps"),
        "learning": (f"/dashboard/learning{query}", "main h1"),
        "policy": ("/dashboard/policy", "#policy-history .ag-row"),
        "sql": ("/dashboard/sql", "#sql-status"),
    }
    assert tuple(found) == NAMES
    return found


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory,
    module_serve: Callable[[sa.Engine], AbstractContextManager[str]],
) -> Iterator[tuple[str, Made]]:
    """The dashboard over some minutes of traffic, one for the module: nothing here changes it."""
    url = str(tmp_path_factory.mktemp("every-page") / "helios.db")
    made = fill_store(url, dt.datetime.now(dt.UTC), 2000)
    store = open_database(url)
    with module_serve(store) as address:
        yield address, made
    store.dispose()


def follow_the_keyboard(page: Page) -> None:
    """It reaches the pages and the page's controls, and where it is can be seen."""
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    stops = []
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        stop = page.evaluate(FOCUS)
        if stop is not None:  # a live page may just have drawn anew what had the focus; the next stop is behind it
            stops.append(stop)
        if sum(stop["where"] == "main" for stop in stops) == 3:
            break
    assert [stop["name"] for stop in stops if stop["where"] == "nav"] == TITLES
    assert any(stop["where"] == "main" for stop in stops)
    assert [stop for stop in stops if not stop["visible"]] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_page_can_be_used_by_anybody_anywhere(page: Page, site: tuple[str, Made], name: str, watch: Any) -> None:
    address, made = site
    path, complete = pages(made)[name]
    page.goto(address + path)
    expect(page.locator(complete).first).to_be_visible()
    follow_the_keyboard(page)
    assert [url for url in watch.requests if not url.startswith((address, "data:", "blob:"))] == []
    assert page.evaluate(NAMELESS) == []
    assert page.evaluate(SIDEWAYS) <= 0
    assert page.evaluate(CONTRAST) == []
    page.emulate_media(color_scheme="dark")
    wait_in_page(page, "document.documentElement.getAttribute('data-mantine-color-scheme') === 'dark'")
    wait_in_page(page, f"({CONTRAST})().length === 0")  # colours change over a moment
    page.set_viewport_size(PHONE)
    wait_in_page(page, f"({SIDEWAYS}) <= 0")
    page.goto("about:blank")


def test_every_page_has_a_title_of_its_own(page: Page, site: tuple[str, Made]) -> None:
    address, _ = site
    titles = []
    page.goto(f"{address}/dashboard/")
    expect(page.locator("header nav a")).to_have_count(len(TITLES))
    for link in page.locator("header nav a").all():
        link.click()
        expect(page.locator("header nav a[aria-current]")).to_have_text(link.inner_text())
        titles.append(page.title())
    assert titles == [f"{title} · Helios" for title in TITLES]


BRIGHTNESS = """(selector) => {
    const [r, g, b] = getComputedStyle(document.querySelector(selector)).backgroundColor.match(/[0-9.]+/g).map(Number);
    return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
}"""


def test_dark_mode_follows_the_system_and_the_switch_is_remembered(browser: Browser, site: tuple[str, Made]) -> None:
    address, _ = site
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(f"{address}/dashboard/timeline")
    expect(page.locator("#timeline-grid .ag-row").first).to_be_visible()
    surfaces = ("body", ".card", "#timeline-grid .ag-root-wrapper")
    assert all(page.evaluate(BRIGHTNESS, surface) < 0.2 for surface in surfaces)
    page.get_by_role("button", name="Switch between light and dark").click()
    wait_in_page(page, "document.documentElement.getAttribute('data-mantine-color-scheme') === 'light'")
    assert all(page.evaluate(BRIGHTNESS, surface) > 0.8 for surface in surfaces)
    page.reload()
    expect(page.locator("#timeline-grid .ag-row").first).to_be_visible()
    assert page.evaluate(BRIGHTNESS, ".card") > 0.8
    context.close()


EMPTY = {
    "/dashboard/": "No engine has run on this store yet",
    "/dashboard/timeline": "Nothing has been decided yet",
    "/dashboard/requests": "No request",
    "/dashboard/costs": "",
    "/dashboard/learning": "",
    "/dashboard/policy": "holds no policy yet",
    "/dashboard/sql": "SELECT",
    "/dashboard/plan/run-1/7": "No such plan",
    "/dashboard/requests/run-1/req-1": "No such request",
}


def test_an_empty_store_says_what_to_do(
    page: Page, store: sa.Engine, fake_engine: Any, serve: Callable[..., AbstractContextManager[str]]
) -> None:
    with serve(store, fake_engine) as address:
        for path, words in EMPTY.items():
            page.goto(address + path)
            expect(page.locator("main h1").first).to_be_visible()
            expect(page.locator("main")).to_contain_text(words)
            assert page.evaluate(SIDEWAYS) <= 0, path
        page.goto(f"{address}/dashboard/timeline")
        expect(page.locator("#timeline-curl")).to_contain_text(f"curl {address}/v1/chat/completions")
        page.goto("about:blank")


def test_every_page_is_there_over_a_million_plans(page: Page, million: Million, million_address: str) -> None:
    for name, (path, complete) in pages(million.made, "last=24h").items():
        page.goto(million_address + path)
        expect(page.locator(complete).first, name).to_be_visible()
        assert page.evaluate(SIDEWAYS) <= 0, name
        marks = "[...document.querySelectorAll('.js-plotly-plot')].flatMap((plot) => plot.data || [])"
        counted = f"{marks}.reduce((sum, trace) => sum + ((trace.x || trace.y || []).length || 0), 0)"
        assert page.evaluate(counted) <= 5000, name
    page.goto("about:blank")
