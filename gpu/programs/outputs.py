"""What a run of an inference program leaves behind in tensors, and how the host reads it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from gpu.device import TokenLogprobs
from gpu.programs.interface import LaneInput, LaneOutput, RoundOutput

LaneLogprobs = Sequence[tuple[TokenLogprobs, ...]]
"""One entry per lane."""


@dataclasses.dataclass(frozen=True, slots=True)
class RunOutputs:
    """The results of B lanes.

    `emitted` int64 [B, W]: accepted drafts, then one token more; `counts` int64 [B]: how many of them count.
    `lengths` int64 [B]: the rows that each lane had. `finite` bool [B]. `first_rows` int64 [B]: each lane's first row
    of the logits. `survival` float64 [B, D]. `conditional` float32 [B, D], None without a draft head.
    """

    emitted: torch.Tensor
    counts: torch.Tensor
    lengths: torch.Tensor
    finite: torch.Tensor
    first_rows: torch.Tensor
    survival: torch.Tensor
    conditional: torch.Tensor | None


def round_output(
    outputs: RunOutputs,
    lanes: Sequence[LaneInput],
    logprobs: LaneLogprobs,
    prompt_logprobs: Callable[[LaneInput], tuple[TokenLogprobs, ...]] | None = None,
) -> RoundOutput:
    """What the run did, for its lanes in order; `prompt_logprobs` scores the prompt of a lane with finite logits."""
    counts, finite = outputs.counts.tolist(), outputs.finite.tolist()
    emitted, lengths = outputs.emitted.tolist(), outputs.lengths.tolist()
    results = tuple(
        LaneOutput(
            emitted=tuple(emitted[row][: counts[row]]),
            accepted=max(counts[row] - 1, 0),
            offered=lengths[row] - 1 if lane.prompt is None else 0,
            finite=finite[row],
            logprobs=logprobs[row],
            prompt_logprobs=prompt_logprobs(lane) if prompt_logprobs is not None and finite[row] else (),
        )
        for row, lane in enumerate(lanes)
    )
    if not outputs.survival.shape[1]:
        return RoundOutput(results)
    count = len(lanes)
    confidence = None if outputs.conditional is None else outputs.conditional[:count].cpu().numpy().copy()
    return RoundOutput(results, confidence, outputs.survival[:count].cpu().numpy().copy())
