"""What the device does in a step: prompt tokens consumed, drafts accepted, answers ended."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.records import CompletionRecord, FinishReason, RequestHandle
from scheduler.shapes import Allocation, GraphKind, GraphShape
from scheduler.simulation.acceptance import LARGEST_DEPTH, AcceptanceLuck
from scheduler.simulation.results import Outcome
from scheduler.simulation.workload import Arrival

TOKENS = tuple((0,) * count for count in range(LARGEST_DEPTH + 2))
"""Emitted token ids by their number; nobody looks at simulated ids."""
INFERENCE_KINDS = frozenset(
    {GraphKind.PREFILL, GraphKind.SCORED_PREFILL, GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED}
)


class Live:
    """A resident request on the device. Counts are tokens.

    `output_left`: what the answer still has; 0 once it has ended. `curve`: its acceptance survival, negated.
    `visible_ns`: when its last output became visible, 0 before the first.
    """

    __slots__ = (
        "arrival", "curve", "handle", "largest_gap_ns", "outcome", "output_left", "prompt_left", "visible_ns"
    )  # fmt: skip

    def __init__(
        self, arrival: Arrival, outcome: Outcome, handle: RequestHandle, output_tokens: int, curve: list[float]
    ) -> None:
        self.arrival = arrival
        self.outcome = outcome
        self.handle = handle
        self.prompt_left = arrival.prompt_tokens - outcome.cached_tokens
        self.output_left = output_tokens
        self.curve = curve
        self.visible_ns = 0
        self.largest_gap_ns = 0


def mean_context(plan: Any, lives: Sequence[Live]) -> float:
    """Mean tokens in the cache over the plan's decoders; over all its lanes when none decodes."""
    decoding = [live for lane, live in zip(plan.lanes, lives, strict=True) if not lane.prompt_tokens] or lives
    held = [live.arrival.prompt_tokens - live.prompt_left + live.outcome.output_tokens for live in decoding]
    return sum(held) / len(held) if held else 0.0


class Execution:
    """Executes steps. `luck` None accepts no draft.

    `offered_tokens`, `accepted_tokens`: drafts verified and accepted so far.
    """

    def __init__(self, luck: AcceptanceLuck | None, request_slots: int) -> None:
        self._luck = luck
        self._slots = request_slots
        self._depth = luck.depth if luck is not None else LARGEST_DEPTH
        self.offered_tokens = 0
        self.accepted_tokens = 0

    def open(self, arrival: Arrival, outcome: Outcome, handle: RequestHandle, output_tokens: int) -> Live:
        """The request on the device, before its first step."""
        curve = self._luck.curve_of(arrival.index) if self._luck is not None else []
        return Live(arrival, outcome, handle, output_tokens, curve)

    def run(
        self, plan: Any, lives: Sequence[Live]
    ) -> tuple[list[CompletionRecord], list[Live], NDArray[np.float32] | None]:
        """Records in lane order, whose output becomes visible, and the confidence sidecar of a packed round.

        A lane whose answer ended in the step before this one, unknown to whoever queued it, emits one token that
        nobody takes.
        """
        if plan.shape.kind not in INFERENCE_KINDS:
            return [CompletionRecord(live.handle) for live in lives], [], None
        is_packed = packed(plan.shape)
        sidecar = self._confidence(lives) if is_packed else None
        rows = [lane.query_length for lane in plan.lanes] if sidecar is None else device_rows(plan, sidecar[1])
        depth = plan.shape.draft_depth
        records: list[CompletionRecord] = []
        emitting: list[Live] = []
        for lane, live, lane_rows in zip(plan.lanes, lives, rows, strict=True):
            consumed = lane.prompt_tokens
            if consumed:
                live.prompt_left -= consumed
                if live.prompt_left:
                    records.append(CompletionRecord(live.handle, consumed))
                    continue
                records.append(_emitted(live, consumed, 1, 0, 0 if is_packed else None))
            elif not live.output_left:
                records.append(CompletionRecord(live.handle, 0, TOKENS[1], offered_tokens=0))
                continue
            else:
                offered = min(lane_rows - 1, depth)
                accepted = self._accepted(live, offered) if offered else 0
                emitted = min(accepted + 1, live.output_left)
                accepted = min(accepted, emitted)
                self.offered_tokens += offered
                self.accepted_tokens += accepted
                records.append(_emitted(live, 0, emitted, accepted, offered if is_packed else None))
            emitting.append(live)
        return records, emitting, sidecar

    def _accepted(self, live: Live, offered: int) -> int:
        if self._luck is None:
            return 0
        return self._luck.accepted(live.curve, live.arrival.index, live.outcome.output_tokens, offered)

    def _confidence(self, lives: Sequence[Live]) -> NDArray[np.float32]:
        """The sidecar [2, request_slots, depth]: conditional and joint prefix probabilities of each lane's drafts."""
        sidecar = np.zeros((2, self._slots, self._depth), dtype=np.float32)
        if self._luck is not None:
            for live in lives:
                joint = self._luck.confidence(live.curve, live.arrival.index, live.outcome.output_tokens)
                before = np.concatenate(([1.0], joint[:-1]))
                conditional = np.divide(joint, before, out=np.zeros_like(joint), where=before > 0)
                sidecar[:, live.handle.slot] = np.minimum(conditional, 1.0), joint
        return sidecar


def packed(shape: GraphShape) -> bool:
    """Whether the device divides the target rows and reports its confidence."""
    return shape.draft_depth > 0 and shape.allocation is Allocation.DEVICE


def device_rows(plan: Any, joint: NDArray[np.float32]) -> list[int]:
    """Target rows of each lane when the device divides them (S2): every decoder one, then the frontier with the best
    joint prefix probability, ties by the shorter prefix, then the lower slot, within P and each lane's ceiling.

    `joint`: [request_slots, depth], not rising with depth. A prompt lane gets its prompt rows, outside P.
    """
    rows = [lane.query_length if lane.prompt_tokens else 1 for lane in plan.lanes]
    decoders = [i for i, lane in enumerate(plan.lanes) if not lane.prompt_tokens]
    left = plan.shape.target_rows - len(decoders)
    frontier = []
    for position in decoders:
        lane = plan.lanes[position]
        if lane.query_length > 1:
            frontier.append((-joint[lane.handle.slot, 0], 1, lane.handle.slot, position))
    heapq.heapify(frontier)
    while frontier and left > 0:
        _, depth, slot, position = frontier[0]
        rows[position] += 1
        left -= 1
        if depth + 1 < plan.lanes[position].query_length:
            heapq.heapreplace(frontier, (-joint[slot, depth], depth + 1, slot, position))
        else:
            heapq.heappop(frontier)
    return rows


def _emitted(live: Live, consumed: int, emitted: int, accepted: int, offered: int | None) -> CompletionRecord:
    """The record of a lane that emitted, with the request's counts moved on."""
    live.output_left -= emitted
    live.outcome.output_tokens += emitted
    finished = None if live.output_left else FinishReason.STOP
    return CompletionRecord(live.handle, consumed, TOKENS[emitted], accepted, finished, None, offered)
