"""A few places for work that may take long: who finds none waits a short while, and is told so when too many wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from service.store.errors import TooManyReads


class Places:
    """For one event loop. At most `count` hold a place and `waiting` wait for one, each for `patience_s`."""

    def __init__(self, count: int, waiting: int, patience_s: float, busy: str) -> None:
        """`busy`: what is said to who gets none."""
        self._free = asyncio.Semaphore(count)
        self._may_wait = waiting
        self._patience_s = patience_s
        self._busy = busy
        self._waiting = 0
        self._taken = 0

    @property
    def taken(self) -> int:
        """How many hold one."""
        return self._taken

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """A place for as long as the block runs. Raises TooManyReads."""
        if self._free.locked():
            await self._wait()
        else:
            await self._free.acquire()
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1
            self._free.release()

    async def _wait(self) -> None:
        if self._waiting >= self._may_wait:
            raise TooManyReads(self._busy)
        self._waiting += 1
        try:
            await asyncio.wait_for(self._free.acquire(), self._patience_s)
        except TimeoutError as error:
            raise TooManyReads(self._busy) from error
        finally:
            self._waiting -= 1
