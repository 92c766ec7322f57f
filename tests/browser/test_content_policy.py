"""Nothing but what this server serves runs in a page. That no page breaks its policy, the other tests' console says."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect
from waiting import wait_in_page

pytestmark = pytest.mark.browser

VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
    window.violations.push(`${event.effectiveDirective} ${event.blockedURI} ${event.sample}`));
"""
INJECT = """() => {
    const script = document.createElement("script");
    script.textContent = "window.injected = 'inline script'";
    document.body.append(script);
    const image = document.createElement("img");
    image.setAttribute("onerror", "window.injected = 'handler'");
    image.src = "data:,x";
    document.body.append(image);
    const link = document.createElement("a");
    link.href = "javascript:window.injected='address'";
    document.body.append(link);
    link.click();
    const foreign = document.createElement("script");
    foreign.src = "https://elsewhere.example/x.js";
    document.body.append(foreign);
    window.setTimeout("window.injected = 'text that became a function'", 0);
}"""


def settled(page: Page) -> None:
    """The page has asked for all that it shows."""
    expect(page.locator("main .loading")).to_have_count(0)
    page.wait_for_load_state("networkidle")


def test_what_is_put_into_a_page_does_not_run(context: BrowserContext, address: str) -> None:
    page = context.new_page()
    page.add_init_script(VIOLATIONS)
    page.goto(f"{address}/dashboard/policy")
    settled(page)
    page.evaluate(INJECT)
    # The last of them is fetched, and so refused after the others.
    wait_in_page(page, "window.violations.some((found) => found.includes('elsewhere.example'))")
    assert sum("inline" in found for found in page.evaluate("window.violations")) >= 3
    assert page.evaluate("window.injected ?? null") is None


def test_no_other_page_may_frame_the_dashboard(context: BrowserContext, address: str) -> None:
    page: Any = context.new_page()
    page.route("http://elsewhere.example/", lambda route: route.fulfill(
        body=f"<iframe src='{address}/dashboard/'></iframe>", content_type="text/html"))  # fmt: skip
    page.goto("http://elsewhere.example/")
    page.wait_for_load_state("networkidle")
    assert [frame.url for frame in page.frames if frame.url.startswith(address)] == []
