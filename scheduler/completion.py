"""Applies a completed frame, once everything about it has been checked (S3, S6, S7, S9)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler import layout, stages
from scheduler.errors import InvalidCompletion
from scheduler.frames import Frame
from scheduler.plans import Reason
from scheduler.records import CompletionRecord, ExecutionTiming, FinishReason, GeneratedToken
from scheduler.state import SchedulerState
from scheduler.validation import (
    MeasuredInterval,
    careful_lanes,
    checked_interval,
    checked_survival,
    confidence_array,
    normal_end,
    ordered_records,
    usual_lanes,
)


@dataclasses.dataclass(slots=True)
class Completion:
    """A checked completion. `records` in lane order; `did`: int8 [lanes, 4], what they say (layout.DID_*).

    `failed`: every lane failed. `confidence`: the joint one [S, D]; `survival` [S, D]; each (0, 0) where not given.
    """

    frame: Frame
    records: Sequence[CompletionRecord]
    did: npt.NDArray[np.int8]
    failed: bool
    interval: MeasuredInterval
    confidence: npt.NDArray[np.float32]
    survival: npt.NDArray[np.float64]


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
    shape = frame.plan.shape
    records, did, failed = _checked_lanes(frame, records)
    interval = checked_interval(timing, frame.queued)
    lanes = np.frombuffer(bytearray(did), np.int8).reshape(-1, layout.DID_COLUMNS)
    joint, rows = state.acceptance.no_confidence, state.acceptance.no_survival
    if confidence is not None:
        both = confidence_array(confidence, state.request_slots, state.draft_capacity)
        if not state.kernels.confidence_fits(shape.draft_depth, both, lanes, frame.cohort):
            raise InvalidCompletion("confidence: every evaluated probability must be from 0 to 1")
        joint = both[1]
    if survival is not None:
        sizes = (state.request_slots, state.draft_capacity)
        rows = checked_survival(survival, *sizes, frame.lanes, did, shape.draft_depth)
    if confidence is None and frame.device_allocated and not failed:
        raise InvalidCompletion(f"{shape.label} allocates its rows itself: complete it with its confidence")
    return Completion(frame, records, lanes, failed, interval, joint, rows)


def _checked_lanes(
    frame: Frame, records: Sequence[CompletionRecord]
) -> tuple[Sequence[CompletionRecord], list[int], bool]:
    """The records in lane order, what they say (see careful_lanes), and whether every lane failed."""
    did = None
    if type(records) is list or type(records) is tuple:
        try:
            did = usual_lanes(frame.lanes, records, frame.device_allocated)
        except (AttributeError, TypeError, ValueError):  # other records, no records, or another number of them
            did = None
    if did is not None:
        return records, did, False
    records = ordered_records(frame.lanes, records)
    did = careful_lanes(frame.lanes, records, frame.device_allocated)
    return records, did, {*did[layout.DID_END :: layout.DID_COLUMNS]} == {layout.FAILED}


def apply(state: SchedulerState, completion: Completion) -> list[GeneratedToken]:
    """Changes the state and returns the tokens to publish, in lane order."""
    frame, interval = completion.frame, completion.interval
    if not completion.failed and interval.cost_ns:
        state.catalog.add_sample(frame.graph, interval.cost_ns, state.now_ns)
    was_full = state.ledgers.acceptance.full
    _charge_ledgers(state, completion)
    del state.queue[0]
    state.completed, state.completed_fence = frame.number, frame.fence
    state.served = dict(zip(frame.lanes.slots, frame.lanes.generations, strict=True))
    more_to_do = _run_kernel(state, completion)
    if state.ledgers.acceptance.full and not was_full:
        # Until now nothing read the optimistic yields, so they were not kept up to date.
        state.rebuild_acceptance(0, state.request_slots)
    state.views_stale = True
    if not more_to_do:
        return _next_tokens(state, completion)
    tokens = _close_lanes(state, completion)
    state.start_memories()
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


def _run_kernel(state: SchedulerState, completion: Completion) -> int:
    """Service charges, acceptance, counters and the other frame's expected end; fills state.done.

    Returns for how many lanes there is more to do than to publish their tokens.
    """
    frame, interval, a = completion.frame, completion.interval, state.acceptance
    earned_ms = state.checkpoint_fraction * (interval.device_ns / 1e6) if frame.ordinary else 0.0
    following, following_end_ns = -1, 0
    if state.queue:
        rest = state.queue[0]
        rest.expected_end_ns = following_end_ns = state.now_ns + rest.cost_ns
        following = rest.number
    more_to_do: int = state.kernels.complete_frame(
        frame.number,
        state.now_ns,
        0 if completion.failed else interval.service_ns,
        earned_ms,
        int(state.ledgers.acceptance.full),
        following,
        following_end_ns,
        completion.did,
        state.done,
        state.slots,
        state.graphs,
        state.policy_row,
        state.frames,
        state.lanes,
        state.participants,
        a.estimates,
        a.prior,
        a.pool,
        a.survival,
        a.yields,
        a.decay,
        state.works,
        completion.survival,
        completion.confidence,
    )
    return more_to_do


def _next_tokens(state: SchedulerState, completion: Completion) -> list[GeneratedToken]:
    """The tokens of lanes that just go on decoding, in lane order."""
    tokens: list[GeneratedToken] = []
    add, tenants, slots = tokens.append, state.tenants, completion.frame.lanes.slots
    emitted_before = state.done[layout.DONE_INDEX, : len(slots)].tolist()
    for number, record, index in zip(slots, completion.records, emitted_before, strict=True):
        handle, tenant = record.handle, tenants[number]
        assert tenant is not None, "a submitted lane keeps its slot"
        request_id = tenant.spec.request_id
        place = index
        for token in record.emitted_tokens:
            add(GeneratedToken(handle, request_id, token, place))
            place += 1
    return tokens


def _close_lanes(state: SchedulerState, completion: Completion) -> list[GeneratedToken]:
    """Stages, ends and tokens of each lane, in lane order."""
    tokens: list[GeneratedToken] = []
    lanes = completion.frame.lanes
    done = state.done[:, : len(lanes.slots)].tolist()
    columns = zip(lanes.slots, lanes.ceilings, lanes.prompts, completion.records, *done, strict=True)
    for number, ceiling, prompt, record, index, state_then in columns:
        if state_then & layout.DEAD:
            _after_dead_lane(state, number)
            continue
        if record.error is not None:
            stages.drop(state, number)
            continue
        finished, emitted = record.finished, record.emitted_tokens
        if emitted:
            tenant = state.tenants[number]
            assert tenant is not None, "a submitted lane keeps its slot"
            handle, request_id = record.handle, tenant.spec.request_id
            for place, token in enumerate(emitted, start=index):
                tokens.append(GeneratedToken(handle, request_id, token, place))
            if finished is None and state_then & layout.REACHED:
                finished = FinishReason.LENGTH
            if finished is not None:
                tokens[-1] = GeneratedToken(handle, request_id, emitted[-1], index + len(emitted) - 1, finished)
        if finished is not None or state_then & layout.RETIRING or prompt or not ceiling:
            _move_on(state, number, ceiling, prompt, finished)
    for number, state_then in zip(lanes.slots, done[layout.DONE_NEXT], strict=True):
        if state_then & layout.OFFERED and state.tenants[number] is not None:
            stages.set_offer(state, number, 0)  # it was for the position before
    return tokens


def _move_on(state: SchedulerState, number: int, ceiling: int, prompt: int, finished: FinishReason | None) -> None:
    """What changes for a lane that does more than decode on: it ends, a prompt or state lane, or it retires."""
    if finished is not None:
        _end(state, number, finished)
    elif prompt:
        stages.after_prefill(state, number)
    elif not ceiling:
        stages.after_state_graph(state, number)
    _retire(state, number)


def _after_dead_lane(state: SchedulerState, number: int) -> None:
    """A lane of a request that was cancelled or had ended: its slot may now be free."""
    if state.columns["cancelled"][number] == 1 and state.columns["in_flight"][number] == 0:
        state.release(number)


def _end(state: SchedulerState, number: int, reason: FinishReason) -> None:
    if normal_end(reason):
        stages.end_normally(state, number)
    else:
        stages.drop(state, number)


def _retire(state: SchedulerState, number: int) -> None:
    """A preempted request goes to TERMINAL with its last lane, unless it has ended with it."""
    columns = state.columns
    if columns["retiring"][number] == 0 or columns["stage"][number] == layout.FREE:
        return
    if columns["cancelled"][number] == 0 and columns["in_flight"][number] == 0:
        stages.retire(state, number)
