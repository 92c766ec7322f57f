"""Step 1: collect the oldest finished graph and give it to the scheduler."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgspec

from gpu.device import FrameResult, LaneResult, TokenLogprobs
from scheduler.catalog import MAX_DURATION_NS
from scheduler.plans import PlanLane, Role
from scheduler.records import CompletionRecord, ExecutionTiming, FinishReason, GeneratedToken, RequestHandle
from scheduler.shapes import GraphKind
from service.engine.core import Core, InFlight
from service.engine.drafts import COPY, LEARNED, note_copies, note_round, offer_copies
from service.engine.requests import EngineRequest
from service.ipc.messages import TokenScore
from service.journal.records import LaneOutcome, PlanCompleted

MOST_LIVES = 8
"""A request whose frames the device refuses again and again for want of pages ends with an error."""

_NOTHING = LaneResult(0, ())


class _Lane(msgspec.Struct, frozen=True):
    """One completed lane. `request`: None when it has ended before; then nothing that the lane did counts."""

    plan: PlanLane
    did: LaneResult
    error: str | None
    record: CompletionRecord
    request: EngineRequest | None


def collect_completion(core: Core) -> None:
    """Apply the oldest frame's result, if it waits: tokens become unpublished output, ended requests end."""
    result = _oldest_result(core)
    if result is None:
        return
    frame = core.in_flight.pop(0)
    assert frame.fence == result.fence, "frames complete in the order of their submission"
    shape, lanes = frame.plan.shape, _lanes(frame, result)
    failures = [lane for lane in lanes if lane.error is not None]
    failed = len(failures) == len(lanes)
    wall_ns = min(max(0, core.now_ns - frame.submitted_ns), MAX_DURATION_NS)  # a suspended machine can take longer
    device_ns = 0 if failed else result.device_ns
    tokens = _complete(core, frame, result, lanes, ExecutionTiming((device_ns,) if device_ns > 0 else (), wall_ns))
    consumed = _take_prompts(lanes) if shape.prefill_capacity else 0
    committed = _take_tokens(core, tokens, lanes, result.completed_ns)
    outcomes = _outcomes(lanes, frame, committed) if core.traced or shape.draft_depth else []
    if failures:
        _end_failed(core, failures, core.refused is result, result.completed_ns)
    if not shape.physical_rows:  # a state graph
        _retire(core, lanes)
    core.release()
    core.completed = (frame.fence, {lane.plan.handle: number for number, lane in enumerate(lanes)})
    if core.traced:
        core.records.append(_completed(core, frame, result, "failed" if failed else "completed", wall_ns, outcomes))
    core.metrics.executed(frame.plan, frame.fence, device_ns, consumed, len(tokens), core.now_ns)
    if shape.draft_depth:
        _note_rounds(core, lanes, outcomes)
    offer_copies(core, frame.plan.lanes)
    if core.refused is result:
        core.refused = None


def abandon(core: Core) -> None:
    """The frames in flight will not be waited for any longer; their requests have ended before."""
    for frame in core.in_flight:
        wall_ns = core.now_ns - frame.submitted_ns
        nothing = FrameResult(frame.fence, frame.submitted_ns, core.now_ns, 0, ())
        outcomes = [LaneOutcome(number, 0, 0, 0) for number in range(len(frame.plan.lanes))]
        core.records.append(_completed(core, frame, nothing, "abandoned", wall_ns, outcomes))
    core.in_flight.clear()


def _oldest_result(core: Core) -> FrameResult | None:
    """What the device has of the oldest frame, or that it did not take it."""
    refused = core.refused
    if refused is not None and core.in_flight[0].fence == refused.fence:
        return refused
    return core.device.collect()


def _lanes(frame: InFlight, result: FrameResult) -> list[_Lane]:
    """The lanes as the scheduler takes them. Output ends with the first stop token, drafts behind it included."""
    lanes = frame.plan.lanes
    did = result.lanes if result.error is None else (_NOTHING,) * len(lanes)
    return [
        _lane(lane, done, result.error or done.error, request if request is not None and request.holds(lane) else None)
        for lane, done, request in zip(lanes, did, frame.requests, strict=True)
    ]


def _lane(lane: PlanLane, did: LaneResult, error: str | None, request: EngineRequest | None) -> _Lane:
    if error is not None:
        return _Lane(lane, did, error, CompletionRecord(lane.handle, error=error), request)
    emitted, finished = did.emitted_tokens, None
    if request is not None and not request.stop_token_ids.isdisjoint(emitted):
        first = next(index for index, token in enumerate(emitted) if token in request.stop_token_ids)
        emitted, finished = emitted[: first + 1], FinishReason.STOP
    record = CompletionRecord(
        lane.handle,
        did.consumed_prompt_tokens,
        emitted,
        min(did.accepted_tokens, len(emitted)),
        finished,
        offered_tokens=did.offered_tokens,
    )
    return _Lane(lane, did, None, record, request)


def _complete(
    core: Core, frame: InFlight, result: FrameResult, lanes: Sequence[_Lane], timing: ExecutionTiming
) -> list[GeneratedToken]:
    """The scheduler's completion of the frame, with the sidecars that the device has."""
    scheduler, records = core.scheduler, [lane.record for lane in lanes]
    confidence, survival = result.confidence, result.survival
    if confidence is None and survival is None:
        return scheduler.complete(frame.fence, records, timing)
    if survival is None:
        return scheduler.complete_packed_round(frame.fence, records, timing, confidence)
    if confidence is None:
        return scheduler.complete_with_survival(frame.fence, records, timing, survival)
    return scheduler.complete_packed_round_with_survival(frame.fence, records, timing, confidence, survival)


