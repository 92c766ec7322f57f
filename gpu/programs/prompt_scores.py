"""Log-probabilities of prompt tokens, from the hidden states of the positions before them."""

from __future__ import annotations

import torch

from gpu.device import TokenLogprobs
from gpu.programs.forward import logits
from gpu.programs.interface import ProgramContext
from gpu.programs.lanes import LaneBuffers
from gpu.programs.rows import TokenRows
from gpu.sampling import row_logprobs

_CHUNK_ROWS = 64


class PromptScores:
    """Scores one prompt chunk. Its memory is bounded: the output head sees 64 rows at a time."""

    def __init__(self, context: ProgramContext) -> None:
        self._context = context
        self.entries: tuple[TokenLogprobs, ...] = ()

    def score(self, lanes: LaneBuffers, rows: TokenRows, previous_hidden: torch.Tensor) -> None:
        """Set `entries`, one for each token of the chunk but the prompt's first.

        `previous_hidden` [R, hidden]: the hidden state one position before each row. A chunk whose logits are not
        finite has no entries.
        """
        self.entries = ()
        length = int(lanes.lengths[0])
        first = int(rows.positions[0] == 0)
        if length == 0:
            return
        wanted = self._context.sampling.of(int(lanes.slots[0])).parameters.prompt_logprobs or 0
        tokens = rows.token_ids[first:length].cpu().numpy()
        entries: list[TokenLogprobs] = []
        for start in range(first, length, _CHUNK_ROWS):
            end = min(start + _CHUNK_ROWS, length)
            chunk = logits(self._context.model, previous_hidden[start:end].contiguous()).cpu().numpy()
            scored = row_logprobs(chunk, tokens[start - first : end - first], wanted)
            if scored is None:
                return
            entries += scored
        self.entries = tuple(entries)
