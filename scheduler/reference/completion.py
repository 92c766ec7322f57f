"""Checks what comes back of a frame against its committed plan, before anything changes (S3, S9)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from scheduler.errors import InvalidCompletion
from scheduler.plans import PlanLane, Role, ScheduledPlan
from scheduler.records import CompletionRecord, ExecutionTiming
from scheduler.reference.catalog import MAX_DURATION_NS
from scheduler.shapes import Allocation


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """`cost_ns`: the cost sample, 0 without one. `service_ns`: what is charged for, 0 without a device interval.

    `device_ns`: the largest device interval. `wall_ns`: the host's.
    """

    cost_ns: int
    service_ns: int
    device_ns: int
    wall_ns: int


@dataclasses.dataclass(frozen=True, slots=True)
class LaneResult:
    """One lane with its checked record. `offered`: drafts that were verified; confidence and survival by depth."""

    lane: PlanLane
    record: CompletionRecord
    offered: int
    confidence: tuple[float, ...]
    survival: tuple[float, ...]


def checked_interval(timing: ExecutionTiming, queued: bool) -> Interval:
    """The intervals of a frame; raises InvalidCompletion for timing that cannot be."""
    for name, value in (("wall_ns", timing.wall_ns), ("exposed_delivery_ns", timing.exposed_delivery_ns)):
        _check_duration(name, value)
    for value in timing.device_ns:
        _check_duration("device_ns", value)
    device_ns = max(timing.device_ns, default=0)
    if device_ns == 0:
        return Interval(0, 0, 0, timing.wall_ns)
    cost_ns = device_ns - timing.exposed_delivery_ns
    if cost_ns <= 0:
        raise InvalidCompletion("exposed_delivery_ns leaves nothing of the device interval")
    service_ns = device_ns if queued else max(device_ns, timing.wall_ns)
    return Interval(cost_ns, service_ns, device_ns, timing.wall_ns)


def _check_duration(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_DURATION_NS:
        raise InvalidCompletion(f"{name} is {value!r}; it must be a whole number of ns from 0 to one hour")


def checked_lanes(
    plan: ScheduledPlan, records: Sequence[CompletionRecord], confidence: Any, survival: Any, extents: tuple[int, int]
) -> list[LaneResult]:
    """Pairs each lane with its record, in plan order. `extents`: request slots and draft capacity.

    Raises InvalidCompletion when records, confidence or survival do not belong to the plan.
    """
    failed = all(record.error is not None for record in records)
    _check_sidecars(plan, failed, confidence, survival, extents)
    by_handle = {record.handle: record for record in records}
    if len(by_handle) != len(records) or set(by_handle) != {lane.handle for lane in plan.lanes}:
        raise InvalidCompletion("the records do not match the plan's lanes, each once")
    return [_checked_lane(plan, lane, by_handle[lane.handle], confidence, survival) for lane in plan.lanes]


def _check_sidecars(
    plan: ScheduledPlan, failed: bool, confidence: Any, survival: Any, extents: tuple[int, int]
) -> None:
    shape = plan.shape
    device = shape.draft_depth > 0 and shape.allocation is Allocation.DEVICE
    if device and confidence is None and not failed:
        raise InvalidCompletion(f"{shape.label}: rows that the device divided come with their confidence")
    if confidence is not None and confidence.shape != (2, *extents):
        raise InvalidCompletion("confidence is float32 [2, request_slots, draft_capacity]")
    if survival is not None and survival.shape != extents:
        raise InvalidCompletion("survival is a float array [request_slots, draft_capacity]")


def _checked_lane(
    plan: ScheduledPlan, lane: PlanLane, record: CompletionRecord, confidence: Any, survival: Any
) -> LaneResult:
    if record.error is not None:
        done = record.emitted_tokens or record.consumed_prompt_tokens or record.accepted_tokens
        if done or record.finished is not None:
            raise InvalidCompletion(f"request {lane.request_id}: a failed lane commits nothing")
        return LaneResult(lane, record, 0, (), ())
    if record.consumed_prompt_tokens != lane.prompt_tokens:
        raise InvalidCompletion(f"request {lane.request_id}: consumed not the prompt tokens that were scheduled")
    emitted = len(record.emitted_tokens)
    if lane.role is not Role.DECODE:
        if emitted != lane.ceiling or record.accepted_tokens or record.offered_tokens:
            raise InvalidCompletion(f"request {lane.request_id}: this lane emits {lane.ceiling} tokens")
        offered = 0
    else:
        offered = _offered(plan, lane, record)
        if not 0 <= record.accepted_tokens <= offered <= lane.ceiling - 1:
            raise InvalidCompletion(f"request {lane.request_id}: accepted, offered and ceiling contradict each other")
        if not (record.accepted_tokens <= emitted <= record.accepted_tokens + 1 and 1 <= emitted <= lane.ceiling):
            raise InvalidCompletion(f"request {lane.request_id}: emitted {emitted} tokens")
    if record.finished is not None and emitted == 0:
        raise InvalidCompletion(f"request {lane.request_id}: ends without a last token")
    return LaneResult(lane, record, offered, _confidence(plan, lane, confidence), _survival(plan, lane, survival))


def _offered(plan: ScheduledPlan, lane: PlanLane, record: CompletionRecord) -> int:
    if record.offered_tokens is not None:
        return record.offered_tokens
    device = plan.shape.allocation is Allocation.DEVICE and plan.shape.draft_depth > 0
    return record.accepted_tokens if device else lane.ceiling - 1


def _confidence(plan: ScheduledPlan, lane: PlanLane, confidence: Any) -> tuple[float, ...]:
    """The joint confidence at depths 1..min(D, ceiling - 1)."""
    if confidence is None or lane.role is not Role.DECODE:
        return ()
    depths = min(plan.shape.draft_depth, lane.ceiling - 1)
    rows = [[float(confidence[i, lane.handle.slot, d]) for d in range(depths)] for i in (0, 1)]
    if not all(0.0 <= value <= 1.0 for row in rows for value in row):
        raise InvalidCompletion(f"request {lane.request_id}: confidence outside [0, 1]")
    return tuple(rows[1])


def _survival(plan: ScheduledPlan, lane: PlanLane, survival: Any) -> tuple[float, ...]:
    """The survival at depths 1..min(D, ceiling - 1), NaN where it was not evaluated."""
    if survival is None or lane.role is not Role.DECODE:
        return ()
    depths = min(plan.shape.draft_depth, lane.ceiling - 1)
    row = [float(survival[lane.handle.slot, d]) for d in range(depths)]
    if not all(math.isnan(value) or 0.0 <= value <= 1.0 for value in row):
        raise InvalidCompletion(f"request {lane.request_id}: survival outside [0, 1]")
    return tuple(row)
