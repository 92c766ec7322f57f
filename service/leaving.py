"""Work that ends when the client that asked for it leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")
DISCONNECT = "http.disconnect"


class ClientLeft(Exception):
    """The client closed its connection before its answer was there; nobody reads one."""


async def unless_left(receive: Callable[[], Awaitable[Any]], work: Coroutine[Any, Any, Result]) -> Result:
    """What `work` gives; it is cancelled when the client closes its connection, and when this call is.

    `receive` is ASGI's, of a request whose body has been read. Waits until the work has ended. Raises ClientLeft, and
    what `work` raises.
    """
    task = asyncio.ensure_future(work)
    left = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait([task, left], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeft("the client left before its answer was there")
        return task.result()
    finally:
        for each in (task, left):
            each.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await each


async def _left(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != DISCONNECT:
        pass
