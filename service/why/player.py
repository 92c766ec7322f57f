"""Gives the decision log's calls to a scheduler: the fast one or the reference, either from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from scheduler import layout
from scheduler.catalog import Catalog
from scheduler.errors import InvalidCheckpoint, InvalidPolicy, SchedulerError
from scheduler.plans import PlanLane, ScheduledPlan
from scheduler.policy import PolicyConfig
from scheduler.records import CompletionRecord, ExecutionTiming, FinishReason, RequestHandle, RequestSpec
from scheduler.replay import decode, shapes_in
from scheduler.scheduler import RequestScheduler
from service.journal import calls as log
from service.why.errors import NotReplayable
from service.why.reference_state import reference_from

_FAILED = "failed when it was recorded"
_UNKNOWN = (
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    StopIteration,
    msgspec.MsgspecError,
    InvalidPolicy,
)
"""What an entry raises that no version of this program writes, or that somebody else made."""


class Decided(NamedTuple):
    """What plan() gave where the recorded run committed `fence`; it has been committed, unless it is None."""

    fence: int
    plan: ScheduledPlan | None


class Completed(NamedTuple):
    """Frame `fence` has just completed."""

    fence: int


Event = Decided | Completed


class Player:
    """Steps one scheduler through the log's entries, in order, from the checkpoint that it was restored from."""

    def __init__(self, scheduler: Any, checkpoint: bytes) -> None:
        self.scheduler = scheduler
        saved = decode(checkpoint, Catalog(shapes_in(checkpoint)))
        self._handles = {slot: RequestHandle(slot, generation) for slot, generation in saved.served.items()}
        one: dict[int, Callable[..., Event | None]] = {
            log.COMMIT: self._commit,
            log.COMPLETE: self._complete,
            log.ADMIT: self._admit,
            log.OFFER: self._offer,
            log.PUBLISHED: self._published,
            log.SNAPSHOT: scheduler.published_snapshot,
            log.POLICY: self._policy,
            log.RESOURCES: scheduler.set_resources,
        }
        for code, method in _OF_ONE_REQUEST.items():
            one[code] = self._with_handle(method)
        self._calls = one

    @classmethod
    def fast(cls, checkpoint: bytes) -> Player:
        """Over the scheduler that engines use. Raises NotReplayable."""
        return cls._of(lambda: RequestScheduler.restore(checkpoint, Catalog(shapes_in(checkpoint))), checkpoint)

    @classmethod
    def reference(cls, checkpoint: bytes) -> Player:
        """Over its slow twin. Raises NotReplayable."""
        return cls._of(lambda: reference_from(checkpoint), checkpoint)

    @classmethod
    def _of(cls, make: Callable[[], Any], checkpoint: bytes) -> Player:
        try:
            return cls(make(), checkpoint)
        except InvalidCheckpoint as error:
            raise NotReplayable(f"{error}. Use the version of Helios that recorded the run") from error

    def step(self, entry: Any) -> Event | None:
        """Make one call. Raises NotReplayable for one that this program does not know or the scheduler refuses."""
        try:
            if isinstance(entry, int):
                self.scheduler.advance_to(entry)
                return None
            code, *arguments = entry
            return self._calls[code](*arguments)
        except SchedulerError as error:
            raise NotReplayable(f"the log and the replayed scheduler have parted: {error}") from error
        except _UNKNOWN as error:
            raise NotReplayable(
                f"the log holds a call that this version does not know ({error!r}). Use the version of Helios that "
                "recorded the run"
            ) from error

    def _with_handle(self, method: str) -> Callable[..., None]:
        def call(slot: int, generation: int) -> None:
            getattr(self.scheduler, method)(RequestHandle(slot, generation))

        return call

    def _commit(self, fence: int) -> Event:
        plan = self.scheduler.plan()
        if plan is not None:
            self.scheduler.commit(plan, fence)
        return Decided(fence, plan)

    def _complete(
        self,
        fence: int,
        device_ns: Sequence[int],
        wall_ns: int,
        exposed_ns: int,
        did: bytes,
        endings: Sequence[str],
        confidence: bytes | None,
        survival: bytes | None,
    ) -> Event:
        plan = self.scheduler.in_flight
        if plan is None:
            raise NotReplayable(f"the log and the replayed scheduler have parted: no frame {fence} is in flight")
        lanes = plan.lanes
        self._handles = {lane.handle.slot: lane.handle for lane in lanes}
        rows, ends = np.frombuffer(did, np.int8).reshape(-1, layout.DID_COLUMNS).tolist(), iter(endings)
        records = [_record(lane, row, ends) for lane, row in zip(lanes, rows, strict=True)]
        name, sidecars = "complete", []
        if confidence is not None:
            joint = self._rows(confidence, lanes, np.float32, 0.0)
            name, sidecars = "complete_packed_round", [np.stack([joint, joint])]  # only the joint one is learned from
        if survival is not None:
            name, sidecars = f"{name}_with_survival", [*sidecars, self._rows(survival, lanes, np.float64, np.nan)]
        timing = ExecutionTiming(tuple(device_ns), wall_ns, exposed_ns)
        getattr(self.scheduler, name)(fence, records, timing, *sidecars)
        return Completed(fence)

    def _rows(self, data: bytes, lanes: Sequence[PlanLane], dtype: Any, elsewhere: float) -> Any:
        """A sidecar [request_slots, draft_capacity] from its lanes' rows."""
        extents = (self.scheduler.request_slots, self.scheduler.draft_capacity)
        values = np.full(extents, elsewhere, dtype)
        rows = np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(len(lanes), -1)
        values[[lane.handle.slot for lane in lanes]] = rows
        return values

    def _admit(self, spec: dict[str, Any]) -> None:
        self.scheduler.admit(msgspec.convert(spec, RequestSpec))

    def _offer(self, slot: int, generation: int, count: int) -> None:
        self.scheduler.offer_proposals(RequestHandle(slot, generation), "copy", count)

    def _published(self, fence: int, *slots: int) -> None:
        for slot in slots:
            self.scheduler.published_output(self._handles[slot], fence)

    def _policy(self, coefficients: dict[str, Any]) -> None:
        self.scheduler.configure_policy(PolicyConfig.balanced().merged(coefficients))


_OF_ONE_REQUEST = {log.CANCEL: "cancel", log.PREEMPT: "preempt", log.RESTORED: "restored", log.FINISH: "finish"}


def _record(lane: PlanLane, did: Sequence[int], endings: Iterator[str]) -> CompletionRecord:
    """What a lane did, with tokens that nobody knows any more: a decision depends on their number alone."""
    emitted, accepted, offered, ended = did
    if ended == layout.FAILED:
        return CompletionRecord(lane.handle, error=_FAILED)
    finished = FinishReason(next(endings)) if ended == layout.FINISHED else None
    return CompletionRecord(lane.handle, lane.prompt_tokens, (0,) * emitted, accepted, finished, None, offered)
