"""What the pages may touch: the store, read in threads, and the policy control."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa

from service.control.policy import PolicyControl

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True, slots=True)
class ControlRoom:
    """Passed to every page when the dashboard is made; pages keep nothing between callbacks."""

    engine: sa.Engine
    control: PolicyControl

    async def read(self, query: Callable[[sa.Engine], Result]) -> Result:
        """Runs `query` in a thread, since SQL would hold up the event loop and with it every stream.

        Raises what `query` raises: StoreError, or sqlalchemy.exc.SQLAlchemyError.
        """
        return await asyncio.to_thread(query, self.engine)
