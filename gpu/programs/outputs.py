"""What a run of an inference program leaves behind in tensors, and how the host reads it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from gpu.device import TokenLogprobs
from gpu.programs.interface import LaneInput, LaneOutput, RoundOutput

LaneLogprobs = Sequence[tuple[TokenLogprobs, ...]]
"""One entry per lane."""

PromptLogprobs = Callable[[LaneInput], tuple[TokenLogprobs, ...] | None]
"""Of a lane's prompt tokens; None where the logits of one of them are not finite."""


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
    prompt_logprobs: PromptLogprobs | None = None,
) -> RoundOutput:
    """What the run did, for its lanes in order; `prompt_logprobs` scores the prompt of a lane with finite logits."""
    counts, finite = outputs.counts.tolist(), outputs.finite.tolist()
    emitted, lengths = outputs.emitted.tolist(), outputs.lengths.tolist()
    results = []
    for row, lane in enumerate(lanes):
        scores = prompt_logprobs(lane) if prompt_logprobs is not None and finite[row] else ()
        if not finite[row] or scores is None:
            results.append(LaneOutput((), finite=False))
            continue
        did = LaneOutput(
            emitted=tuple(emitted[row][: counts[row]]),
            accepted=max(counts[row] - 1, 0),
            offered=lengths[row] - 1 if lane.prompt is None else 0,
            logprobs=logprobs[row],
            prompt_logprobs=scores,
        )
        results.append(did)
    if not outputs.survival.shape[1]:
        return RoundOutput(tuple(results))
    count = len(lanes)
    confidence = None if outputs.conditional is None else outputs.conditional[:count].cpu().numpy().copy()
    return RoundOutput(tuple(results), confidence, outputs.survival[:count].cpu().numpy().copy())
