"""The browser of every test that needs one: a plugin that tests/conftest.py loads, so that there is one Playwright.

Playwright's synchronous interface keeps an event loop running in the main thread from its start to the end of the
session, and there `asyncio.run` is refused meanwhile. So the modules that use the browser run after all others, and
in them only threads may call `asyncio.run`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from needs import program
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM_ARGUMENTS = (
    *("--no-sandbox", "--headless", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PATIENCE_MS = 30_000
INSTRUCTION = (
    "browser tests need a Chromium: install one (Debian: apt-get install chromium) so that "
    f"{', '.join(CHROMIUM_NAMES)} is on PATH, or set HELIOS_TEST_CHROMIUM to its path"
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules with a test that uses the browser come last, whole, so that their own servers start once."""
    last = {item.path for item in items if "browser" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item.path in last)


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """Any Chromium of this machine."""
    return program(*CHROMIUM_NAMES, instruction=INSTRUCTION, named=os.environ.get("HELIOS_TEST_CHROMIUM"))


@pytest.fixture(scope="session")
def browser(chromium_path: str) -> Iterator[Browser]:
    """One browser process for the session."""
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium_path, args=CHROMIUM_ARGUMENTS)
        yield launched
        launched.close()


class Watch:
    """What a page did that no page may do."""

    def __init__(self) -> None:
        self.console: list[str] = []
        self.requests: list[str] = []
        self.failures: list[str] = []

    def follow(self, page: Page) -> None:
        page.on("console", lambda message: self._said(message.type, message.text))
        page.on("pageerror", lambda error: self.console.append(f"page error: {error}"))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("response", lambda response: self._answered(response.status, response.url))
        page.on("websocket", lambda socket_: self.requests.append(socket_.url))

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.console.append(f"{kind}: {text}")

    def _answered(self, status: int, url: str) -> None:
        if status >= 400:
            self.failures.append(f"{status} {url}")


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light", locale="en-US")
    made.set_default_timeout(PATIENCE_MS)
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext, watch: Watch) -> Iterator[Page]:
    """A page at 1280×800. The test fails if it says anything on its console or asks for anything that is refused."""
    made = context.new_page()
    watch.follow(made)
    yield made
    assert watch.console == []
    assert watch.failures == []
