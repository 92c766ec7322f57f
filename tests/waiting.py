"""Waiting for another process: by looking until it is so, never by a sleep that is hoped to be long enough."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> object:
    """Polls until `condition` gives something true and returns it; fails the test after `seconds`."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {what}"
        pause.wait(0.02)


def wait_in_page(page: Page, expression: str, seconds: float = 30.0) -> object:
    """Polls until a JavaScript expression is true in a page, where Playwright's own way, eval, is forbidden."""
    return wait_until(lambda: page.evaluate(expression), expression, seconds)
