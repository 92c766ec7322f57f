"""Renderings of the metrics that hold up nobody."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from typing import NamedTuple

import anyio
import anyio.to_thread

_GZIP_LEVEL = 1


class Form(NamedTuple):
    """How an answer is written. Only OpenMetrics text has exemplars."""

    openmetrics: bool
    compressed: bool


class Scrapes:
    """Renders in one thread of its own, so that neither the event loop nor other threads' work waits for it.

    Scrapers that ask while a rendering runs share the next one. That begins after all of them have asked, so their
    answer is as fresh as one alone would have, and fifty at once cost two renderings.
    """

    def __init__(self, render: Callable[[bool], bytes]) -> None:
        """`render` writes the exposition, as OpenMetrics where it is told True."""
        self._render = render
        self._thread = anyio.CapacityLimiter(1)
        self._turn = asyncio.Lock()
        self._waiting: dict[Form, asyncio.Task[bytes]] = {}

    async def body(self, form: Form) -> bytes:
        """The exposition as it is now, on the event loop's thread. Its caller may be cancelled; others still get it."""
        shared = self._waiting.get(form)
        if shared is None:
            shared = self._waiting[form] = asyncio.create_task(self._rendered(form), name="scrape")
        return await asyncio.shield(shared)

    async def _rendered(self, form: Form) -> bytes:
        async with self._turn:
            del self._waiting[form]  # what happens from now on may be missing in it
            return await anyio.to_thread.run_sync(self._write, form, limiter=self._thread)

    def _write(self, form: Form) -> bytes:
        text = self._render(form.openmetrics)
        return gzip.compress(text, _GZIP_LEVEL, mtime=0) if form.compressed else text
