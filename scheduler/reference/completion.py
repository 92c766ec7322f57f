"""Checks completion records and timing against the committed plan before anything changes (S9)."""

from __future__ import annotations

import dataclasses

from scheduler.errors import InvalidCompletion
from scheduler.plans import PlanLane, ScheduledPlan
from scheduler.records import CompletionRecord, ExecutionTiming, RequestHandle
from scheduler.reference.accounting import DeliveryInterval, Participant
from scheduler.reference.catalog import MAX_DURATION_NS


@dataclasses.dataclass(frozen=True, slots=True)
class SubmittedFrame:
    """A committed plan that has not completed."""

    fence: int
    plan: ScheduledPlan
    participants: tuple[Participant, ...]


@dataclasses.dataclass(slots=True)
class CompletedFrame:
    """The last completed frame, for its publications.

    `unpublished`: lanes that emitted output which is not visible yet. `deliveries` loses an entry once it is credited.
    """

    fence: int
    completed_ns: int
    handles: frozenset[RequestHandle]
    unpublished: set[RequestHandle]
    deliveries: dict[RequestHandle, DeliveryInterval]


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredInterval:
    """`cost_ns`: the graph cost sample, 0 without one. `service_ns`: the interval that service is charged for."""

    cost_ns: int
    service_ns: int


def checked_interval(timing: ExecutionTiming) -> MeasuredInterval:
    """The intervals of an isolated frame; raises InvalidCompletion for timing that cannot be.

    Cost: the largest device interval minus the exposed delivery delay, which must leave something. Service: the
    larger of device and wall interval, but 0 (charge nothing) without a positive device interval.
    """
    for name, value in (("wall_ns", timing.wall_ns), ("exposed_delivery_ns", timing.exposed_delivery_ns)):
        _check_duration(name, value)
    for value in timing.device_ns:
        _check_duration("device_ns", value)
    device_ns = max(timing.device_ns, default=0)
    if device_ns == 0:
        return MeasuredInterval(0, 0)
    cost_ns = device_ns - timing.exposed_delivery_ns
    if cost_ns <= 0:
        raise InvalidCompletion(
            f"exposed_delivery_ns {timing.exposed_delivery_ns} leaves nothing of a device interval of {device_ns} ns"
        )
    return MeasuredInterval(cost_ns, max(device_ns, timing.wall_ns))


def _check_duration(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_DURATION_NS:
        raise InvalidCompletion(f"{name} is {value!r}; it must be a whole number of ns from 0 to one hour")


def match_records(
    plan: ScheduledPlan, records: tuple[CompletionRecord, ...] | list[CompletionRecord]
) -> list[tuple[PlanLane, CompletionRecord]]:
    """Pairs each lane of the plan with its record; raises InvalidCompletion when they do not fit."""
    by_handle = {record.handle: record for record in records}
    if len(by_handle) != len(records) or set(by_handle) != {lane.handle for lane in plan.lanes}:
        raise InvalidCompletion(
            f"records for {sorted(record.handle.slot for record in records)} do not match the plan's lanes "
            f"{sorted(lane.handle.slot for lane in plan.lanes)}, each once"
        )
    pairs = [(lane, by_handle[lane.handle]) for lane in plan.lanes]
    for lane, record in pairs:
        _check_record(lane, record)
    return pairs


def _check_record(lane: PlanLane, record: CompletionRecord) -> None:
    who = f"request {lane.request_id}"
    if record.error is not None:
        if record.emitted_tokens or record.consumed_prompt_tokens:
            raise InvalidCompletion(f"{who}: a failed lane commits nothing")
        return
    if record.consumed_prompt_tokens != lane.prompt_tokens:
        raise InvalidCompletion(
            f"{who}: consumed {record.consumed_prompt_tokens} prompt tokens of the {lane.prompt_tokens} scheduled"
        )
    emitted = len(record.emitted_tokens)
    if emitted != lane.ceiling:
        raise InvalidCompletion(f"{who}: emitted {emitted} tokens; this lane commits {lane.ceiling}")
    if record.accepted_tokens != 0:
        raise InvalidCompletion(f"{who}: accepted_tokens without a speculative graph")
