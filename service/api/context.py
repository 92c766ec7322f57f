"""What every route shares: one frozen record made at start-up, plus the set of open generations."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import anyio
import anyio.to_thread
import sqlalchemy as sa
from litestar import Request

from service.api.engine_port import EnginePort
from service.api.errors import EngineNotReady, QueueFull, ShuttingDown
from service.api.gate import Gate
from service.api.scrapes import Scrapes
from service.control.policy import PolicyControl
from service.control.preview.jobs import Previews
from service.control.rate_limit import RateLimit
from service.ipc.messages import EngineReady
from service.settings import Settings
from service.store.asking import Asking
from service.store.read_limits import ReadLimit, limited
from service.telemetry.service_metrics import ServiceMetrics
from service.text import TextModel

P = ParamSpec("P")
T = TypeVar("T")
STORE_THREADS = 4
TOKENIZE_THREADS = 2
READ_LIMIT_S = 10.0
"""For one listing of the trace: as long as a view of the dashboard may read."""
SQL_PER_MINUTE, SQL_BURST = 60.0, 30
"""An operator's statements, for each caller."""
_WHY = {
    "starting": "The engine is starting",
    "down": "The engine went away and a new one is starting",
    "stopping": "The engine is stopping",
}


class OpenAnswer(Protocol):
    """An answer that is being generated."""

    def interrupt(self) -> None:
        """End with ShuttingDown at the next opportunity."""


@dataclasses.dataclass(slots=True)
class ApiContext:
    """Everything the routes work with; only `open`, `tokenizing`, `stopping` and `policy_trouble` change.

    `gate` is None where no credentials are asked for. `policy_trouble`: what people should know of the engine's
    policy, empty when all is well.
    """

    settings: Settings
    text_model: TextModel
    engine: EnginePort
    store: sa.Engine
    control: PolicyControl
    metrics: ServiceMetrics
    scrapes: Scrapes
    started_at: int
    store_threads: anyio.CapacityLimiter
    tokenize_threads: anyio.CapacityLimiter
    previews: Previews
    gate: Gate | None = None
    asking: Asking = dataclasses.field(default_factory=Asking)
    sql_rate: RateLimit = dataclasses.field(default_factory=lambda: RateLimit(SQL_PER_MINUTE, SQL_BURST))
    stopping: bool = False
    tokenizing: int = 0
    policy_trouble: str = ""
    open: set[OpenAnswer] = dataclasses.field(default_factory=set)

    def require_engine(self) -> EngineReady:
        """The ready engine; raises ShuttingDown or EngineNotReady."""
        if self.stopping:
            raise ShuttingDown("The server is shutting down; ask again once it is back.")
        ready = self.engine.ready
        if self.engine.state != "ready" or ready is None:
            raise EngineNotReady(f"{_WHY.get(self.engine.state, 'The engine is not ready')}; try again in a moment.")
        return ready

    @property
    def most_open(self) -> int:
        """The most answers that the server works on at once."""
        return self.settings.queue_limit + self.settings.request_slots

    def require_room(self, answers: int = 1) -> None:
        """Raises QueueFull unless this many answers fit beside those that are open or whose text is tokenized."""
        if len(self.open) + self.tokenizing + answers > self.most_open:
            raise QueueFull(
                f"The server works on at most {self.most_open:,} answers at once and has no room for "
                f"{'another' if answers == 1 else f'{answers:,} more'}; try again in a moment."
            )

    @contextlib.contextmanager
    def tokenize_place(self) -> Iterator[None]:
        """Counts a request as open while its text is tokenized; raises QueueFull."""
        self.require_room()
        self.tokenizing += 1
        try:
            yield
        finally:
            self.tokenizing -= 1

    def begin_shutdown(self) -> None:
        """Take nothing more and end every open generation with a terminal event. On the event loop's thread."""
        self.stopping = True
        for generation in list(self.open):
            generation.interrupt()

    async def read(self, query: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a database read in a thread of its own small pool.

        A caller that is cancelled waits for the query, so its connection always goes back to the pool.
        """
        return await anyio.to_thread.run_sync(functools.partial(query, *args, **kwargs), limiter=self.store_threads)

    async def read_store(self, query: Callable[Concatenate[sa.Engine, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`read` of the store, ended in the database after READ_LIMIT_S. Raises ReadTooLong."""

        def limited_read() -> T:
            return query(limited(self.store, ReadLimit(READ_LIMIT_S)), *args, **kwargs)

        return await self.read(limited_read)


def context_of(request: Request[Any, Any, Any]) -> ApiContext:
    """The application's context."""
    context: ApiContext = request.app.state.context
    return context
