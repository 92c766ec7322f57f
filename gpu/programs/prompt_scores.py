"""Log-probabilities of prompt tokens, from the hidden states of the positions before them."""

from __future__ import annotations

import torch

from gpu.device import TokenLogprobs
from gpu.programs.forward import logits
from gpu.programs.interface import LaneInput, ProgramContext
from gpu.programs.rows import TokenRows
from gpu.sampling import row_logprobs

_CHUNK_ROWS = 64


class PromptScores:
    """Scores one prompt chunk after its run. Memory is bounded: the output head sees 64 rows at a time."""

    def __init__(self, context: ProgramContext) -> None:
        self._context = context

    def keep(self, rows: TokenRows, previous_hidden: torch.Tensor) -> None:
        """Take note of a run: `previous_hidden` [R, hidden] is the hidden state one position before each row."""
        self._rows, self._previous_hidden = rows, previous_hidden

    def entries(self, lane: LaneInput) -> tuple[TokenLogprobs, ...] | None:
        """One for each token of the lane's prompt chunk but the prompt's first; None where logits are not finite."""
        if lane.prompt is None:
            return ()
        wanted = self._context.sampling.of(lane.slot).parameters.prompt_logprobs or 0
        first = int(self._rows.positions[0] == 0)
        entries: list[TokenLogprobs] = []
        for start in range(first, len(lane.prompt), _CHUNK_ROWS):
            end = min(start + _CHUNK_ROWS, len(lane.prompt))
            with torch.inference_mode():
                chunk = logits(self._context.model, self._previous_hidden[start:end].contiguous()).cpu().numpy()
            scored = row_logprobs(chunk, lane.prompt[start:end], wanted)
            if scored is None:
                return None
            entries += scored
        return tuple(entries)
