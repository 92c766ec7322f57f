"""The browser of measurements: Playwright, which is no dependency of the server, and any Chromium of this machine."""

from __future__ import annotations

import contextlib
import importlib
import shutil
from collections.abc import Iterator
from typing import Any

from service.load.errors import BrowserMissing

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = (
    *("--no-sandbox", "--headless", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_PLAYWRIGHT = "playwright.sync_api"


@contextlib.contextmanager
def launched(path: str | None = None) -> Iterator[Any]:
    """A Chromium, as Playwright's Browser; `path`: its program. Raises BrowserMissing."""
    program = path or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        raise BrowserMissing(
            f"no Chromium found as {', '.join(NAMES)}: install one (Debian: apt-get install chromium), or name its"
            " program with --chromium"
        )
    try:
        playwright = importlib.import_module(_PLAYWRIGHT)
    except ImportError:
        raise BrowserMissing(
            "the browser is driven by Playwright: pip install playwright (a browser is not needed)"
        ) from None
    with playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        except playwright.Error as error:
            raise BrowserMissing(f"{program} cannot be started: {str(error).strip().splitlines()[0]}") from None
        yield browser
        browser.close()
