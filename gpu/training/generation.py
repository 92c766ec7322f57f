"""Generate text with the target in a fixed batch whose rows take the next prompt when theirs has ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F  # noqa: N812

from gpu.model.weights import Model
from gpu.programs.forward import logits
from gpu.training.samples import Sample
from gpu.training.sequences import SequenceBatch

_BLOCK_TOKENS = 256


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's token ids and how to answer it; temperature 0 is greedy."""

    token_ids: tuple[int, ...]
    temperature: float
    is_held_out: bool


@dataclasses.dataclass(frozen=True, slots=True)
class GenerationLimits:
    """`rows`: sequences at once. `answer_tokens`: the most of one answer. `prompt_tokens`: the longest prompt."""

    rows: int
    prompt_tokens: int
    answer_tokens: int
    end_ids: frozenset[int]


def generate(model: Model, prompts: Iterable[Prompt], limits: GenerationLimits, seed: int) -> Iterator[Sample]:
    """Yield a Sample for each prompt, in the order in which answers end; prompts that are too long are left out."""
    fitting = (prompt for prompt in prompts if len(prompt.token_ids) <= limits.prompt_tokens)
    batch = _Batch(model, limits, seed)
    while batch.admit(fitting) or batch.running:
        yield from batch.step()


def sample_tokens(scores: torch.Tensor, temperatures: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Token ids [rows] for logits [rows, vocab] float32 at temperatures [rows]; 0 is greedy.

    The place of a draw in the cumulative distribution is looked for among blocks of tokens first and then within one
    block: summing a whole vocabulary up costs as much as a third of the model's products.
    """
    drawn = scores.argmax(-1)
    (warm,) = torch.where(temperatures > 0)
    if not len(warm):
        return drawn
    shares = (scores[warm] / temperatures[warm, None]).softmax(-1)
    blocks = F.pad(shares, (0, -shares.shape[1] % _BLOCK_TOKENS)).view(len(warm), -1, _BLOCK_TOKENS)
    ends = blocks.sum(-1).cumsum(-1)
    draws = torch.rand(len(warm), 1, generator=generator) * ends[:, -1:]
    block = torch.searchsorted(ends, draws, right=True).clamp_max(ends.shape[1] - 1)
    begin = torch.where(block > 0, ends.gather(1, (block - 1).clamp_min(0)), 0.0)
    chosen = blocks[torch.arange(len(warm)), block[:, 0]]
    # Rounding may put a draw behind the block's last token that has any share; that token takes it.
    last = _BLOCK_TOKENS - 1 - (chosen > 0).flip(1).int().argmax(1, keepdim=True)
    inside = torch.searchsorted(chosen.cumsum(-1), draws - begin, right=True).minimum(last)
    drawn[warm] = (block * _BLOCK_TOKENS + inside)[:, 0]
    return drawn


class _Batch:
    """The rows' state. A row without a prompt repeats its last token, whose results nobody reads."""

    def __init__(self, model: Model, limits: GenerationLimits, seed: int) -> None:
        tokens = limits.prompt_tokens + limits.answer_tokens
        self._model, self._limits = model, limits
        self._sequences = SequenceBatch(model, limits.rows, tokens)
        self._generator = torch.Generator().manual_seed(seed)
        self._all_rows = torch.arange(limits.rows)
        self._ids = torch.zeros(limits.rows, tokens + 1, dtype=torch.int64)
        self._hidden = torch.zeros(limits.rows, tokens, model.config.hidden_size, dtype=torch.float16)
        self._log_totals = torch.zeros(limits.rows, tokens)
        self._cursors = torch.zeros(limits.rows, dtype=torch.int64)  # the pending token's position
        self._temperatures = torch.zeros(limits.rows)
        self._prompts: dict[int, Prompt] = {}

    @property
    def running(self) -> bool:
        """Whether a row has a prompt."""
        return bool(self._prompts)

    def admit(self, prompts: Iterator[Prompt]) -> bool:
        """Give prompts to free rows when a quarter of them are free; whether any was given."""
        free = [row for row in range(self._limits.rows) if row not in self._prompts]
        if 4 * len(free) < self._limits.rows:
            return False
        taken = dict(zip(free, prompts, strict=False))
        if taken:
            self._prompts |= taken
            self._prefill(torch.tensor(list(taken)), list(taken.values()))
        return bool(taken)

    def step(self) -> Iterator[Sample]:
        """Run every row's pending token, draw the next ones and yield the answers that ended."""
        pending = self._ids.gather(1, self._cursors.unsqueeze(1))
        hidden = self._sequences.run(self._all_rows, pending, self._cursors.unsqueeze(1))[:, 0]
        self._hidden[self._all_rows, self._cursors] = hidden.half()
        self._draw(self._all_rows, hidden)
        ended = [row for row in self._prompts if self._has_ended(row)]
        for row in ended:
            yield self._sample(row)
            del self._prompts[row]
        idle = [row for row in range(self._limits.rows) if row not in self._prompts]
        self._cursors[idle] = 0

    def _prefill(self, rows: torch.Tensor, prompts: Sequence[Prompt]) -> None:
        lengths = torch.tensor([len(prompt.token_ids) for prompt in prompts])
        longest = int(lengths.max())
        ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
        for index, prompt in enumerate(prompts):
            ids[index, : len(prompt.token_ids)] = torch.tensor(prompt.token_ids)
        self._ids[rows, :longest] = ids
        hidden = self._sequences.run(rows, ids, torch.arange(longest).expand(len(prompts), -1).contiguous())
        self._hidden[rows, :longest] = hidden.half()
        self._log_totals[rows] = 0.0
        self._cursors[rows] = lengths - 1
        self._temperatures[rows] = torch.tensor([prompt.temperature for prompt in prompts])
        self._draw(rows, hidden[torch.arange(len(prompts)), lengths - 1])

    def _draw(self, rows: torch.Tensor, hidden: torch.Tensor) -> None:
        """Draw the token after each row's cursor, from the hidden states [rows, hidden] there, and move the cursor."""
        scores = logits(self._model, hidden.contiguous())
        cursors = self._cursors[rows]
        self._log_totals[rows, cursors] = scores.logsumexp(-1)
        self._ids[rows, cursors + 1] = sample_tokens(scores, self._temperatures[rows], self._generator)
        self._cursors[rows] = cursors + 1

    def _has_ended(self, row: int) -> bool:
        cursor, prompt_tokens = int(self._cursors[row]), len(self._prompts[row].token_ids)
        is_full = cursor - prompt_tokens >= self._limits.answer_tokens
        return is_full or int(self._ids[row, cursor]) in self._limits.end_ids

    def _sample(self, row: int) -> Sample:
        prompt, tokens = self._prompts[row], int(self._cursors[row])  # the pending token has no hidden state
        return Sample(
            token_ids=self._ids[row, :tokens].clone(),
            hidden=self._hidden[row, :tokens].clone(),
            log_totals=self._log_totals[row, :tokens].clone(),
            prompt_tokens=len(prompt.token_ids),
            temperature=prompt.temperature,
            is_held_out=prompt.is_held_out,
        )
