"""What the steps of one worker iteration share, and how a request ends."""

from __future__ import annotations

import dataclasses

from gpu.device import Device
from scheduler.plans import ScheduledPlan
from scheduler.policy import PolicyConfig
from scheduler.records import FinishReason, RequestHandle
from scheduler.scheduler import RequestScheduler
from service.engine.metrics import EngineMetrics
from service.engine.ports import Clock
from service.engine.requests import Ending, EngineRequest, RequestTable
from service.ipc.messages import EngineReady, Event
from service.journal.records import Record


@dataclasses.dataclass(frozen=True, slots=True)
class InFlight:
    """The submitted frame. There is one at a time; frame slot 1 joins with the execution queue."""

    fence: int
    plan: ScheduledPlan
    submitted_ns: int


@dataclasses.dataclass(slots=True)
class Core:
    """The worker's state. Invariants:

    `now_ns`: the time of this iteration, which the scheduler has too.
    `records`: what the next journal write holds. `outbox`: events per client, handed over after that write.
    `touched`: requests with tokens or an ending to publish, in order, by id of the object.
    `completed`: fence and lane numbers by handle of the frame that completed in this iteration.
    `clients`: every connection that has sent something and still stands.
    `stopping`: nothing is taken in or planned any more.
    """

    scheduler: RequestScheduler
    device: Device
    metrics: EngineMetrics
    clock: Clock
    ready: EngineReady
    policy: PolicyConfig
    policy_version: int
    queue_limit: int
    now_ns: int = 0
    last_fence: int = 0
    in_flight: InFlight | None = None
    completed: tuple[int, dict[RequestHandle, int]] | None = None
    table: RequestTable = dataclasses.field(default_factory=RequestTable)
    records: list[Record] = dataclasses.field(default_factory=list)
    outbox: dict[bytes, list[Event]] = dataclasses.field(default_factory=dict)
    touched: dict[int, EngineRequest] = dataclasses.field(default_factory=dict)
    clients: set[bytes] = dataclasses.field(default_factory=set)
    stopping: bool = False

    def advance(self) -> None:
        """Read the clock, for this iteration and for the scheduler."""
        self.now_ns = max(self.now_ns, self.clock())
        self.scheduler.advance_to(self.now_ns)

    def say(self, client: bytes, event: Event) -> None:
        """Put an event for a client behind this iteration's journal write."""
        self.outbox.setdefault(client, []).append(event)

    def touch(self, request: EngineRequest) -> None:
        """The request has something to publish."""
        self.touched[id(request)] = request

    def end(self, request: EngineRequest, reason: FinishReason, error: str | None, decided_ns: int) -> None:
        """Give the request its one terminal state and its pages back; the scheduler no longer selects it.

        The pages of a frame that runs stay with the device until it has finished (fenced ownership).
        """
        assert request.ending is None
        request.ending = Ending(reason, error, decided_ns)
        self.table.remove(request)
        if request.handle is not None:
            if self.scheduler.is_resident(request.handle):  # not when its own completion ended it
                self.scheduler.cancel(request.handle)
            self.device.close_request(request.handle.slot)
        self.touch(request)

    def end_all(self, reason: FinishReason, error: str) -> None:
        """End every open request."""
        for request in self.table:
            self.end(request, reason, error, self.now_ns)

    def drop_client(self, client: bytes) -> None:
        """The client is gone: its requests stop costing anything after the graph that is running."""
        self.clients.discard(client)
        self.outbox.pop(client, None)
        for request in self.table.of_client(client):
            self.end(request, FinishReason.ABORT, "the client went away", self.now_ns)
