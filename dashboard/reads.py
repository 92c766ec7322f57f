"""The views' own threads: few, so that slow views delay one another and nothing else.

They are the reader's (dashboard.reader); a dashboard without one has them in its own process. A view waits for its
turn for a short while and reads for a limited time; when too many wait, it is told so at once. A view whose caller
leaves is stopped in the database, and ends only when its connection is back in the pool.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import os
import threading
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa

from service.store.places import Places
from service.store.read_limits import ReadLimit, limited

Result = TypeVar("Result")

THREADS = 2
NICENESS = 10
WAITING = 32
PATIENCE_S = 5.0
LIMIT_S = 10.0
STOP_AGAIN_S = 0.1
BUSY = "The dashboard is busy: other views are still reading the trace store. Try again in a moment"


class Reads:
    """Runs the queries of all views of one dashboard; use it on one event loop."""

    def __init__(
        self,
        threads: int = THREADS,
        waiting: int = WAITING,
        patience_s: float = PATIENCE_S,
        limit_s: float = LIMIT_S,
    ) -> None:
        """At most `threads` run and `waiting` wait, each for `patience_s`; one query reads for `limit_s`."""
        self._threads = concurrent.futures.ThreadPoolExecutor(
            threads, thread_name_prefix="helios-view", initializer=_give_way
        )
        self._places = Places(threads, waiting, patience_s, BUSY)
        self._limit_s = limit_s

    async def run(self, engine: sa.Engine, query: Callable[[sa.Engine], Result]) -> Result:
        """What `query` makes of the engine, in a thread.

        Raises TooManyReads when there is no place, ReadTooLong after `limit_s`, and what `query` raises. Cancelling the
        caller stops the query.
        """
        async with self._places.one():
            limit = ReadLimit(self._limit_s)
            work = contextvars.copy_context().run
            task = asyncio.get_running_loop().run_in_executor(self._threads, work, query, limited(engine, limit))
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                await _until_stopped(limit, task)
                raise


def _give_way() -> None:
    """Lowers this thread's priority, which on Linux is a thread's own: tokens come first, and then the event loop."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


async def _until_stopped(limit: ReadLimit, task: asyncio.Future[Result]) -> None:
    """Stops the query and waits until its thread is done with it, however often the caller is cancelled again.

    A cancellation that reaches the server just before the statement does is lost, so it is repeated.
    """
    stopping = asyncio.ensure_future(_stop(limit, task))
    while not stopping.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(stopping)


async def _stop(limit: ReadLimit, task: asyncio.Future[Result]) -> None:
    while not task.done():
        await asyncio.to_thread(limit.cancel)
        await asyncio.wait([task], timeout=STOP_AGAIN_S)
    task.exception()  # nobody asks for it any more
