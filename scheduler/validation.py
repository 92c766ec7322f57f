"""Checks everything about a completion before anything changes (S3, S9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scheduler import layout
from scheduler.catalog import MAX_DURATION_NS
from scheduler.checks import whole
from scheduler.errors import InvalidCompletion
from scheduler.frames import LaneColumns
from scheduler.records import CompletionRecord, ExecutionTiming, FinishReason

_LISTS: tuple[type[Any], ...] = (tuple, list)


class MeasuredInterval(NamedTuple):
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
    if not isinstance(timing, ExecutionTiming) or not isinstance(timing.device_ns, _LISTS):
        raise InvalidCompletion(f"timing is {timing!r}; it must be an ExecutionTiming with a tuple of device intervals")
    wall_ns, exposed_ns = timing.wall_ns, timing.exposed_delivery_ns
    _check_duration("wall_ns", wall_ns)
    _check_duration("exposed_delivery_ns", exposed_ns)
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


def usual_lanes(lanes: LaneColumns, records: Sequence[CompletionRecord], device: bool) -> list[int] | None:
    """careful_lanes() of records that are in lane order, valid and without an error; None where any is not.

    Every completion runs through here: one pass without calls, whose refusals are explained by careful_lanes().
    """
    flat: list[int] = []
    for record, slot, generation, ceiling, prompt in zip(records, *lanes, strict=True):
        handle, tokens, finished = record.handle, record.emitted_tokens, record.finished
        consumed, accepted, offered = record.consumed_prompt_tokens, record.accepted_tokens, record.offered_tokens
        emitted, drafting = len(tokens), ceiling and not prompt
        if type(accepted) is not int or (consumed is not prompt and (type(consumed) is not int or consumed != prompt)):
            return None
        if offered is None:
            offered = 0 if not drafting else accepted if device else ceiling - 1
        elif type(offered) is not int:
            return None
        if (
            type(record) is not CompletionRecord
            or handle.slot != slot
            or handle.generation != generation
            or record.error is not None
            or type(tokens) is not tuple
            or not (
                0 <= accepted <= offered < ceiling and emitted and accepted <= emitted <= accepted + 1
                if drafting
                else emitted == ceiling and not accepted and not offered
            )
            or (finished is not None and (not emitted or type(finished) is not FinishReason))
        ):
            return None
        flat += (emitted, accepted, offered, layout.GOES_ON if finished is None else layout.FINISHED)
    return flat


def careful_lanes(lanes: LaneColumns, records: Sequence[CompletionRecord], device: bool) -> list[int]:
    """What each lane did, four numbers per lane in the order of layout.DID_*.

    `records` are in lane order; `device`: the graph allocates its rows itself. Raises InvalidCompletion for a record
    that cannot be.
    """
    flat: list[int] = []
    for record, slot, ceiling, prompt in zip(records, lanes.slots, lanes.ceilings, lanes.prompts, strict=True):
        consumed, accepted, offered = record.consumed_prompt_tokens, record.accepted_tokens, record.offered_tokens
        tokens = record.emitted_tokens
        if not isinstance(tokens, _LISTS):
            raise InvalidCompletion(f"slot {slot}: emitted_tokens is {tokens!r}; it must be a tuple")
        emitted = len(tokens)
        if record.error is not None:
            _check_failed(record)
            flat += (0, 0, 0, layout.FAILED)
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
            raise _refused(slot, ceiling, prompt, record)
        if prompt or not ceiling:
            if emitted != ceiling or offered:
                raise _refused(slot, ceiling, prompt, record)
        elif offered >= ceiling or not 1 <= emitted <= ceiling or not accepted <= emitted <= accepted + 1:
            raise _refused(slot, ceiling, prompt, record)
        flat += (emitted, accepted, offered, layout.GOES_ON if record.finished is None else layout.FINISHED)
    return flat


def ordered_records(lanes: LaneColumns, records: Sequence[CompletionRecord]) -> Sequence[CompletionRecord]:
    """The records in lane order; raises InvalidCompletion unless there is exactly one for each lane."""
    try:
        if {*map(type, records)} <= {CompletionRecord}:
            return _ordered(lanes, records)
    except (AttributeError, TypeError):  # no list, or no handle: found on the way, which takes no time
        pass
    raise InvalidCompletion("records must be a list of CompletionRecords, each with its lane's handle")


def _ordered(lanes: LaneColumns, records: Sequence[CompletionRecord]) -> Sequence[CompletionRecord]:
    wanted = list(zip(lanes.slots, lanes.generations, strict=True))
    by_handle = {(record.handle.slot, record.handle.generation): record for record in records}
    if len(by_handle) != len(records) or set(by_handle) != {*wanted}:
        raise InvalidCompletion(
            f"records for {sorted(record.handle.slot for record in records)} do not match the plan's lanes "
            f"{sorted(lanes.slots)}, each once"
        )
    return [by_handle[handle] for handle in wanted]


def _check_failed(record: CompletionRecord) -> None:
    if not isinstance(record.error, str):
        raise InvalidCompletion(f"slot {record.handle.slot}: error is {record.error!r}; it must be text, or None")
    if record.emitted_tokens or record.consumed_prompt_tokens or record.accepted_tokens or record.finished is not None:
        raise InvalidCompletion(f"slot {record.handle.slot}: a failed lane commits nothing")


def _refused(slot: int, ceiling: int, prompt: int, record: CompletionRecord) -> InvalidCompletion:
    allowed = f"{prompt} prompt tokens consumed and "
    if prompt or not ceiling:
        allowed += f"{ceiling} tokens emitted, no drafts"
    else:
        allowed += f"1 to {ceiling} tokens emitted, accepted <= offered <= {ceiling - 1}, emitted accepted or 1 more"
    return InvalidCompletion(
        f"slot {slot}: consumed {record.consumed_prompt_tokens!r}, emitted {len(record.emitted_tokens)}, accepted "
        f"{record.accepted_tokens!r}, offered {record.offered_tokens!r}, finished {record.finished!r}; allowed: whole "
        f"numbers, {allowed}, finished only with a token"
    )


def normal_end(reason: FinishReason) -> bool:
    """The model or a limit ended the answer, rather than a client or a failure."""
    return reason in (FinishReason.STOP, FinishReason.LENGTH)


def confidence_array(confidence: Any, slots: int, capacity: int) -> npt.NDArray[np.float32]:
    """A confidence sidecar float32 [2, slots, capacity] (S3); its values are checked by the kernel confidence_fits.

    Raises InvalidCompletion for anything else.
    """
    return _as_array(confidence, np.float32, (2, slots, capacity), "confidence")


def checked_survival(
    survival: Any, slots: int, capacity: int, lanes: LaneColumns, did: Sequence[int], depth: int
) -> npt.NDArray[np.float64]:
    """Survival rows float64 [slots, capacity], NaN where a prefix was not evaluated (S3).

    Raises InvalidCompletion for another shape and for a value outside [0, 1] in a lane that did not fail.
    """
    values = _as_array(survival, np.float64, (slots, capacity), "survival")
    allowed = ((values >= 0.0) & (values <= 1.0)) | np.isnan(values)
    if not allowed.all() and not all(allowed[s, :n].all() for s, n in _evaluated(lanes, did, depth)):
        raise InvalidCompletion("survival: every evaluated value must be from 0 to 1")
    return values


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


def _evaluated(lanes: LaneColumns, did: Sequence[int], depth: int) -> list[tuple[int, int]]:
    """(slot, depths evaluated) of the lanes that did not fail."""
    ends = did[layout.DID_END :: layout.DID_COLUMNS]
    return [
        (slot, min(depth, ceiling - 1))
        for slot, ceiling, end in zip(lanes.slots, lanes.ceilings, ends, strict=True)
        if end != layout.FAILED and ceiling > 1
    ]
