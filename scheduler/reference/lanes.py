"""What one completed lane does to its request: estimates, counters, the next stage, its end (S3, S5, S10)."""

from __future__ import annotations

import dataclasses
import math

from scheduler.plans import Reason, Role, ScheduledPlan
from scheduler.records import FinishReason, GeneratedToken, RequestHandle
from scheduler.reference.admission import after_state
from scheduler.reference.checkpoints import takes_cut
from scheduler.reference.completion import LaneResult
from scheduler.reference.decision import Graph
from scheduler.reference.estimates import Pool, Prior
from scheduler.reference.prompts import window_starts
from scheduler.reference.residents import Resident, Stage
from scheduler.shapes import Allocation, GraphKind

ORDINARY = (Reason.ORDINARY, Reason.SOLO_PREFILL, Reason.TOKEN_BUDGET)


@dataclasses.dataclass(frozen=True, slots=True)
class Completion:
    """What the lanes of one completed frame share. `graphs`: estimates after the frame's own sample."""

    plan: ScheduledPlan
    now_ns: int
    device_ns: int
    fraction: float
    graphs: tuple[Graph, ...]
    free_rows: int
    everyone: list[Resident]
    prior: Prior
    pool: Pool


def commits(resident: Resident, result: LaneResult) -> bool:
    """Whether the lane's tokens count: not of a failed lane, a cancelled request or one that ended before."""
    return result.record.error is None and not resident.cancelled and not ended_before(resident, result)


def ended_before(resident: Resident, result: LaneResult) -> bool:
    """The request had ended when this frame, queued behind its last one, completed."""
    return resident.stage is Stage.TERMINAL and result.lane.role is not Role.TERMINAL


def captures_an_end(resident: Resident, result: LaneResult) -> bool:
    """Whether the lane is the terminal snapshot of an answer that ended normally, yet to be published."""
    return result.lane.role is Role.TERMINAL and resident.finished and commits(resident, result)


def learn(resident: Resident, result: LaneResult, completion: Completion) -> None:
    """Ageing, acceptance, the pool, forecast, then the prior."""
    emitted = len(result.record.emitted_tokens)
    if emitted == 0:
        return
    estimates, source = resident.estimates, result.lane.proposal_source
    estimates.age(emitted)
    if source is not None:
        for depth, value in acceptance(result).items():
            estimates.observe(source, False, depth, value)
        if completion.plan.shape.allocation is not Allocation.DEVICE:
            completion.pool.observe(source, verified(result))
    if source == "learned":
        for depth, value in enumerate(result.confidence, start=1):
            estimates.observe(source, True, depth, value)
        for depth, value in enumerate(result.confidence, start=1):
            completion.prior.observe(depth, value)


def acceptance(result: LaneResult) -> dict[int, float]:
    """Depth to observation: 1 for accepted drafts, 0 behind a rejection, survival values where there are any."""
    accepted = result.record.accepted_tokens
    rejected = len(result.record.emitted_tokens) == accepted + 1
    found = {}
    for depth in range(1, result.offered + 1):
        if depth <= accepted:
            found[depth] = 1.0
        elif rejected:
            found[depth] = 0.0
        if result.survival and not math.isnan(result.survival[depth - 1]):
            found[depth] = result.survival[depth - 1]
    return found


def verified(result: LaneResult) -> list[bool]:
    """Of each draft that was looked at whether it was accepted: none behind a rejection or the answer's end."""
    accepted = result.record.accepted_tokens
    rejected = accepted < result.offered and len(result.record.emitted_tokens) == accepted + 1
    return [True] * accepted + [False] * rejected


def release_lane(resident: Resident, result: LaneResult) -> None:
    """The frame no longer holds the request."""
    resident.in_flight -= 1
    resident.pending -= result.lane.ceiling
    resident.epoch += 1
    resident.offered = 0


