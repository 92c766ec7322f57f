"""A real Chromium, and the dashboard served by itself over a filled store."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
import uvicorn
from factories import FilledStore, fill_store
from litestar import Litestar
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from dashboard import create_dashboard
from dashboard.asgi import mount
from service.control.policy import PolicyControl

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM_ARGUMENTS = (
    *("--no-sandbox", "--headless", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PATIENCE_MS = 30_000
INSTRUCTION = (
    "browser tests need a Chromium: install one (Debian: apt-get install chromium) so that "
    f"{', '.join(CHROMIUM_NAMES)} is on PATH, or set HELIOS_TEST_CHROMIUM to its path"
)


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """Any Chromium of this machine; without one the test is skipped, and fails under CI."""
    named = os.environ.get("HELIOS_TEST_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    if found is None or not os.access(found, os.X_OK):
        if os.environ.get("CI"):
            pytest.fail(INSTRUCTION, pytrace=False)
        pytest.skip(INSTRUCTION)
    return found


@pytest.fixture(scope="session")
def browser(chromium_path: str) -> Iterator[Browser]:
    """One browser process for the session."""
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium_path, args=CHROMIUM_ARGUMENTS)
        yield launched
        launched.close()


class Engine:
    """Stands in for the engine's client: records what it is given, or fails with `error`."""

    def __init__(self) -> None:
        self.applied: list[tuple[int, dict[str, Any]]] = []
        self.error: Exception | None = None

    async def apply(self, version: int, coefficients: dict[str, Any]) -> int:
        if self.error is not None:
            raise self.error
        self.applied.append((version, coefficients))
        return 1000 + version


@pytest.fixture
def fake_engine() -> Engine:
    return Engine()


@pytest.fixture
def filled(store: sa.Engine) -> FilledStore:
    """What the store holds before the dashboard starts."""
    return fill_store(store)


@contextlib.contextmanager
def serving(store: sa.Engine, engine: Engine) -> Iterator[str]:
    """The dashboard alone, behind Litestar and uvicorn in a thread; yields its address."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))

    def run() -> None:
        server.run(sockets=[listener])

    control = PolicyControl(store, engine.apply)
    app = Litestar([mount(create_dashboard(engine=store, control=control))])
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=1))
    started = threading.Event()
    original = server.startup

    async def startup(sockets: list[socket.socket] | None = None) -> None:
        await original(sockets)
        started.set()

    server.startup = startup  # type: ignore[method-assign]
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(30), "the server did not start"
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


@pytest.fixture
def serve() -> Callable[[sa.Engine, Engine], contextlib.AbstractContextManager[str]]:
    """`serving`, for tests that prepare their own store."""
    return serving


@pytest.fixture
def address(store: sa.Engine, filled: FilledStore, fake_engine: Engine) -> Iterator[str]:
    """The dashboard over the filled store."""
    with serving(store, fake_engine) as url:
        yield url


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
