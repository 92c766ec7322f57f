"""Work that ends when the client that asked for it leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from litestar import Request

from service.api.errors import ClientLeft

Result = TypeVar("Result")


async def unless_left(request: Request[Any, Any, Any], work: Coroutine[Any, Any, Result]) -> Result:
    """What `work` gives; it is cancelled when the client closes its connection, and when this call is.

    Call it when the body has been read. Raises ClientLeft, which nobody reads, and what `work` raises.
    """
    task = asyncio.ensure_future(work)
    left = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait([task, left], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeft("The client left before its answer was there.")
        return task.result()
    finally:
        for each in (task, left):
            each.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await each


async def _left(request: Request[Any, Any, Any]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
