"""What the device does in a step: prompt tokens consumed, drafts accepted, answers ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scheduler.records import CompletionRecord, FinishReason, RequestHandle
from scheduler.shapes import Allocation, GraphKind, GraphShape
from scheduler.simulation.acceptance import LARGEST_DEPTH, AcceptanceLuck, first_round
from scheduler.simulation.errors import SimulationError
from scheduler.simulation.results import Outcome
from scheduler.simulation.workload import Arrival

TOKENS = tuple((0,) * count for count in range(LARGEST_DEPTH + 2))
"""Emitted token ids by their number; nobody looks at simulated ids."""
INFERENCE_KINDS = frozenset(
    {GraphKind.PREFILL, GraphKind.SCORED_PREFILL, GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED}
)
STOP = FinishReason.STOP


class Live:
    """A resident request on the device. Counts are tokens.

    `output_left`: what the answer still has; 0 once it has ended. `accepted[output_left]`: drafts accepted in a round
    from there. `last_round`: number of the round with nothing left; see AcceptanceLuck. `rounds[n]`: the record of a
    lane that accepts n drafts and goes on. `visible_ns`: when output became visible, each time.
    """

    __slots__ = (
        "accepted", "arrival", "handle", "last_round", "outcome", "output_left", "output_tokens", "prompt_left",
        "rounds", "visible_ns",
    )  # fmt: skip

    def __init__(
        self,
        arrival: Arrival,
        outcome: Outcome,
        handle: RequestHandle,
        output_tokens: int,
        accepted: bytes,
        depth: int,
    ) -> None:
        self.arrival = arrival
        self.outcome = outcome
        self.handle = handle
        self.prompt_left = arrival.prompt_tokens - outcome.cached_tokens
        self.output_left = output_tokens
        self.output_tokens = output_tokens
        self.accepted = accepted
        self.last_round = first_round(arrival.index) + output_tokens
        self.rounds = [CompletionRecord(handle, 0, TOKENS[n + 1], n) for n in range(depth + 1)]
        self.visible_ns: list[int] = []


@dataclasses.dataclass(slots=True)
class Executed:
    """What a step did: records in lane order, whose output becomes visible, whose answer ended.

    `sidecar`: a packed round's confidence, float32 [2, request_slots, depth], which the next one overwrites.
    """

    records: list[CompletionRecord]
    emitting: Sequence[Live]
    ended: list[Live]
    sidecar: NDArray[np.float32] | None = None


@dataclasses.dataclass(slots=True)
class Step:
    """What runs: a graph and, in lane order, the requests, their rows and their prompt tokens (0 for decoders)."""

    shape: GraphShape
    lives: list[Live]
    rows: list[int]
    prompt_tokens: list[int]

    def mean_context(self) -> float:
        """Mean tokens in the cache over the decoders; over all lanes when none decodes."""
        lives = [live for live, tokens in zip(self.lives, self.prompt_tokens, strict=True) if not tokens] or self.lives
        held = [live.arrival.prompt_tokens - live.prompt_left + live.output_tokens - live.output_left for live in lives]
        return sum(held) / len(held) if held else 0.0


class Execution:
    """Executes steps. `luck` may be None where no step has drafts.

    `offered_tokens`, `accepted_tokens`: drafts verified and accepted so far.
    """

    def __init__(self, luck: AcceptanceLuck | None, request_slots: int) -> None:
        self._luck = luck
        self._slots = request_slots
        self._depth = luck.depth if luck is not None else 1
        self._curves = np.zeros((request_slots, self._depth))
        self._sidecar = np.zeros((2, request_slots, self._depth), dtype=np.float32)
        self._sidecar_by_slot = self._sidecar.transpose(1, 0, 2)
        self.offered_tokens = 0
        self.accepted_tokens = 0

    def open(self, arrival: Arrival, outcome: Outcome, handle: RequestHandle, output_tokens: int) -> Live:
        """The request on the device, before its first step."""
        if self._luck is None:
            return Live(arrival, outcome, handle, output_tokens, bytes(output_tokens + 1), 0)
        self._curves[handle.slot] = self._luck.curve(arrival.index)
        accepted = self._luck.accepted(arrival.index, output_tokens)
        return Live(arrival, outcome, handle, output_tokens, accepted, self._depth)

    def run(self, step: Step) -> Executed:
        """Executes the step. Raises SimulationError for drafts without luck."""
        shape, lives = step.shape, step.lives
        if shape.draft_depth and self._luck is None:
            raise SimulationError(f"{shape.label} proposes drafts, and nothing says how many are accepted")
        if shape.kind not in INFERENCE_KINDS:
            return Executed([CompletionRecord(live.handle) for live in lives], (), [])
        if not shape.prefill_capacity:
            return self._generate(shape, lives, step.rows)
        decoders = [i for i, tokens in enumerate(step.prompt_tokens) if not tokens]
        decoded = self._generate(shape, [lives[i] for i in decoders], [step.rows[i] for i in decoders])
        return _with_prompts(step, decoded, decoders)

    def _generate(self, shape: GraphShape, lives: Sequence[Live], rows: Sequence[int]) -> Executed:
        """Decoders, each with its drafts."""
        if not shape.draft_depth:
            return _decode(lives)
        sidecar = None
        if packed(shape):
            sidecar = self._sidecar
            rows = device_rows(shape.target_rows, rows, self._report_confidence(lives))
        done = Executed([], lives, [], sidecar)
        append = done.records.append
        accepted_sum = 0
        for live, lane_rows in zip(lives, rows, strict=True):
            left = live.output_left
            accepted = live.accepted[left]
            if accepted >= lane_rows:
                accepted = lane_rows - 1
            if accepted + 1 < left:
                live.output_left = left - accepted - 1
                accepted_sum += accepted
                if sidecar is None:
                    append(live.rounds[accepted])
                else:
                    tokens = TOKENS[accepted + 1]
                    append(CompletionRecord(live.handle, 0, tokens, accepted, None, None, lane_rows - 1))
            else:
                accepted_sum += _end_round(live, accepted, None if sidecar is None else lane_rows - 1, done)
        self.offered_tokens += sum(rows) - len(rows)
        self.accepted_tokens += accepted_sum
        return done

    def _report_confidence(self, lives: Sequence[Live]) -> NDArray[np.float32]:
        """Writes the sidecar: conditional and joint prefix probabilities of each lane's drafts. Returns the joint ones.

        Slots without a lane keep what they had, as on a device: nobody may read it.
        """
        assert self._luck is not None, "a step with drafts was refused"
        slots = np.array([live.handle.slot for live in lives])
        rounds = np.array([live.last_round - live.output_left for live in lives])
        confidence = self._luck.confidence(self._curves, slots, rounds)
        self._sidecar_by_slot[slots] = confidence
        return confidence[:, 1]


def packed(shape: GraphShape) -> bool:
    """Whether the device divides the target rows and reports its confidence."""
    return shape.draft_depth > 0 and shape.allocation is Allocation.DEVICE


def device_rows(target_rows: int, ceilings: Sequence[int], joint: NDArray[np.float32]) -> list[int]:
    """Rows of each decoder when the device divides P target rows (S2).

    Every decoder gets one, then the best joint prefix probability is admitted, ties by the shorter prefix, then the
    earlier lane, up to each lane's ceiling, which is at most depth + 1. `joint`: [lanes, depth], not rising with
    depth; lanes in slot order.
    """
    if sum(ceilings) <= target_rows:
        return list(ceilings)
    lanes = len(ceilings)
    beyond = np.arange(1, joint.shape[1] + 1)[:, None] >= np.asarray(ceilings)
    missed = np.where(beyond, np.inf, -joint.T)  # depth by depth, so that a stable sort keeps the order of ties
    best = missed.argsort(axis=None, kind="stable")[: target_rows - lanes]
    counts: list[int] = np.bincount(best % lanes, minlength=lanes).tolist()
    return [1 + count for count in counts]


def _decode(lives: Sequence[Live]) -> Executed:
    """One token for each lane."""
    done = Executed([], lives, [])
    append = done.records.append
    for live in lives:
        left = live.output_left - 1
        if left > 0:
            live.output_left = left
            append(live.rounds[0])
        else:
            _end_round(live, 0, None, done)
    return done


def _end_round(live: Live, accepted: int, offered: int | None, done: Executed) -> int:
    """The lane of an answer that ends in this step. Returns how many of its `accepted` drafts are still its own.

    An answer that ended in the step before, unknown to whoever queued the lane, emits one token that nobody takes.
    """
    left = live.output_left
    if not left:
        done.records.append(CompletionRecord(live.handle, 0, TOKENS[1], offered_tokens=offered))
        done.emitting = [other for other in done.emitting if other is not live]
        return 0
    accepted = min(accepted, left)
    live.output_left = 0
    done.ended.append(live)
    done.records.append(CompletionRecord(live.handle, 0, TOKENS[left], accepted, STOP, None, offered))
    return accepted


def _with_prompts(step: Step, decoded: Executed, decoders: Sequence[int]) -> Executed:
    """The step with its prompt lanes: a finished prompt emits the answer's first token."""
    by_lane = dict(zip(decoders, decoded.records, strict=True))
    records: list[CompletionRecord] = []
    emitting = list(decoded.emitting)
    for i, (live, consumed) in enumerate(zip(step.lives, step.prompt_tokens, strict=True)):
        if not consumed:
            records.append(by_lane[i])
            continue
        live.prompt_left -= consumed
        if live.prompt_left:
            records.append(CompletionRecord(live.handle, consumed))
            continue
        live.output_left -= 1
        emitting.append(live)
        if not live.output_left:
            decoded.ended.append(live)
        records.append(CompletionRecord(live.handle, consumed, TOKENS[1], 0, None if live.output_left else STOP))
    return Executed(records, emitting, decoded.ended, decoded.sidecar)
