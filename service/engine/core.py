"""What the steps of one worker iteration share, and how a request ends."""

from __future__ import annotations

import contextlib
import dataclasses

import msgspec

from gpu.device import Device, FrameResult
from scheduler.errors import UnknownHandle
from scheduler.plans import PlanLane, ScheduledPlan
from scheduler.policy import PolicyConfig
from scheduler.records import FinishReason, RequestHandle
from scheduler.scheduler import RequestScheduler
from scheduler.shapes import GraphKind
from service.engine.copy_trials import CopyTrials
from service.engine.decision_log import LoggedScheduler
from service.engine.metrics import EngineMetrics
from service.engine.plan_records import PlanRecords
from service.engine.ports import Clock
from service.engine.requests import Ending, EngineRequest, RequestTable
from service.ipc.messages import EngineReady, Event
from service.journal.records import Record

FRAME_SLOTS = 2


class InFlight(msgspec.Struct, frozen=True):
    """A submitted frame. `slot`: which of the two frame slots it takes.

    `requests`: whose each lane was at the commit; None where the request had ended. See EngineRequest.holds.
    """

    fence: int
    plan: ScheduledPlan
    submitted_ns: int
    slot: int
    requests: tuple[EngineRequest | None, ...]


@dataclasses.dataclass(slots=True)
class Core:
    """The worker's state. Invariants:

    `now_ns`: the time of this iteration, which the scheduler has too.
    `in_flight`: committed frames, oldest first, FRAME_SLOTS at most. `refused`: the result of one that the device
    did not take, until its turn comes.
    `records`: what the next journal write holds. `outbox`: events per client, handed over after that write.
    `touched`: requests with tokens or an ending to publish, in order, by id of the object.
    `completed`: fence and lane numbers by handle of the frame that completed in this iteration.
    `leaving`: requests that have ended and that the scheduler still holds, for a terminal snapshot or another frame,
    and the tokens that their cached states are to have.
    `clients`: every connection that has sent something and still stands.
    `copy_trials`: see `drafts`. `stopping`: nothing is taken in or planned any more.
    `traced`: plans are written down; only a measurement of what that costs says no. `log`: the scheduler, where its
    decision log is kept.
    `grows`: requests take KV pages as frames need them, so that they can be preempted; otherwise whole at admission.
    """

    scheduler: RequestScheduler
    device: Device
    metrics: EngineMetrics
    clock: Clock
    ready: EngineReady
    policy: PolicyConfig
    policy_version: int
    queue_limit: int
    traced: bool = True
    log: LoggedScheduler | None = None
    plan_records: PlanRecords = dataclasses.field(default_factory=PlanRecords)
    now_ns: int = 0
    last_fence: int = 0
    in_flight: list[InFlight] = dataclasses.field(default_factory=list)
    refused: FrameResult | None = None
    completed: tuple[int, dict[RequestHandle, int]] | None = None
    table: RequestTable = dataclasses.field(default_factory=RequestTable)
    leaving: dict[RequestHandle, int] = dataclasses.field(default_factory=dict)
    records: list[Record] = dataclasses.field(default_factory=list)
    outbox: dict[bytes, list[Event]] = dataclasses.field(default_factory=dict)
    touched: dict[int, EngineRequest] = dataclasses.field(default_factory=dict)
    clients: set[bytes] = dataclasses.field(default_factory=set)
    copy_trials: CopyTrials = dataclasses.field(default_factory=CopyTrials)
    stopping: bool = False
    grows: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        kinds = {shape.kind for shape in self.scheduler.catalog.shapes}
        self.grows = GraphKind.TERMINAL_SNAPSHOT in kinds

    def advance(self) -> None:
        """Read the clock, for this iteration and for the scheduler."""
        self.now_ns = max(self.now_ns, self.clock())
        self.scheduler.advance_to(self.now_ns)

    def count_resources(self) -> None:
        """Tell the scheduler what the device has, where that limits what may run."""
        if self.grows:
            device = self.device
            self.scheduler.set_resources(device.free_pages(), device.free_snapshot_rows(), device.limits.page_tokens)

    def log_calls(self) -> None:
        """Put what has changed the scheduler behind the records of this iteration."""
        calls = None if self.log is None else self.log.take_calls()
        if calls is not None:
            self.records.append(calls)

    def log_checkpoint(self) -> None:
        """Put the scheduler's state, with what led to it, behind the records: decisions are replayed from there."""
        if self.log is not None:
            self.records += self.log.take_checkpoint()

    def say(self, client: bytes, event: Event) -> None:
        """Put an event for a client behind this iteration's journal write."""
        self.outbox.setdefault(client, []).append(event)

    def touch(self, request: EngineRequest) -> None:
        """The request has something to publish."""
        self.touched[id(request)] = request

    def request_of(self, lane: PlanLane) -> EngineRequest | None:
        """The lane's request, unless it has ended meanwhile; its id may be another request's by now."""
        request = self.table.get(lane.request_id)
        return request if request is not None and request.holds(lane) else None

    def end(self, request: EngineRequest, reason: FinishReason, error: str | None, decided_ns: int) -> None:
        """Give the request its one terminal state and its pages back; the scheduler no longer selects it.

        The pages of a frame that runs stay with the device until it has finished (fenced ownership).
        """
        self._close(request, Ending(reason, error, decided_ns))
        if request.handle is not None:
            with contextlib.suppress(UnknownHandle):  # after an unexpected error, when nothing is sure
                self.scheduler.cancel(request.handle)
            self.device.close_request(request.handle.slot)

    def settle(self, request: EngineRequest, reason: FinishReason, error: str | None, decided_ns: int) -> None:
        """Give a request that a completion has ended in the scheduler its one terminal state.

        Its slot closes when the scheduler lets go of it, which may be after its terminal snapshot.
        """
        handle = request.handle
        assert handle is not None
        self._close(request, Ending(reason, error, decided_ns))
        if self.scheduler.is_resident(handle):
            self.leaving[handle] = request.computed_tokens
        else:
            self.device.close_request(handle.slot)

    def release(self) -> None:
        """Close the slots of ended requests that the scheduler has let go of."""
        for handle in [handle for handle in self.leaving if not self.scheduler.is_resident(handle)]:
            self.device.close_request(handle.slot)
            del self.leaving[handle]

    def preempted(self, request: EngineRequest) -> None:
        """The scheduler has let go of a request that goes on: it waits at the head of the queue."""
        assert request.handle is not None
        self.device.close_request(request.handle.slot)
        request.begin_life()
        self.table.requeue(request)

    def end_all(self, reason: FinishReason, error: str) -> None:
        """End every open request."""
        for request in self.table:
            self.end(request, reason, error, self.now_ns)

    def drop_client(self, client: bytes) -> None:
        """The client is gone: its requests stop costing anything after the graphs that are in flight."""
        self.clients.discard(client)
        self.outbox.pop(client, None)
        for request in self.table.of_client(client):
            self.end(request, FinishReason.ABORT, "the client went away", self.now_ns)

    def _close(self, request: EngineRequest, ending: Ending) -> None:
        assert request.ending is None
        request.ending = ending
        self.table.remove(request)
        self.touch(request)
