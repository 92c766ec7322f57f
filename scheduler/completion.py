"""Applies a completed frame, once everything about it has been checked (S3, S6, S7, S9)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scheduler import layout, stages
from scheduler.errors import InvalidCompletion
from scheduler.frames import Frame
from scheduler.plans import Reason
from scheduler.records import CompletionRecord, ExecutionTiming, FinishReason, GeneratedToken
from scheduler.state import SchedulerState
from scheduler.validation import (
    LaneRow,
    MeasuredInterval,
    checked_confidence,
    checked_interval,
    checked_survival,
    did_columns,
    normal_end,
    ordered_records,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Completion:
    """A checked completion. `did`: six numbers per lane (layout.DID_*), concatenated; `records` in lane order."""

    frame: Frame
    records: Sequence[CompletionRecord]
    did: list[int]
    interval: MeasuredInterval
    confidence: npt.NDArray[np.float32]
    survival: npt.NDArray[np.float64]

    @property
    def failed(self) -> bool:
        """Every lane failed."""
        return 1 not in self.did[layout.DID_TEACH :: layout.DID_COLUMNS]


class _Before(NamedTuple):
    """The lanes' slots as the completion found them. `dead`: the request was cancelled or had ended; `offers`: slots
    with a copy offer.
    """

    emitted: list[int]
    retiring: list[int]
    dead: list[bool]
    offers: list[int]

    @classmethod
    def of(cls, state: SchedulerState, frame: Frame) -> _Before:
        """Field by field: copying whole records would take longer than everything else here."""
        slots, numbers = state.slots, frame.cohort["slot"]
        ended = (slots["stage"][numbers] == layout.TERMINAL) & (frame.cohort["ceiling"] > 0)
        dead = (slots["cancelled"][numbers] == 1) | ended
        offers = numbers[slots["source"][numbers] == layout.COPY]
        return cls(
            slots["emitted"][numbers].tolist(), slots["retiring"][numbers].tolist(), dead.tolist(), offers.tolist()
        )


def checked_completion(
    state: SchedulerState,
    frame: Frame,
    records: Sequence[CompletionRecord],
    timing: ExecutionTiming,
    confidence: Any = None,
    survival: Any = None,
) -> Completion:
    """Everything that complete() is given, checked against the committed plan; nothing has changed yet.

    Raises InvalidCompletion.
    """
    lanes, shape = frame.rows, frame.plan.shape
    records = ordered_records(lanes, records)
    did = did_columns(lanes, records, frame.device_allocated)
    interval = checked_interval(timing, frame.queued)
    sizes = (state.request_slots, state.draft_capacity)
    joint, rows = state.acceptance.no_confidence, state.acceptance.no_survival
    if confidence is not None:
        joint = checked_confidence(confidence, *sizes, lanes, did, shape.draft_depth)
    if survival is not None:
        rows = checked_survival(survival, *sizes, lanes, did, shape.draft_depth)
    completion = Completion(frame, records, did, interval, joint, rows)
    if confidence is None and frame.device_allocated and not completion.failed:
        raise InvalidCompletion(f"{shape.label} allocates its rows itself: complete it with its confidence")
    return completion


def apply(state: SchedulerState, completion: Completion) -> list[GeneratedToken]:
    """Changes the state and returns the tokens to publish, in lane order."""
    frame, interval, failed = completion.frame, completion.interval, completion.failed
    if not failed and interval.cost_ns:
        state.catalog.add_sample(frame.graph, interval.cost_ns, state.now_ns)
    was_full = state.ledgers.acceptance.full
    _charge_ledgers(state, completion)
    del state.queue[0]
    state.completed, state.completed_fence = frame.number, frame.fence
    state.served = {row[0]: row[1] for row in frame.rows}
    before = _Before.of(state, frame)
    did = np.fromiter(completion.did, np.int64, len(completion.did)).reshape(-1, layout.DID_COLUMNS)
    if True in before.dead:
        did[before.dead] = 0
    _run_kernel(state, completion, did)
    if state.ledgers.acceptance.full and not was_full:
        # Until now nothing read the optimistic yields, so they were not kept up to date.
        state.rebuild_acceptance(0, state.request_slots)
    tokens = _close_lanes(state, completion, before, did[:, layout.DID_REACH].tolist())
    _end_offers(state, before)
    if state.queue:
        rest = state.queue[0]
        rest.expected_end_ns = state.now_ns + rest.cost_ns
        state.frames[rest.number]["expected_end_ns"] = rest.expected_end_ns
    state.start_memories()
    state.views_stale = True
    return tokens


def _charge_ledgers(state: SchedulerState, completion: Completion) -> None:
    """Ordinary work earns, a probe pays, discovery is counted (S7, S8)."""
    frame, interval, ledgers = completion.frame, completion.interval, state.ledgers
    if frame.plan.reason is Reason.DISCOVERY:
        ledgers.discover(interval.service_ns)
    elif frame.ordinary:
        if interval.device_ns and not completion.failed:
            ledgers.earn(interval.service_ns)
    else:
        ledgers.close(frame.fence, interval.probe_ns)


def _run_kernel(state: SchedulerState, completion: Completion, did: npt.NDArray[np.int64]) -> None:
    """Service charges, acceptance and counters; did[:, DID_REACH] says who reached its output limit."""
    frame, interval, a = completion.frame, completion.interval, state.acceptance
    earned_ms = state.checkpoint_fraction * (interval.device_ns / 1e6) if frame.ordinary else 0.0
    state.kernels.complete_frame(
        frame.number,
        state.now_ns,
        0 if completion.failed else interval.service_ns,
        earned_ms,
        int(state.ledgers.acceptance.full),
        did,
        state.slots,
        state.graphs,
        state.policy_row,
        state.frames,
        state.lanes,
        state.participants,
        a.estimates,
        a.prior,
        a.survival,
        a.yields,
        a.decay,
        completion.survival,
        completion.confidence,
    )


def _close_lanes(
    state: SchedulerState,
    completion: Completion,
    before: _Before,
    reached_limit: list[int],
) -> list[GeneratedToken]:
    """Stages, ends and tokens of each lane, in lane order. A lane that just goes on decoding costs only its tokens."""
    tokens: list[GeneratedToken] = []
    add, tenants = tokens.append, state.tenants
    columns = zip(
        completion.frame.rows,
        completion.records,
        before.emitted,
        before.retiring,
        reached_limit,
        before.dead,
        strict=True,
    )
    for row, record, index, retiring, reached, is_dead in columns:
        number, finished, error = row[0], record.finished, record.error
        if is_dead:
            _after_dead_lane(state, number)
            continue
        if error is not None:
            stages.drop(state, number)
            continue
        emitted = record.emitted_tokens
        if emitted:
            tenant = tenants[number]
            assert tenant is not None, "a submitted lane keeps its slot"
            handle, request_id = record.handle, tenant.spec.request_id
            for place, token in enumerate(emitted, start=index):
                add(GeneratedToken(handle, request_id, token, place))
            if finished is None and reached:
                finished = FinishReason.LENGTH
            if finished is not None:
                tokens[-1] = GeneratedToken(handle, request_id, emitted[-1], index + len(emitted) - 1, finished)
        if finished is not None or retiring or row[3] or not row[2]:
            _move_on(state, row, finished)
    return tokens


def _move_on(state: SchedulerState, row: LaneRow, finished: FinishReason | None) -> None:
    """What changes for a lane that does more than decode on: it ends, a prompt or state lane, or it retires."""
    number = row[0]
    if finished is not None:
        _end(state, number, finished)
    elif row[3]:
        stages.after_prefill(state, number)
    elif not row[2]:
        stages.after_state_graph(state, number)
    _retire(state, number)


def _after_dead_lane(state: SchedulerState, number: int) -> None:
    """A lane of a request that was cancelled or had ended: its slot may now be free."""
    slot = state.slots[number]
    if slot["cancelled"] == 1 and slot["in_flight"] == 0:
        state.release(number)


def _end(state: SchedulerState, number: int, reason: FinishReason) -> None:
    if normal_end(reason):
        stages.end_normally(state, number)
    else:
        stages.drop(state, number)


def _retire(state: SchedulerState, number: int) -> None:
    """A preempted request goes to TERMINAL with its last lane, unless it has ended with it."""
    slot = state.slots[number]
    alive = slot["stage"] != layout.FREE and slot["cancelled"] == 0
    if alive and slot["retiring"] == 1 and slot["in_flight"] == 0:
        stages.retire(state, number)


def _end_offers(state: SchedulerState, before: _Before) -> None:
    """A copy offer ends with the next completion of its request: it was for the position before."""
    for number in before.offers:
        if state.tenants[number] is not None:
            stages.set_offer(state, number, 0)
