"""How many drafts a round accepts, on text that the target wrote itself.

A round emits the target's own text, so the text can be fixed first: given the text, speculative sampling accepts the
draft of a token x with probability min(1, q(x) / p(x)), and a greedy round where the head's first choice is x. Every
accepted draft is then a token of the text, and one unrolled pass of the head over the text gives all chains at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812

from gpu.training.draft_module import DraftModule
from gpu.training.draft_training import FrozenTarget
from gpu.training.samples import Sample

_NGRAM_TOKENS = (4, 3, 2)


@dataclasses.dataclass(frozen=True, slots=True)
class DraftedText:
    """One sample's chains. Tensors are [depths, entries]; entry i at depth k drafts token i + 2.

    `acceptance`: of the text's own token, 0 or 1 when greedy. `confidence` of a draft made there as serving makes it,
    and `outcome`: the probability that the target accepts that draft. `first_round`: the entry of the first draft.
    """

    acceptance: torch.Tensor
    confidence: torch.Tensor
    outcome: torch.Tensor
    first_round: int
    is_greedy: bool


@torch.no_grad()
def draft_text(
    module: DraftModule,
    target: FrozenTarget,
    draft_token_ids: torch.Tensor | None,
    sample: Sample,
    depths: int,
    generator: torch.Generator,
) -> DraftedText:
    """Draft every token of a sample's answer at every depth, in float32."""
    ids, hidden = sample.token_ids, sample.hidden.float()
    outputs = module(hidden[:-2].unsqueeze(0), target.embedding[ids[1:-1]].unsqueeze(0), target.tables, depths)
    entries = ids.shape[0] - 2
    normed = F.rms_norm(hidden[1:-1], target.final_norm.shape, target.final_norm, target.config.norm_epsilon)
    log_p = F.linear(normed, target.output.float()) - sample.log_totals[1:-1].unsqueeze(1)
    columns = _columns(draft_token_ids, ids[2:], target.config.vocab_size)
    is_greedy = sample.temperature == 0
    rows: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    for g in outputs:
        n = module.final_norm(g[0])
        log_q = F.linear(n, target.output.float()).log_softmax(-1)
        drafts = log_q.argmax(-1) if is_greedy else torch.multinomial(log_q.exp(), 1, generator=generator)[:, 0]
        log_draft = _pick(log_q, drafts)
        if is_greedy:
            acceptance = outcome = (drafts == columns).float()
        else:
            ratio = (_pick(log_q, columns.clamp_min(0)) - _pick(log_p, columns.clamp_min(0))).exp().clamp_max(1)
            acceptance = torch.where(columns >= 0, ratio, 0.0)
            outcome = (_pick(log_p, drafts) - log_draft).exp().clamp_max(1)
        rows.append((acceptance, module.confidence(n, log_q.amax(-1)).sigmoid(), outcome))
    acceptance, confidence, outcome = (torch.stack(parts) for parts in zip(*rows, strict=True))
    return DraftedText(acceptance, confidence, outcome, min(sample.prompt_tokens - 1, entries), is_greedy)


def copied_text(sample: Sample, depths: int) -> DraftedText:
    """The same for drafts that copy what followed the latest earlier occurrence of the last tokens.

    Copies have no distribution: the target accepts the text's own token and no other. Confidence is 1.
    """
    ids = sample.token_ids.tolist()
    entries = len(ids) - 2
    acceptance = torch.zeros(depths, entries)
    following: dict[tuple[int, ...], int] = {}  # the last tokens -> where their continuation begins
    for cursor in range(1, len(ids) - 1):  # tokens up to `cursor` are known, and cursor + 1 is drafted first
        tails = [tuple(ids[cursor + 1 - n : cursor + 1]) for n in _NGRAM_TOKENS if n <= cursor + 1]
        start = next((following[tail] for tail in tails if tail in following), None)
        for depth in range(depths if start is not None else 0):
            assert start is not None
            place, source = cursor + 1 + depth, start + depth
            if place < len(ids) and source <= cursor:
                acceptance[depth, place - 2] = float(ids[source] == ids[place])
        following |= dict.fromkeys(tails, cursor + 1)
    ones = torch.ones_like(acceptance)
    return DraftedText(acceptance, ones, acceptance, min(sample.prompt_tokens - 1, entries), sample.temperature == 0)


def accepted_per_round(texts: Sequence[DraftedText], drafts: int, generator: torch.Generator) -> float:
    """The mean number of accepted drafts over rounds of `drafts` that follow each other through the texts."""
    accepted = rounds = 0
    for text in texts:
        chances, entries = text.acceptance, text.acceptance.shape[1]
        draws = torch.rand(chances.shape, generator=generator)
        passes = (draws < chances).tolist()
        entry = text.first_round
        while entry + drafts <= entries:
            length = 0
            while length < drafts and passes[length][entry + length]:
                length += 1
            accepted, rounds, entry = accepted + length, rounds + 1, entry + length + 1
    return accepted / max(1, rounds)


def calibration(texts: Sequence[DraftedText], bins: int) -> list[tuple[float, float, int]]:
    """(mean confidence, share accepted, drafts) by equal ranges of confidence, over all depths and entries."""
    confidence = torch.cat([text.confidence[:, text.first_round :].flatten() for text in texts])
    outcome = torch.cat([text.outcome[:, text.first_round :].flatten() for text in texts])
    index = (confidence * bins).long().clamp_max(bins - 1)
    picked = [index == number for number in range(bins)]
    return [(float(confidence[p].mean()), float(outcome[p].mean()), int(p.sum())) for p in picked if bool(p.any())]


def calibration_error(table: Sequence[tuple[float, float, int]]) -> float:
    """The mean distance between confidence and acceptance over a calibration table's drafts."""
    return sum(abs(said - was) * count for said, was, count in table) / max(1, sum(count for _, _, count in table))


def _pick(table: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    return table.gather(1, columns.unsqueeze(1))[:, 0]


def _columns(draft_token_ids: torch.Tensor | None, token_ids: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Each token's draft logit, -1 where the head cannot propose it."""
    if draft_token_ids is None:
        return token_ids
    columns = torch.full((vocabulary,), -1, dtype=torch.int64)
    columns[draft_token_ids] = torch.arange(draft_token_ids.shape[0])
    return columns[token_ids]
