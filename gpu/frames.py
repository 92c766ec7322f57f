"""From a frame to what its program is run with: every check that submit() makes, and nothing that changes state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import msgspec

from gpu.device import Frame, FrameLane, InvalidFrame
from gpu.programs.create import STATE_KINDS
from gpu.programs.interface import LaneInput
from gpu.requests import OpenRequest
from scheduler.shapes import Allocation, GraphKind

PROMPT_KINDS = frozenset({GraphKind.PREFILL, GraphKind.SCORED_PREFILL})
SNAPSHOT_KINDS = frozenset({GraphKind.SNAPSHOT, GraphKind.TERMINAL_SNAPSHOT})
QUEUEABLE_KINDS = frozenset({GraphKind.DECODE, GraphKind.SPECULATIVE})
MAX_FRAMES = 2


class CheckedLane(msgspec.Struct, frozen=True):
    """A lane that fits. `tokens`: KV room that it needs, draft storage included, 0 for state programs.

    `ceiling`: output tokens that a decoding lane can emit at the most, 0 for other lanes. `input` is None for state
    programs. `retires`: its request runs no more after this snapshot, whose state ends after `keeps` tokens at the
    latest, if that is given.
    """

    request: OpenRequest
    tokens: int = 0
    ceiling: int = 0
    input: LaneInput | None = None
    retires: bool = False
    keeps: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class DraftLimits:
    """`tokens`: the deepest prepared draft. `learned`: a draft head proposes where copies do not."""

    tokens: int
    learned: bool


def check_frame(frame: Frame, requests: Mapping[int, OpenRequest], drafts: DraftLimits) -> tuple[CheckedLane, ...]:
    """The frame's lanes, each checked against the program's extents and its request. Raises InvalidFrame."""
    shape, slots = frame.shape, [lane.slot for lane in frame.lanes]
    if not 1 <= len(slots) <= shape.batch_capacity or len(set(slots)) != len(slots):
        raise InvalidFrame(
            f"frame {frame.fence}: slots {slots} must be distinct, at least 1 and at most "
            f"{shape.batch_capacity} for {shape.label}"
        )
    lanes = tuple([_check_lane(frame, lane, requests.get(lane.slot), drafts) for lane in frame.lanes])
    prompts = [len(lane.input.prompt) for lane in lanes if lane.input is not None and lane.input.prompt is not None]
    rows = sum([lane.ceiling for lane in lanes])
    if len(prompts) > shape.prompt_rows or sum(prompts) > shape.prefill_capacity:
        raise InvalidFrame(
            f"frame {frame.fence}: {len(prompts)} prompts with {sum(prompts)} tokens to read; {shape.label} takes "
            f"{shape.prompt_rows} with {shape.prefill_capacity}"
        )
    if shape.target_rows and shape.allocation is not Allocation.DEVICE and rows > shape.target_rows:
        raise InvalidFrame(f"frame {frame.fence}: {rows} verification rows; {shape.label} has {shape.target_rows}")
    return lanes


def check_queue(frame: Frame, in_flight: Sequence[Frame]) -> None:
    """Two frames may be in flight when both are decode or speculative. Raises InvalidFrame."""
    kinds = {other.shape.kind for other in in_flight} | {frame.shape.kind}
    if len(in_flight) >= MAX_FRAMES or (in_flight and not kinds <= QUEUEABLE_KINDS):
        running = ", ".join(f"{other.fence} ({other.shape.label})" for other in in_flight)
        raise InvalidFrame(f"frame {frame.fence} ({frame.shape.label}) cannot be queued: in flight are {running}")


def _check_lane(frame: Frame, lane: FrameLane, request: OpenRequest | None, drafts: DraftLimits) -> CheckedLane:
    kind = frame.shape.kind
    if request is None or request.retired:
        raise InvalidFrame(f"frame {frame.fence}: slot {lane.slot} holds no open request that can run")
    if kind in STATE_KINDS:
        return _check_state_lane(frame, lane, request)
    if not request.ready:
        raise InvalidFrame(f"frame {frame.fence}: slot {lane.slot} has not been through an init or restore program")
    if kind in PROMPT_KINDS or (kind is GraphKind.MIXED and request.prompt_left):
        return _check_prompt_lane(frame, lane, request)
    return _check_decoding_lane(frame, lane, request, drafts)


def _check_state_lane(frame: Frame, lane: FrameLane, request: OpenRequest) -> CheckedLane:
    kind = frame.shape.kind
    restores = request.memory.restoring is not None
    retires = kind is GraphKind.TERMINAL_SNAPSHOT or (kind is GraphKind.SNAPSHOT and lane.retires)
    if kind is GraphKind.INIT:
        fits = not request.ready and not restores
    elif kind is GraphKind.RESTORE:
        fits = not request.ready and restores
    else:
        fits = request.ready or retires
    if not fits or lane.query_length != 1:
        raise InvalidFrame(
            f"frame {frame.fence}: slot {lane.slot} with query_length {lane.query_length} does not fit "
            f"{frame.shape.label}: set up {request.ready}, to be restored {restores}"
        )
    # A page that another state shares must not be given away. Those are pages of the prompt, before its last token's.
    if lane.keeps is not None and not (retires and lane.keeps >= min(request.cursor, len(request.prompt))):
        raise InvalidFrame(
            f"frame {frame.fence}: slot {lane.slot} cannot keep {lane.keeps} tokens: its prompt has "
            f"{len(request.prompt)}, {request.cursor} are computed, and it retires: {retires}"
        )
    return CheckedLane(request, retires=retires, keeps=lane.keeps)


def _check_prompt_lane(frame: Frame, lane: FrameLane, request: OpenRequest) -> CheckedLane:
    if frame.shape.kind is GraphKind.MIXED and request.sampling.prompt_logprobs is not None:
        raise InvalidFrame(
            f"frame {frame.fence}: slot {lane.slot} wants its prompt scored, which a mixed graph cannot do"
        )
    if not 1 <= lane.query_length <= min(frame.shape.prefill_capacity, request.prompt_left):
        raise InvalidFrame(
            f"frame {frame.fence}: slot {lane.slot} asks for {lane.query_length} prompt tokens; "
            f"{request.prompt_left} are left and {frame.shape.label} takes {frame.shape.prefill_capacity}"
        )
    end = request.cursor + lane.query_length
    inputs = LaneInput(lane.slot, request.prompt[request.cursor : end], finishes=end == len(request.prompt))
    return CheckedLane(request, tokens=end + 1, input=inputs)


def _check_decoding_lane(frame: Frame, lane: FrameLane, request: OpenRequest, drafts: DraftLimits) -> CheckedLane:
    shape, rows = frame.shape, lane.query_length
    used = request.cursor + request.ceiling
    unread = len(request.prompt) > request.cursor
    if unread or (rows != 1 and not 1 < rows <= shape.lane_width) or used + rows > request.capacity:
        raise InvalidFrame(
            f"frame {frame.fence}: slot {lane.slot} cannot decode: query_length {rows} of {shape.lane_width}, "
            f"{request.prompt_left} prompt tokens left, {used} of {request.capacity} tokens used"
        )
    copies = None
    if rows > 1 and lane.copies:
        copies = request.copy_proposals(drafts.tokens)
        if request.frames or len(copies) < rows - 1:
            raise InvalidFrame(
                f"frame {frame.fence}: slot {lane.slot} has {len(copies)} copy proposals for {rows - 1} drafts, and "
                f"{request.frames} frames in flight"
            )
    elif rows > 1 and not drafts.learned:
        raise InvalidFrame(f"frame {frame.fence}: slot {lane.slot} asks for learned drafts without a draft head")
    # As the scheduler counts: the pending token, what may be emitted meanwhile and now, and the drafts' own entries.
    tokens = len(request.tokens) + request.ceiling + rows + shape.draft_depth
    return CheckedLane(request, tokens, rows, LaneInput(lane.slot, rows=rows, copies=copies))
