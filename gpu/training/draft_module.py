"""The trainable draft head, unrolled over whole sequences: depth k drafts from depth k - 1's own outputs.

The sequence's true tokens stand in for the drafts, since a draft matters only where all before it were accepted.
gpu/model/draft_head.py computes the same one entry at a time; a test compares the two.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from gpu.model.config import ModelConfig
from gpu.training.modules import LlamaLayer, RmsNorm, Tables, initialise


class Confidence(nn.Module):
    """A linear score of the normed output and the likeliest draft's log-probability; its sigmoid is the confidence."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(hidden + 1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, normed: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
        """Scores [rows] of normed [rows, hidden] and log_q [rows]."""
        return normed.float() @ self.weight[:-1] + self.weight[-1] * log_q + self.bias


class DraftModule(nn.Module):
    """Its state_dict has the names of a head's file. `config` is the target's, with the head's intermediate_size."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        hidden, epsilon = config.hidden_size, config.norm_epsilon
        self.hidden_norm = RmsNorm(hidden, epsilon)
        self.embedding_norm = RmsNorm(hidden, epsilon)
        self.fuse = nn.Linear(2 * hidden, hidden, bias=False)
        self.layer = LlamaLayer(config)
        self.final_norm = RmsNorm(hidden, epsilon)
        self.confidence = Confidence(hidden)
        initialise(self)

    @torch.no_grad()
    def start_from_target(self, target_norm: torch.Tensor, hidden: torch.Tensor) -> None:
        """Begin as the target's own prediction of the token before: a better start than noise.

        `hidden` [tokens, hidden] shows how large the target's normed states are, and so how sharp its predictions.
        """
        self.hidden_norm.weight.copy_(target_norm)
        self.fuse.weight[:, : self.config.hidden_size] += torch.eye(self.config.hidden_size)
        normed = F.rms_norm(hidden.float(), target_norm.shape, target_norm, self.config.norm_epsilon)
        self.final_norm.weight.fill_(float(normed.square().mean().sqrt()))

    def forward(
        self, hidden: torch.Tensor, next_embeddings: torch.Tensor, tables: Tables, depths: int
    ) -> list[torch.Tensor]:
        """Outputs g [batch, tokens, hidden] of depth 1 to `depths`.

        `hidden` and `next_embeddings` [batch, tokens, hidden]: entry i's own, from h_i and the token x_{i+1}. At depth
        k, entries 0 to k - 2 are meaningless.
        """
        tokens = self.embedding_norm(next_embeddings)
        attention = _UnrolledAttention(self.layer, tables, hidden.shape[1])
        outputs = [self._step(hidden, tokens, attention)]
        for _ in range(depths - 1):
            outputs.append(self._step(_shift(outputs[-1], 1), tokens, attention))
        return outputs

    def _step(self, hidden: torch.Tensor, tokens: torch.Tensor, attention: _UnrolledAttention) -> torch.Tensor:
        u = self.fuse(torch.cat((self.hidden_norm(hidden), tokens), dim=-1))
        u = u + attention(self.layer.input_layernorm(u))
        g: torch.Tensor = u + self.layer.mlp(self.layer.post_attention_layernorm(u))
        return g


class _UnrolledAttention:
    """Attention of one depth after the other.

    An entry at depth k sees the true entries up to k - 1 positions before it, and its own chain of depths 2 to k.
    """

    def __init__(self, layer: LlamaLayer, tables: Tables, tokens: int) -> None:
        self._attention, self._tables = layer.self_attn, tables
        positions = torch.arange(tokens)
        self._distances = positions.unsqueeze(1) - positions.unsqueeze(0)
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, hidden] -> the same shape."""
        query, key, value = self._attention.project(x, self._tables)
        self._keys.append(key)
        self._values.append(value)
        depth, scale = len(self._keys), query.shape[-1] ** -0.5
        true_scores = (query @ self._keys[0].transpose(2, 3)).float() * scale
        scores = [true_scores.masked_fill(self._distances < depth - 1, -torch.inf)]
        chain = [
            (_shift(self._keys[m], depth - 1 - m, 2), _shift(self._values[m], depth - 1 - m, 2))
            for m in range(1, depth)
        ]
        scores += [(query * earlier).float().sum(-1, keepdim=True) * scale for earlier, _ in chain]
        shares = torch.cat(scores, dim=-1).softmax(-1).to(value.dtype)
        tokens = x.shape[1]
        mixed = shares[..., :tokens] @ self._values[0]
        for index, (_, earlier) in enumerate(chain):
            mixed = mixed + shares[..., tokens + index : tokens + index + 1] * earlier
        return self._attention.merge(mixed)


def _shift(x: torch.Tensor, places: int, dimension: int = 1) -> torch.Tensor:
    """Move x along `dimension` to later positions; zeros come in."""
    if places == 0:
        return x
    padding = [0, 0] * (x.dim() - 1 - dimension) + [places, 0]
    return F.pad(x, padding).narrow(dimension, 0, x.shape[dimension])
