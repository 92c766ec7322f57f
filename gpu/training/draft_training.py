"""The training of a draft head on a target's stored samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F  # noqa: N812

from gpu.model.config import ModelConfig
from gpu.model.rope import inverse_frequencies, position_tables
from gpu.model.source import EMBEDDING, FINAL_NORM, OUTPUT_HEAD, WeightSource
from gpu.training.draft_module import DraftModule
from gpu.training.modules import Tables
from gpu.training.optimisation import Optimiser, Rates
from gpu.training.samples import Sample


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenTarget:
    """What training needs of the target: `output` [draft_vocab, hidden] has the rows of draft_token_ids.

    Its dtype is that of the products.
    """

    config: ModelConfig
    embedding: torch.Tensor
    final_norm: torch.Tensor
    output: torch.Tensor
    tables: Tables


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """How to train. `loss_share`: the share of positions whose loss is taken, drawn anew for each step.

    `input_noise`: the relative standard deviation of noise on the head's inputs, against learning few texts by heart.
    `muon`: whether matrices are moved by Muon, at their own rate, or by AdamW as everything else.
    """

    steps: int
    step_tokens: int
    depths: int
    loss_share: float
    input_noise: float
    seed: int
    rates: Rates
    muon: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class StepReport:
    """Means over one step's positions, by depth: cross-entropy in nats, and whether target and head agree greedily."""

    step: int
    cross_entropy: tuple[float, ...]
    agreement: tuple[float, ...]


def freeze_target(
    source: WeightSource, draft_token_ids: torch.Tensor | None, dtype: torch.dtype = torch.bfloat16
) -> FrozenTarget:
    """Read the parts of the target that training needs, for products in `dtype`: bfloat16 or float32."""
    config = source.config
    table = source.tensor(EMBEDDING).float()
    output = table if config.tied_embeddings else source.tensor(OUTPUT_HEAD).float()
    if draft_token_ids is not None:
        output = output[draft_token_ids]
    frequencies = inverse_frequencies(config, source.rope_frequency_factors)
    return FrozenTarget(
        config=config,
        embedding=table,
        final_norm=source.tensor(FINAL_NORM).float(),
        output=output.to(dtype).contiguous(),
        tables=position_tables(frequencies, config.context_tokens, torch.float32),
    )


def frequent_tokens(samples: Sequence[Sample], vocabulary: int, wanted: int) -> torch.Tensor:
    """The `wanted` most frequent token ids of the answers, ascending; of equally frequent ones the lower ids.

    Lower ids are earlier merges of a BPE vocabulary, and so more frequent in its own training text.
    """
    counts = torch.zeros(vocabulary, dtype=torch.int64)
    for sample in samples:
        counts += torch.bincount(sample.token_ids[sample.prompt_tokens :], minlength=vocabulary)
    order = sorted(range(vocabulary), key=lambda token: (-int(counts[token]), token))
    return torch.tensor(sorted(order[:wanted]), dtype=torch.int64)


def train(
    module: DraftModule, target: FrozenTarget, read: Callable[[], Sequence[Sample]], recipe: Recipe
) -> Iterator[StepReport]:
    """Train on batches of samples of similar length, in a new order each time they have all been seen.

    `read` is called before each pass, so that training can begin while the target still writes.
    """
    generator = torch.Generator().manual_seed(recipe.seed)
    optimiser = Optimiser(module, recipe.rates, recipe.steps, () if recipe.muon else ("",))
    batches = _batches(read, recipe.step_tokens, generator)
    for step in range(recipe.steps):
        loss, entropies, agreements = _losses(module, target, next(batches), recipe, generator)
        optimiser.step(loss)
        yield StepReport(step + 1, entropies, agreements)


def _batches(
    read: Callable[[], Sequence[Sample]], step_tokens: int, generator: torch.Generator
) -> Iterator[list[Sample]]:
    """Endless batches of at most `step_tokens` tokens, padding included."""
    while True:
        groups: list[list[Sample]] = [[]]
        for sample in sorted(read(), key=lambda sample: sample.token_ids.shape[0]):
            if groups[-1] and (len(groups[-1]) + 1) * sample.token_ids.shape[0] > step_tokens:
                groups.append([])
            groups[-1].append(sample)
        for index in torch.randperm(len(groups), generator=generator).tolist():
            yield groups[index]