def apply_lane(resident: Resident, result: LaneResult, completion: Completion) -> list[GeneratedToken]:
    """Counters, the next stage and the tokens to publish. A request that is done for is left `cancelled`.

    A completed terminal snapshot leaves it `cancelled` too, with `finished` as it was.
    """
    record, lane = result.record, result.lane
    if not commits(resident, result):
        failed = record.error is not None and not ended_before(resident, result)
        resident.cancelled = resident.cancelled or failed
        return []
    learn(resident, result, completion)
    first = resident.emitted
    emitted = len(record.emitted_tokens)
    resident.consumed += record.consumed_prompt_tokens
    resident.emitted += emitted
    if emitted and completion.plan.reason in ORDINARY:
        resident.decode_earned_ms += completion.fraction * (completion.device_ns / 1e6)
    finished = record.finished
    if finished is None and emitted and resident.emitted >= resident.output_limit:
        finished = FinishReason.LENGTH
    if finished is not None:
        end(resident, finished, completion.graphs, completion.now_ns)
    elif lane.role is Role.TERMINAL:
        resident.cancelled = True
    else:
        resident.stage = next_stage(resident, lane.role, completion)
        if resident.retiring and resident.in_flight == 0:
            resident.stage, resident.retiring = Stage.TERMINAL, False
    tokens = enumerate(record.emitted_tokens)
    return [
        GeneratedToken(lane.handle, lane.request_id, token, first + i, finished if i == emitted - 1 else None)
        for i, token in tokens
    ]


def end(resident: Resident, finished: FinishReason, graphs: tuple[Graph, ...], now_ns: int) -> None:
    """The request's last token: its state is retired through a terminal snapshot if it has earned one."""
    terminal = [g for g in graphs if g.shape.kind is GraphKind.TERMINAL_SNAPSHOT]
    cost = min((g.duration_ms for g in terminal if g.known), default=None)
    normal = finished in (FinishReason.STOP, FinishReason.LENGTH)
    earned = cost is None or resident.decode_earned_ms >= cost
    if normal and terminal and (earned or resident.retiring):
        if not resident.retiring:
            resident.terminal_since_ns = now_ns
        resident.stage, resident.retiring, resident.finished = Stage.TERMINAL, False, True
    else:
        resident.cancelled = True


def finish(resident: Resident, graphs: tuple[Graph, ...], now_ns: int) -> None:
    """The host says that the answer has ended: as with its last token, where the state has come that far."""
    if resident.stage is Stage.TERMINAL:
        resident.finished = True
    elif resident.stage is Stage.DECODE or (resident.prompt_whole and not resident.in_flight):
        end(resident, FinishReason.STOP, graphs, now_ns)
    else:
        resident.cancelled = True


def next_stage(resident: Resident, role: Role, completion: Completion) -> Stage:
    """Where a request that goes on stands after its lane."""
    if role in (Role.INIT, Role.RESTORE):
        return after_state(resident.images_left)
    if role is Role.VISION:
        resident.images_left -= 1
        return after_state(resident.images_left)
    if role is Role.SNAPSHOT:
        return after_snapshot(resident)
    if role is Role.PREFILL:
        return after_prefill(resident, completion)
    return resident.stage


def after_snapshot(resident: Resident) -> Stage:
    """A window's snapshot is restored under a fresh generation; a cut's changes nothing."""
    if not resident.window:
        return Stage.DECODE if resident.prompt_whole else Stage.PREFILL
    resident.window = False
    resident.windows_done += 1
    resident.images_left = len(resident.prompt.windows[resident.windows_done])
    resident.handle = RequestHandle(resident.slot, resident.handle.generation + 1)
    return Stage.RESTORE


def after_prefill(resident: Resident, completion: Completion) -> Stage:
    """A window boundary, a cut that is taken, or inference."""
    if resident.consumed in window_starts(resident.prompt.windows):
        resident.window = True
        return Stage.SNAPSHOT
    if takes_cut(resident, completion.everyone, completion.graphs, completion.free_rows):
        return Stage.SNAPSHOT
    return Stage.DECODE if resident.prompt_whole else Stage.PREFILL
