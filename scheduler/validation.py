"""Checks everything about a completion before anything changes (S3, S9)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler import layout
from scheduler.catalog import MAX_DURATION_NS
from scheduler.checks import whole
from scheduler.errors import InvalidCompletion
from scheduler.records import CompletionRecord, ExecutionTiming, FinishReason

LaneRow = tuple[int, int, int, int]
"""A lane of a frame as Python numbers: slot, generation, ceiling, prompt tokens."""
_LISTS: tuple[type[Any], ...] = (tuple, list)


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredInterval:
    """`cost_ns`: the graph cost sample, 0 without one. `device_ns`: the largest device interval, 0 without one.

    `service_ns`: the interval that service is charged for; 0: charge nothing. `probe_ns`: what a probe pays.
    """

    cost_ns: int
    device_ns: int
    service_ns: int
    probe_ns: int


def checked_interval(timing: ExecutionTiming, queued: bool) -> MeasuredInterval:
    """The intervals of a frame; raises InvalidCompletion for timing that cannot be.

    Cost: the largest device interval minus the exposed delivery delay, which must leave something (S6). Service: the
    largest device interval of a queued frame, the larger of that and the wall interval of an isolated one (S9). A
    probe without a device interval pays its wall interval (S7).
    """
    if not isinstance(timing, ExecutionTiming) or not isinstance(timing.device_ns, tuple | list):
        raise InvalidCompletion(f"timing is {timing!r}; it must be an ExecutionTiming with a tuple of device intervals")
    wall_ns, exposed_ns = timing.wall_ns, timing.exposed_delivery_ns
    for name, value in (("wall_ns", wall_ns), ("exposed_delivery_ns", exposed_ns)):
        _check_duration(name, value)
    for value in timing.device_ns:
        _check_duration("device_ns", value)
    device_ns = max(timing.device_ns, default=0)
    if device_ns == 0:
        return MeasuredInterval(0, 0, 0, wall_ns)
    if exposed_ns >= device_ns:
        raise InvalidCompletion(
            f"exposed_delivery_ns {exposed_ns} leaves nothing of a device interval of {device_ns} ns"
        )
    service_ns = device_ns if queued else max(device_ns, wall_ns)
    return MeasuredInterval(device_ns - exposed_ns, device_ns, service_ns, service_ns)


def _check_duration(name: str, value: object) -> None:
    if not whole(value, 0, MAX_DURATION_NS):
        raise InvalidCompletion(f"{name} is {value!r}; it must be a whole number of ns from 0 to one hour")


def ordered_records(lanes: Sequence[LaneRow], records: Sequence[CompletionRecord]) -> Sequence[CompletionRecord]:
    """The records in lane order; raises InvalidCompletion unless there is exactly one for each lane."""
    try:
        if {*map(type, records)} <= {CompletionRecord}:
            return _ordered(lanes, records)
    except (AttributeError, TypeError):  # no list, or no handle: found on the way, which takes no time
        pass
    raise InvalidCompletion("records must be a list of CompletionRecords, each with its lane's handle")


def _ordered(lanes: Sequence[LaneRow], records: Sequence[CompletionRecord]) -> Sequence[CompletionRecord]:
    if len(records) == len(lanes):
        for lane, record in zip(lanes, records, strict=True):
            handle = record.handle
            if handle.slot != lane[0] or handle.generation != lane[1]:
                break
        else:
            return records
    by_handle = {(record.handle.slot, record.handle.generation): record for record in records}
    if len(by_handle) != len(records) or set(by_handle) != {lane[:2] for lane in lanes}:
        raise InvalidCompletion(
            f"records for {sorted(record.handle.slot for record in records)} do not match the plan's lanes "
            f"{sorted(lane[0] for lane in lanes)}, each once"
        )
    return [by_handle[lane[:2]] for lane in lanes]


def did_columns(lanes: Sequence[LaneRow], records: Sequence[CompletionRecord], device: bool) -> list[int]:
    """What each lane did, six numbers per lane in the order of layout.DID_*; DID_TEACH is 0 where it failed.

    `device`: the graph allocates its rows itself. Raises InvalidCompletion for a record that cannot be.
    """
    flat: list[int] = []
    for lane, record in zip(lanes, records, strict=True):
        consumed, accepted, offered = record.consumed_prompt_tokens, record.accepted_tokens, record.offered_tokens
        tokens, ceiling, prompt = record.emitted_tokens, lane[2], lane[3]
        if not isinstance(tokens, _LISTS):
            raise InvalidCompletion(f"slot {lane[0]}: emitted_tokens is {tokens!r}; it must be a tuple")
        emitted = len(tokens)
        if record.error is not None:
            _check_failed(record)
            flat += (0, 0, 0, 0, 0, 0)
            continue
        if offered is None:
            offered = 0 if prompt or not ceiling else accepted if device else ceiling - 1
        if (
            consumed != prompt
            or type(consumed) is not int
            or type(accepted) is not int
            or type(offered) is not int
            or not 0 <= accepted <= offered
            or (record.finished is not None and (not emitted or not isinstance(record.finished, FinishReason)))
        ):
            raise _refused(lane, record)
        if prompt or not ceiling:
            if emitted != ceiling or offered:
                raise _refused(lane, record)
        elif offered >= ceiling or not 1 <= emitted <= ceiling or not accepted <= emitted <= accepted + 1:
            raise _refused(lane, record)
        flat += (consumed, emitted, accepted, offered, 1, 0)
    return flat


def _check_failed(record: CompletionRecord) -> None:
    if not isinstance(record.error, str):
        raise InvalidCompletion(f"slot {record.handle.slot}: error is {record.error!r}; it must be text, or None")
    if record.emitted_tokens or record.consumed_prompt_tokens or record.accepted_tokens or record.finished is not None:
        raise InvalidCompletion(f"slot {record.handle.slot}: a failed lane commits nothing")


def _refused(lane: LaneRow, record: CompletionRecord) -> InvalidCompletion:
    _, _, ceiling, prompt = lane
    allowed = f"{prompt} prompt tokens consumed and "
    if prompt or not ceiling:
        allowed += f"{ceiling} tokens emitted, no drafts"
    else:
        allowed += f"1 to {ceiling} tokens emitted, accepted <= offered <= {ceiling - 1}, emitted accepted or 1 more"
    return InvalidCompletion(
        f"slot {lane[0]}: consumed {record.consumed_prompt_tokens!r}, emitted {len(record.emitted_tokens)}, accepted "
        f"{record.accepted_tokens!r}, offered {record.offered_tokens!r}, finished {record.finished!r}; allowed: whole "
        f"numbers, {allowed}, finished only with a token"
    )


def normal_end(reason: FinishReason) -> bool:
    """The model or a limit ended the answer, rather than a client or a failure."""
    return reason in (FinishReason.STOP, FinishReason.LENGTH)


def checked_confidence(
    confidence: Any, slots: int, capacity: int, lanes: Sequence[LaneRow], did: Sequence[int], depth: int
) -> npt.NDArray[np.float32]:
    """The joint confidence [slots, capacity] of a sidecar float32 [2, slots, capacity] (S3).

    Raises InvalidCompletion for another shape and for a probability outside [0, 1] in a lane that did not fail.
    """
    values: npt.NDArray[np.float32] = _as_array(confidence, np.float32, (2, slots, capacity), "confidence")
    # Mostly every value is a probability, also of slots that took no part; only otherwise the lanes are looked at.
    if not _inside(values) and not all(_inside(values[:, s, :n]) for s, n in _evaluated(lanes, did, depth)):
        raise InvalidCompletion("confidence: every evaluated probability must be from 0 to 1")
    joint: npt.NDArray[np.float32] = values[1]
    return joint


def checked_survival(
    survival: Any, slots: int, capacity: int, lanes: Sequence[LaneRow], did: Sequence[int], depth: int
) -> npt.NDArray[np.float64]:
    """Survival rows float64 [slots, capacity], NaN where a prefix was not evaluated (S3).

    Raises InvalidCompletion for another shape and for a value outside [0, 1] in a lane that did not fail.
    """
    values = _as_array(survival, np.float64, (slots, capacity), "survival")
    allowed = ((values >= 0.0) & (values <= 1.0)) | np.isnan(values)
    if not allowed.all() and not all(allowed[s, :n].all() for s, n in _evaluated(lanes, did, depth)):
        raise InvalidCompletion("survival: every evaluated value must be from 0 to 1")
    return values


def _inside(values: npt.NDArray[Any]) -> bool:
    """Every value is a probability; NaN is none."""
    return not values.size or bool(values.min() >= 0.0 and values.max() <= 1.0)


def _as_array(values: Any, dtype: Any, shape: tuple[int, ...], name: str) -> npt.NDArray[Any]:
    """The values as kernels take them: a writable C array of `dtype`. A copy only where they are not so already."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, OverflowError) as why:
        raise InvalidCompletion(f"{name}: not an array of numbers ({why})") from None
    if array.dtype.kind != "f":
        raise InvalidCompletion(f"{name} holds {array.dtype}; it must hold floating-point numbers")
    if array.shape != shape:
        raise InvalidCompletion(f"{name} has shape {array.shape}; it must be {shape}")
    if array.dtype != dtype or not array.flags.carray:
        with np.errstate(all="ignore"):  # what does not fit becomes inf, and that is no probability
            array = array.astype(dtype, order="C")
    return array


def _evaluated(lanes: Sequence[LaneRow], did: Sequence[int], depth: int) -> list[tuple[int, int]]:
    """(slot, depths evaluated) of the lanes that did not fail."""
    return [
        (lane[0], min(depth, lane[2] - 1))
        for lane, teaches in zip(lanes, did[layout.DID_TEACH :: layout.DID_COLUMNS], strict=True)
        if teaches and lane[2] > 1
    ]
