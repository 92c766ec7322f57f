"""What the pages may touch: the store, read in threads of the dashboard's own, and the policy control."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa

from dashboard.reads import Reads
from service.control.guards import GuardControl
from service.control.policy import PolicyControl
from service.control.preview.jobs import Previews

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True, slots=True)
class ControlRoom:
    """Passed to every page when the dashboard is made; pages keep nothing between callbacks.

    Without `guards` or `previews` the policy page says that they are not available. `mixed_prefill`: whether the server
    prepared graphs that read a prompt beside running answers.
    """

    engine: sa.Engine
    control: PolicyControl
    reads: Reads = dataclasses.field(default_factory=Reads)
    guards: GuardControl | None = None
    previews: Previews | None = None
    mixed_prefill: bool = True

    async def read(self, query: Callable[[sa.Engine], Result]) -> Result:
        """Runs `query` in a thread, since SQL would hold up the event loop and with it every stream.

        Raises what `query` raises: StoreError, or sqlalchemy.exc.SQLAlchemyError. StoreError too when it reads for
        longer than a view may, or when too many views read at once.
        """
        return await self.reads.run(self.engine, query)
