"""From a program's output to a frame's result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpu.device import LaneResult
from gpu.frames import CheckedLane
from gpu.programs.interface import LaneOutput, RoundOutput

NON_FINITE = "the model's logits are not finite numbers; its weights are damaged or overflow in this precision"


def lane_result(lane: CheckedLane, output: LaneOutput) -> LaneResult:
    """What a lane of an inference program did; one without finite logits consumed and emitted nothing."""
    if not output.finite:
        return LaneResult(consumed_prompt_tokens=0, emitted_tokens=(), error=NON_FINITE)
    assert lane.input is not None
    return LaneResult(
        consumed_prompt_tokens=0 if lane.input.prompt is None else len(lane.input.prompt),
        emitted_tokens=output.emitted,
        accepted_tokens=output.accepted,
        offered_tokens=output.offered,
        logprobs=output.logprobs,
        prompt_logprobs=output.prompt_logprobs,
    )


def confidence_by_slot(
    output: RoundOutput, slots: Sequence[int], request_slots: int, capacity: int
) -> npt.NDArray[np.float32] | None:
    """float32 [2, request_slots, capacity]: conditional confidence and its cumulative products, 0 elsewhere."""
    if output.confidence is None:
        return None
    scattered = np.zeros((2, request_slots, capacity), dtype=np.float32)
    depth = output.confidence.shape[1]
    scattered[0, slots, :depth] = output.confidence
    scattered[1, slots, :depth] = np.cumprod(output.confidence, axis=1, dtype=np.float32)
    return scattered


def survival_by_slot(
    output: RoundOutput, slots: Sequence[int], request_slots: int, capacity: int
) -> npt.NDArray[np.float64] | None:
    """float64 [request_slots, capacity], NaN where a prefix was not evaluated."""
    if output.survival is None:
        return None
    scattered = np.full((request_slots, capacity), np.nan)
    scattered[slots, : output.survival.shape[1]] = output.survival
    return scattered
