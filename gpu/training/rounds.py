"""Complete speculative rounds over whole sequences: draft, verify, accept or resample, absorb. Plain and slow.

This is what serving does, without pages, programs or batches of unlike requests, and so a check on both serving and
the quicker measurement in gpu/training/acceptance.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from gpu.model.draft_head import DraftHead, draft_logits
from gpu.model.weights import Model
from gpu.programs.forward import logits
from gpu.training.sequences import SequenceBatch


@dataclasses.dataclass(frozen=True, slots=True)
class SpeculativeText:
    """One sequence: prompt and emitted tokens, and the number of accepted drafts of each round."""

    token_ids: list[int]
    accepted: list[int]


class SpeculativeSequence:
    """One request, decoded in rounds of `drafts` drafts, greedily or at temperature 1."""

    def __init__(
        self, model: Model, head: DraftHead, prompt: Sequence[int], limit: int, is_greedy: bool, seed: int
    ) -> None:
        """Run the prompt. `limit`: the most tokens of prompt and output together, drafts included."""
        self._model, self._head, self._is_greedy = model, head, is_greedy
        self._generator = torch.Generator().manual_seed(seed)
        self._sequences, self._row = SequenceBatch(model, 1, limit), torch.tensor([0])
        self._token_ids, self._accepted = list(prompt), list[int]()
        hidden = self._run_target(self._token_ids, 0)
        if len(prompt) > 1:
            self._run_head(hidden[:-1], self._token_ids[1:], 0)
        self._state = hidden[-1:]  # after the last token whose KV is there
        self._token_ids.append(self._choose(self._shares(logits(model, self._state))[0]))  # pending

    @property
    def text(self) -> SpeculativeText:
        """What was emitted so far."""
        return SpeculativeText(list(self._token_ids), list(self._accepted))

    @property
    def tokens(self) -> int:
        """Tokens of prompt and output, the pending one included."""
        return len(self._token_ids)

    def run_round(self, drafts: int) -> None:
        """Emit the accepted drafts and one token of the target's own."""
        cursor = len(self._token_ids) - 1
        proposed, draft_shares = self._draft(drafts)
        hidden = self._run_target([self._token_ids[cursor], *proposed], cursor)
        shares = self._shares(logits(self._model, hidden))
        accepted = 0
        while accepted < drafts and self._accepts(shares[accepted], draft_shares[accepted], proposed[accepted]):
            accepted += 1
        left = shares[accepted]
        if accepted < drafts and not self._is_greedy:
            left = (left - draft_shares[accepted]).clamp_min(0)  # what min(p, q) has not given out already
        consumed = [self._token_ids[cursor], *proposed[:accepted]]
        self._run_head(torch.cat((self._state, hidden[:accepted])), consumed, cursor - 1)
        self._state = hidden[accepted : accepted + 1]
        self._token_ids += [*proposed[:accepted], self._choose(left)]
        self._accepted.append(accepted)

    def _draft(self, drafts: int) -> tuple[list[int], list[torch.Tensor]]:
        """Drafts, and the distribution [vocab] that each was drawn from."""
        state, token, entry = self._state, self._token_ids[-1], len(self._token_ids) - 2
        proposed, all_shares = [], []
        for _ in range(drafts):
            state = self._run_head(state, [token], entry)
            _, scores = draft_logits(self._head, self._model, state)
            shares = torch.zeros(self._model.config.vocab_size)
            columns = self._head.draft_token_ids
            shares[slice(None) if columns is None else columns] = self._shares(scores)[0]
            token, entry = self._choose(shares), entry + 1
            proposed.append(token)
            all_shares.append(shares)
        return proposed, all_shares

    def _accepts(self, p: torch.Tensor, q: torch.Tensor, draft: int) -> bool:
        if self._is_greedy:
            return int(p.argmax()) == draft
        return float(torch.rand((), generator=self._generator)) * float(q[draft]) < float(p[draft])

    def _shares(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.softmax(-1)

    def _choose(self, shares: torch.Tensor) -> int:
        if self._is_greedy:
            return int(shares.argmax())
        return int(torch.multinomial(shares, 1, generator=self._generator))

    def _run_target(self, token_ids: list[int], start: int) -> torch.Tensor:
        """Hidden states [tokens, hidden] of tokens from position `start` on."""
        positions = torch.arange(start, start + len(token_ids))
        return self._sequences.run(self._row, torch.tensor([token_ids]), positions.unsqueeze(0))[0]

    def _run_head(self, hidden: torch.Tensor, next_tokens: list[int], start: int) -> torch.Tensor:
        """Outputs [entries, hidden] of entries from position `start` on."""
        positions = torch.arange(start, start + len(next_tokens)).unsqueeze(0)
        token_ids = torch.tensor([next_tokens])
        return self._sequences.draft(self._head, self._row, hidden.unsqueeze(0), token_ids, positions)[0]
