"""What holds for every page: local requests only, no console errors, phone width, dark mode, contrast, deep links."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import sqlalchemy as sa
from factories import FilledStore
from playwright.sync_api import Browser, Page, expect
from waiting import wait_in_page

pytestmark = pytest.mark.browser


def pages(filled: FilledStore) -> list[tuple[str, str]]:
    """(path, what is there once the page is complete)"""
    run, fence = filled.plan_keys[-20]
    return [
        ("/dashboard/timeline", "#timeline-grid .ag-row"),
        (f"/dashboard/plan/{run}/{fence}", "#plan-lanes .ag-row"),
        ("/dashboard/policy", "#policy-history .ag-row"),
    ]


def test_only_the_server_itself_is_asked_and_no_websocket_is_opened(
    page: Page, address: str, filled: FilledStore, watch: Any
) -> None:
    for path, complete in pages(filled):
        page.goto(address + path)
        expect(page.locator(complete).first).to_be_visible()
    assert len(watch.requests) > 20
    assert [url for url in watch.requests if not url.startswith(f"{address}/dashboard/timeline")] == []


@pytest.mark.parametrize("width", [360, 1280])
def test_no_page_scrolls_sideways(browser: Browser, address: str, filled: FilledStore, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800})
    page = context.new_page()
    for path, complete in pages(filled):
        page.goto(address + path)
        expect(page.locator(complete).first).to_be_attached()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
    context.close()


BRIGHTNESS = """(selector) => {
    const [r, g, b] = getComputedStyle(document.querySelector(selector)).backgroundColor.match(/[0-9.]+/g).map(Number);
    return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
}"""


def test_dark_mode_follows_the_system_and_the_switch_is_remembered(browser: Browser, address: str) -> None:
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


CONTRAST = """() => {
    const channel = (c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : Math.pow((c + 0.055) / 1.055, 2.4); };
    const light = (c) => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
    const parse = (text) => (text.match(/[0-9.]+/g) || []).map(Number);
    const behind = (node) => {
        for (let at = node; at; at = at.parentElement) {
            const c = parse(getComputedStyle(at).backgroundColor);
            if (c.length >= 3 && (c.length < 4 || c[3] === 1)) return c;
        }
        return [255, 255, 255];
    };
    const poor = [];
    for (const node of document.querySelectorAll("main *, header *")) {
        const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
        if (!own || !node.getClientRects().length) continue;
        if (node.closest("svg, [data-disabled], .disabled, .skip-link")) continue;
        const [a, b] = [light(parse(getComputedStyle(node).color)), light(behind(node))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) poor.push(node.textContent.slice(0, 40) + " " + ratio.toFixed(2));
    }
    return poor;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_what_is_behind_it(
    browser: Browser, address: str, filled: FilledStore, scheme: str
) -> None:
    context = browser.new_context(color_scheme="dark" if scheme == "dark" else "light")
    page = context.new_page()
    for path, complete in pages(filled):
        page.goto(address + path)
        expect(page.locator(complete).first).to_be_visible()
        assert page.evaluate(CONTRAST) == [], path
    context.close()


def test_an_empty_store_says_what_to_do(
    page: Page, store: sa.Engine, fake_engine: Any, serve: Callable[..., AbstractContextManager[str]]
) -> None:
    with serve(store, fake_engine) as address:
        page.goto(f"{address}/dashboard/timeline")
        expect(page.locator("#timeline-empty")).to_contain_text("Nothing has been decided yet")
        expect(page.locator("#timeline-curl")).to_contain_text(f"curl {address}/v1/chat/completions")
        page.goto(f"{address}/dashboard/policy")
        expect(page.locator("main")).to_contain_text("holds no policy yet")
        page.goto("about:blank")


def test_the_skip_link_is_the_first_stop_of_the_keyboard(page: Page, address: str) -> None:
    page.goto(f"{address}/dashboard/timeline")
    expect(page.locator("#timeline-grid .ag-row").first).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