def _losses(
    module: DraftModule,
    target: FrozenTarget,
    samples: Sequence[Sample],
    recipe: Recipe,
    generator: torch.Generator,
) -> tuple[torch.Tensor, tuple[float, ...], tuple[float, ...]]:
    """The step's loss, and cross-entropy and greedy agreement by depth."""
    longest = max(sample.token_ids.shape[0] for sample in samples)
    ids = torch.zeros(len(samples), longest, dtype=torch.int64)
    hidden = torch.zeros(len(samples), longest, target.config.hidden_size)
    log_totals = torch.zeros(len(samples), longest)
    is_taken = torch.rand(len(samples), longest - 1, generator=generator) < recipe.loss_share
    for row, sample in enumerate(samples):
        length = sample.token_ids.shape[0]
        ids[row, :length], hidden[row, :length] = sample.token_ids, sample.hidden.float()
        log_totals[row, :length] = sample.log_totals
        is_taken[row, : sample.prompt_tokens - 1] = False
        is_taken[row, length - 1 :] = False
    rows, entries = is_taken.nonzero(as_tuple=True)
    target_log = _target_log_shares(target, hidden[rows, entries + 1], log_totals[rows, entries + 1])
    dtype = target.output.dtype
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
        states = _with_noise(hidden[:, :-1], recipe.input_noise, generator)
        next_embeddings = _with_noise(F.embedding(ids[:, 1:], target.embedding), recipe.input_noise, generator)
        outputs = module(states, next_embeddings, target.tables, recipe.depths)
    losses, entropies, agreements = [], [], []
    for depth, g in enumerate(outputs):
        usable = entries >= depth
        normed = module.final_norm(g[rows[usable], entries[usable]])
        log_q = F.linear(normed.to(dtype), target.output).float().log_softmax(-1)
        wanted = target_log[usable]
        entropy = -(wanted.exp() * log_q).sum(-1).mean()
        confidence_loss, agreement = _confidence_loss(module, normed.detach(), log_q.detach(), wanted, generator)
        losses.append(entropy + confidence_loss)
        entropies.append(float(entropy.detach()))
        agreements.append(agreement)
    return torch.stack(losses).mean(), tuple(entropies), tuple(agreements)


def _with_noise(x: torch.Tensor, deviation: float, generator: torch.Generator) -> torch.Tensor:
    if deviation == 0:
        return x
    return x * (1 + deviation * torch.randn(x.shape, generator=generator))


@torch.no_grad()
def _target_log_shares(target: FrozenTarget, hidden: torch.Tensor, log_totals: torch.Tensor) -> torch.Tensor:
    """Logarithms of the target's softmax [rows, draft_vocab] at the draftable tokens."""
    normed = F.rms_norm(hidden, target.final_norm.shape, target.final_norm, target.config.norm_epsilon)
    return F.linear(normed.to(target.output.dtype), target.output).float() - log_totals.unsqueeze(1)


def _confidence_loss(
    module: DraftModule,
    normed: torch.Tensor,
    log_q: torch.Tensor,
    target_log: torch.Tensor,
    generator: torch.Generator,
) -> tuple[torch.Tensor, float]:
    """Cross-entropy of the confidence, half the rows drafting greedily and half sampling; and the greedy agreement.

    The target of a greedy draft is whether it is the target's first choice, that of a sampled one min(1, p / q). The
    score knows the likeliest draft's probability and not the drawn one's, as gpu/programs/drafting.py must have it.
    """
    greedy = log_q.argmax(-1)
    matches = (greedy == target_log.argmax(-1)).float()
    half = log_q.shape[0] // 2
    sums = log_q[half:].exp().cumsum(-1)
    draws = torch.rand(sums.shape[0], 1, generator=generator) * sums[:, -1:]
    sampled = torch.searchsorted(sums, draws, right=True).clamp_max(sums.shape[1] - 1)
    accepted = (target_log[half:].gather(1, sampled) - log_q[half:].gather(1, sampled)).exp().clamp_max(1.0)
    wanted = torch.cat((matches[:half], accepted[:, 0]))
    scores = module.confidence(normed, log_q.amax(-1))
    return F.binary_cross_entropy_with_logits(scores, wanted), float(matches.mean())
