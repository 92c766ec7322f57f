"""Step 1: collect the finished graph and give it to the scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from gpu.device import FrameResult, LaneResult
from scheduler.catalog import MAX_DURATION_NS
from scheduler.plans import PlanLane
from scheduler.records import CompletionRecord, ExecutionTiming, FinishReason, GeneratedToken, RequestHandle
from service.engine.core import Core, InFlight
from service.engine.requests import EngineRequest
from service.journal.records import LaneOutcome, PlanCompleted

_NOTHING = LaneResult(0, ())


def collect_completion(core: Core) -> None:
    """Apply the device's result, if one waits: tokens become unpublished output, ended requests end."""
    result = core.device.collect()
    if result is None:
        return
    frame = core.in_flight
    assert frame is not None, "a result without a submitted frame"
    assert frame.fence == result.fence, "the result of another frame"
    core.in_flight = None
    lanes = result.lanes if result.error is None else (_NOTHING,) * len(frame.plan.lanes)
    errors = [result.error or lane.error for lane in lanes]
    records = [
        _record(core, lane, did, error) for lane, did, error in zip(frame.plan.lanes, lanes, errors, strict=True)
    ]
    failed = all(error is not None for error in errors)
    wall_ns = min(max(0, core.now_ns - frame.submitted_ns), MAX_DURATION_NS)  # a suspended machine can take longer
    device_ns = 0 if failed else result.device_ns
    timing = ExecutionTiming((device_ns,) if device_ns > 0 else (), wall_ns)
    tokens = core.scheduler.complete(frame.fence, records, timing)
    _take_prompts(core, frame.plan.lanes, records)
    committed = _take_tokens(core, tokens, result.completed_ns)
    _end_failed(core, frame.plan.lanes, errors, result.completed_ns)
    outcomes = [
        LaneOutcome(number, record.consumed_prompt_tokens, committed.get(lane.handle, 0), record.accepted_tokens)
        for number, (lane, record) in enumerate(zip(frame.plan.lanes, records, strict=True))
    ]
    core.completed = (frame.fence, {lane.handle: number for number, lane in enumerate(frame.plan.lanes)})
    core.records.append(_completed(core, frame, result, "failed" if failed else "completed", wall_ns, outcomes))
    prompt_tokens = sum(record.consumed_prompt_tokens for record in records)
    core.metrics.executed(frame.plan, device_ns, prompt_tokens, len(tokens))


def abandon(core: Core) -> None:
    """The running frame will not be waited for any longer; its requests have ended before."""
    frame = core.in_flight
    if frame is None:
        return
    core.in_flight = None
    wall_ns = core.now_ns - frame.submitted_ns
    nothing = FrameResult(frame.fence, frame.submitted_ns, core.now_ns, 0, ())
    outcomes = [LaneOutcome(number, 0, 0, 0) for number in range(len(frame.plan.lanes))]
    core.records.append(_completed(core, frame, nothing, "abandoned", wall_ns, outcomes))


def _open(core: Core, lane: PlanLane) -> EngineRequest | None:
    """The lane's request, unless it has ended meanwhile; its id may be another request's by now."""
    request = core.table.get(lane.request_id)
    return request if request is not None and request.handle == lane.handle else None


def _record(core: Core, lane: PlanLane, did: LaneResult, error: str | None) -> CompletionRecord:
    """One lane as the scheduler takes it. Output ends with the first stop token."""
    if error is not None:
        return CompletionRecord(lane.handle, error=error)
    emitted = did.emitted_tokens
    finished = None
    request = _open(core, lane)
    if request is not None:
        for index, token in enumerate(emitted):
            if token in request.stop_token_ids:
                emitted, finished = emitted[: index + 1], FinishReason.STOP
                break
    return CompletionRecord(lane.handle, did.consumed_prompt_tokens, emitted, finished=finished)


def _take_tokens(core: Core, tokens: Sequence[GeneratedToken], completed_ns: int) -> dict[RequestHandle, int]:
    """Move committed tokens to their requests; returns how many each got."""
    committed: dict[RequestHandle, int] = {}
    for token in tokens:
        request = core.table.get(token.request_id)
        assert request is not None, "the scheduler publishes for open requests only"
        committed[token.handle] = committed.get(token.handle, 0) + 1
        request.output_tokens += 1
        if request.first_output_ns is None:
            request.first_output_ns = completed_ns
        if token.token_id not in request.stop_token_ids:
            request.unpublished.append(token.token_id)
        core.touch(request)
        if token.finished is not None:
            core.end(request, token.finished, None, completed_ns)
    return committed


def _take_prompts(core: Core, lanes: Sequence[PlanLane], records: Sequence[CompletionRecord]) -> None:
    for lane, record in zip(lanes, records, strict=True):
        if record.consumed_prompt_tokens and (request := _open(core, lane)) is not None:
            request.consumed_tokens += record.consumed_prompt_tokens


def _end_failed(core: Core, lanes: Sequence[PlanLane], errors: Sequence[str | None], completed_ns: int) -> None:
    for lane, error in zip(lanes, errors, strict=True):
        if error is not None and (request := _open(core, lane)) is not None:
            core.end(request, FinishReason.ERROR, error, completed_ns)


def _completed(
    core: Core, frame: InFlight, result: FrameResult, outcome: str, wall_ns: int, lanes: list[LaneOutcome]
) -> PlanCompleted:
    return PlanCompleted(
        fence=frame.fence,
        started_ns=result.started_ns,
        completed_ns=result.completed_ns,
        outcome=outcome,
        device_ns=result.device_ns,
        wall_ns=wall_ns,
        exposed_delivery_ns=0,
        estimate_ns=core.scheduler.catalog.estimate(frame.plan.shape, core.now_ns).duration_ns,
        lanes=lanes,
    )
