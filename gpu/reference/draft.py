"""The draft head, slow and obvious: every draft recomputes the whole sequence. No pages, no state kept from before."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from gpu.model.source import EMBEDDING, WeightSource
from gpu.reference.forward import llama_layer, output_logits, rms_norm, rotary_angles, sequence_hidden


@dataclasses.dataclass(frozen=True, slots=True)
class Draft:
    """One greedy proposal: its token, its draft logits [draft vocab], and the confidence given all before it."""

    token: int
    logits: torch.Tensor
    confidence: float


def greedy_drafts(
    source: WeightSource, head: Mapping[str, torch.Tensor], token_ids: list[int], depth: int
) -> list[Draft]:
    """`depth` drafts after a sequence whose last token is pending; it holds at least two tokens.

    `head`: the tensors of a draft head's file.
    """
    config = source.config
    embeddings = source.tensor(EMBEDDING).float()
    tokens = list(token_ids)
    hidden = sequence_hidden(source, tokens[:-1])
    drafts: list[Draft] = []
    for _ in range(depth):
        state = rms_norm(hidden, _weight(head, "hidden_norm.weight"), config.norm_epsilon)
        following = rms_norm(embeddings[tokens[1:]], _weight(head, "embedding_norm.weight"), config.norm_epsilon)
        inputs = torch.cat((state, following), dim=1) @ _weight(head, "fuse.weight").T
        angles = rotary_angles(source, len(inputs))
        outputs = llama_layer(lambda name: _weight(head, name), "layer.", config, angles, inputs)
        drafts.append(_propose(source, head, outputs[-1]))
        tokens.append(drafts[-1].token)
        hidden = torch.cat((hidden, outputs[-1:]))  # g stands in for the hidden state that is not known yet
    return drafts


def _propose(source: WeightSource, head: Mapping[str, torch.Tensor], output: torch.Tensor) -> Draft:
    normed = rms_norm(output, _weight(head, "final_norm.weight"), source.config.norm_epsilon)
    logits = output_logits(source, normed)
    ids = head.get("draft_token_ids")
    if ids is not None:
        logits = logits[ids]
    best = int(logits.argmax())
    log_q = float(torch.log_softmax(logits, dim=0)[best])
    weight = _weight(head, "confidence.weight")
    score = float(normed @ weight[:-1]) + float(weight[-1]) * log_q + float(head["confidence.bias"])
    return Draft(best if ids is None else int(ids[best]), logits, float(torch.sigmoid(torch.tensor(score))))


def _weight(head: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    return head[name].float()