def _take_prompts(lanes: Sequence[_Lane]) -> int:
    """Move what was computed of prompts to their requests; returns how many tokens all lanes consumed."""
    consumed = 0
    for lane in lanes:
        request, tokens = lane.request, lane.record.consumed_prompt_tokens
        consumed += tokens
        if request is None or not tokens:
            continue
        request.consume(tokens)
        scores = lane.did.prompt_logprobs
        if scores:
            # A request that was preempted while its prompt ran has told some of them already.
            fresh = scores[max(0, request.scored_tokens - request.scored_now) :]
            request.prompt_logprobs += map(_entry, fresh)
            request.scored_tokens += len(fresh)
            request.scored_now += len(scores)
    return consumed


def _take_tokens(
    core: Core, tokens: Sequence[GeneratedToken], lanes: Sequence[_Lane], completed_ns: int
) -> dict[RequestHandle, int]:
    """Move committed tokens to their requests; returns how many each got."""
    committed: dict[RequestHandle, int] = {}
    scores = {lane.plan.handle: lane.did.logprobs for lane in lanes if lane.did.logprobs}
    open_request, touched, grows = core.table.get, core.touched, core.grows
    for token in tokens:
        handle, token_id, request = token.handle, token.token_id, open_request(token.request_id)
        assert request is not None, "the scheduler publishes for open requests only"
        place = committed.get(handle, 0)
        committed[handle] = place + 1
        request.output_tokens += 1
        if grows:
            request.output.append(token_id)
        if request.first_output_ns is None:
            request.first_output_ns = completed_ns
        if token_id not in request.stop_token_ids:
            request.unpublished.append(token_id)
            if handle in scores:
                request.logprobs.append(_entry(scores[handle][place]))
        touched[id(request)] = request
        if token.finished is not None:
            core.settle(request, token.finished, None, completed_ns)
    return committed


def _entry(scores: TokenLogprobs) -> TokenScore:
    return scores.token_id, scores.logprob, list(scores.top)


def _outcomes(lanes: Sequence[_Lane], frame: InFlight, committed: dict[RequestHandle, int]) -> list[LaneOutcome]:
    """What the journal keeps of each lane. A learned round drafts at every depth, whatever is then verified."""
    if frame.plan.shape.kind is GraphKind.DECODE and len(committed) == len(lanes):
        return _one_token_each(len(lanes))
    return _outcome_of_each(lanes, frame.plan.shape.draft_depth, committed)


def _outcome_of_each(lanes: Sequence[_Lane], depth: int, committed: dict[RequestHandle, int]) -> list[LaneOutcome]:
    outcomes = []
    for number, lane in enumerate(lanes):
        record = lane.record
        consumed = record.consumed_prompt_tokens
        if lane.request is None or lane.error is not None:
            outcomes.append(LaneOutcome(number, consumed, 0, 0))
            continue
        tokens, source = committed.get(record.handle, 0), lane.plan.proposal_source
        offered = record.offered_tokens or 0
        drafted = depth if source == LEARNED else offered if source == COPY else 0
        outcomes.append(LaneOutcome(number, consumed, tokens, record.accepted_tokens, offered, drafted))
    return outcomes


@functools.cache
def _one_token_each(lanes: int) -> list[LaneOutcome]:
    """What most frames did; the same list each time, which nobody changes."""
    return [LaneOutcome(number, 0, 1, 0) for number in range(lanes)]


def _note_rounds(core: Core, lanes: Sequence[_Lane], outcomes: Sequence[LaneOutcome]) -> None:
    """Speculative rounds in the counters and in their requests' own means."""
    rounds = []
    for lane, outcome in zip(lanes, outcomes, strict=True):
        source = lane.plan.proposal_source
        if source is not None and lane.request is not None and lane.error is None:
            note_round(core, lane.request, source, outcome.accepted_tokens, outcome.offered_tokens)
            rounds.append((source, outcome))
    core.metrics.rounds(rounds)
    copied = [outcome.accepted_tokens for source, outcome in rounds if source == COPY and outcome.offered_tokens]
    note_copies(core, len(copied), sum(copied))


def _end_failed(core: Core, lanes: Sequence[_Lane], refused: bool, completed_ns: int) -> None:
    """A failed lane ends its request, unless only its terminal snapshot failed, or KV pages were missing."""
    for lane in lanes:
        request = lane.request
        if lane.error is None or request is None or lane.plan.role is Role.TERMINAL:
            continue
        if refused and core.grows and request.losses < MOST_LIVES:
            request.losses += 1
            core.preempted(request)
        else:
            core.settle(request, FinishReason.ERROR, lane.error, completed_ns)


def _retire(core: Core, lanes: Sequence[_Lane]) -> None:
    """Terminal snapshots: of a request that has ended, or of one that was preempted and goes on."""
    for lane in lanes:
        if lane.plan.role is Role.TERMINAL:
            core.scheduler.published_snapshot(lane.plan.request_id)
            if lane.request is not None:
                core.preempted(lane.request)


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
        estimate_ns=core.scheduler.catalog.duration_ns(frame.plan.graph),
        lanes=lanes,
    )
