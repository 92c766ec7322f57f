"""A scheduler that writes down what changes it, for the decision log (see service.journal.calls).

Every-step code. Reading calls are not written; the time and the free resources are written before the first call
that could look at them, so that an idle iteration writes nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.completion import Completion
from scheduler.plans import ScheduledPlan
from scheduler.policy import PolicyConfig
from scheduler.records import ExecutionTiming, GeneratedToken, RequestHandle, RequestSpec
from scheduler.scheduler import DEFAULT_PAGE_TOKENS, RequestScheduler
from service.journal import calls as log
from service.journal.records import SchedulerCalls, SchedulerCheckpoint

# The methods behind those that run with every plan: looking one up takes half the time of super().
_commit, _published_outputs, _set_resources = (
    RequestScheduler.commit,
    RequestScheduler.published_outputs,
    RequestScheduler.set_resources,
)
_FASTEST = 1
"""zlib's level: an idle slot's arrays are zeros, which any level removes."""


class LoggedScheduler(RequestScheduler):
    """A RequestScheduler that notes each call which changes it, after the call has gone well."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._calls: list[Any] = []
        self._first_call = 0
        self._first_fence = 1
        self._noted_ns = self.now_ns
        self._resources: tuple[int, int, int] | None = None
        self._kept_call = -1

    def take_calls(self) -> SchedulerCalls | None:
        """The calls since the last time, as the record of one journal write; None without any."""
        calls = self._calls
        if not calls:
            return None
        first_call, first_fence, last_fence = self._first_call, self._first_fence, self._state.last_fence
        record = SchedulerCalls(
            first_call, len(calls), first_fence, last_fence, self._noted_ns, log.encoder.encode(calls)
        )
        self._calls = []
        self._first_call = first_call + len(calls)
        self._first_fence = last_fence + 1
        return record

    def take_checkpoint(self) -> list[SchedulerCalls | SchedulerCheckpoint]:
        """The calls since the last time and the state behind them; nothing if there was none since a checkpoint."""
        if not self._calls and self._first_call == self._kept_call:
            return []
        self._note_surroundings()
        calls = self.take_calls()
        data = zlib.compress(self.checkpoint(), _FASTEST)
        record = SchedulerCheckpoint(self._first_call, self._state.last_fence, self.now_ns, data)
        self._first_call += 1
        self._kept_call = self._first_call
        return [record] if calls is None else [calls, record]

    def set_resources(self, free_pages: int, free_snapshot_rows: int, page_tokens: int = DEFAULT_PAGE_TOKENS) -> None:
        _set_resources(self, free_pages, free_snapshot_rows, page_tokens)
        self._resources = (free_pages, free_snapshot_rows, page_tokens)

    def configure_policy(self, policy: PolicyConfig) -> None:
        super().configure_policy(policy)
        self._note((log.POLICY, dict(policy.as_dict())))

    def admit(self, spec: RequestSpec) -> RequestHandle:
        handle = super().admit(spec)
        self._note((log.ADMIT, spec))
        return handle

    def cancel(self, handle: RequestHandle) -> None:
        super().cancel(handle)
        self._note((log.CANCEL, handle.slot, handle.generation))

    def finish(self, handle: RequestHandle) -> None:
        super().finish(handle)
        self._note((log.FINISH, handle.slot, handle.generation))

    def restored(self, handle: RequestHandle) -> None:
        super().restored(handle)
        self._note((log.RESTORED, handle.slot, handle.generation))

    def preempt(self, handle: RequestHandle) -> None:
        super().preempt(handle)
        self._note((log.PREEMPT, handle.slot, handle.generation))

    def published_snapshot(self, request_id: str) -> None:
        super().published_snapshot(request_id)
        self._note((log.SNAPSHOT, request_id))

    def offer_proposals(self, handle: RequestHandle, source: str, count: int) -> None:
        super().offer_proposals(handle, source, count)
        self._note((log.OFFER, handle.slot, handle.generation, count))

    def commit(self, plan: ScheduledPlan, fence: int) -> None:
        """Also notes that the plan was the answer of plan() at this time: the worker commits nothing else."""
        _commit(self, plan, fence)
        self._note((log.COMMIT, fence))

    def published_output(self, handle: RequestHandle, fence: int) -> None:
        self.published_outputs((handle,), fence)

    def published_outputs(self, handles: Sequence[RequestHandle], fence: int) -> None:
        _published_outputs(self, handles, fence)
        if handles:
            self._note((log.PUBLISHED, fence, *[handle.slot for handle in handles]))

    def _apply(self, checked: Completion, timing: ExecutionTiming) -> list[GeneratedToken]:
        tokens = super()._apply(checked, timing)
        frame = checked.frame
        ends = [record.finished.value for record in checked.records if record.finished is not None]
        confidence, survival = checked.confidence, checked.survival
        self._note(
            (
                log.COMPLETE,
                frame.fence,
                timing.device_ns,
                timing.wall_ns,
                timing.exposed_delivery_ns,
                checked.did.tobytes(),
                ends,
                _rows(confidence, frame.cohort) if confidence.size else None,
                _rows(survival, frame.cohort) if survival.size else None,
            )
        )
        return tokens

    def _note(self, call: Any) -> None:
        """Append a call behind the time and the resources that it saw."""
        if self._resources is not None or self._noted_ns != self._state.now_ns:
            self._note_surroundings()
        self._calls.append(call)

    def _note_surroundings(self) -> None:
        now_ns = self._state.now_ns
        if now_ns != self._noted_ns:
            self._noted_ns = now_ns
            self._calls.append(now_ns)
        if self._resources is not None:
            self._calls.append((log.RESOURCES, *self._resources))
            self._resources = None


def _rows(values: npt.NDArray[Any], cohort: npt.NDArray[np.void]) -> bytes:
    """The lanes' rows of a sidecar [request_slots, draft_capacity]."""
    rows = values.take(cohort["slot"], 0)
    return (rows if log.LITTLE_ENDIAN else rows.byteswap()).tobytes()
