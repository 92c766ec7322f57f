"""Trainable Llama layers over whole sequences [batch, tokens, hidden], with Hugging Face's parameter names."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from gpu.model.config import ModelConfig
from gpu.model.rope import inverse_frequencies, position_tables

INITIAL_DEVIATION = 0.02


class RmsNorm(nn.Module):
    """x * weight / rms(x) over the last dimension."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise in float32, which autocast would otherwise leave to chance."""
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self._epsilon)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self._config = config
        query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key, bias=False)
        self.o_proj = nn.Linear(query, config.hidden_size, bias=False)

    def project(self, x: torch.Tensor, tables: Tables) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rotated queries [batch, heads, tokens, head_dim], and rotated keys and values of every query head."""
        group = self._config.group
        query = _rotate(self._heads(self.q_proj(x)), tables)
        key = _rotate(self._heads(self.k_proj(x)), tables).repeat_interleave(group, dim=1)
        return query, key, self._heads(self.v_proj(x)).repeat_interleave(group, dim=1)

    def forward(self, x: torch.Tensor, tables: Tables) -> torch.Tensor:
        """Causal attention within each sequence."""
        query, key, value = self.project(x, tables)
        return self.merge(F.scaled_dot_product_attention(query, key, value, is_causal=True))

    def merge(self, mixed: torch.Tensor) -> torch.Tensor:
        """[batch, heads, tokens, head_dim] -> [batch, tokens, hidden]."""
        merged: torch.Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return merged

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], -1, self._config.head_dim).transpose(1, 2)


class Mlp(nn.Module):
    """silu(gate) * up, projected down."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> [..., hidden]."""
        y: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class LlamaLayer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, config.norm_epsilon)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.norm_epsilon)
        self.mlp = Mlp(config)

    def forward(self, x: torch.Tensor, tables: Tables) -> torch.Tensor:
        """[batch, tokens, hidden] -> the same shape; `tables` are position_tables of at least that many positions."""
        x = x + self.self_attn(self.input_layernorm(x), tables)
        y: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class LlamaModel(nn.Module):
    """A trainable model with tied embeddings, whose state_dict is a checkpoint under the prefix "model."."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(LlamaLayer(config) for _ in range(config.layers))
        self.norm = RmsNorm(config.hidden_size, config.norm_epsilon)
        self._tables = position_tables(inverse_frequencies(config), config.context_tokens, torch.float32)
        initialise(self)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Logits [batch, tokens, vocab] after each token of token_ids [batch, tokens]."""
        hidden = self.embed_tokens(token_ids)
        for layer in self.layers:
            hidden = layer(hidden, self._tables)
        return F.linear(self.norm(hidden), self.embed_tokens.weight)


Tables = tuple[torch.Tensor, torch.Tensor]
"""Cosines and signed sines, each [positions, head_dim], from gpu.model.rope.position_tables."""


def initialise(module: nn.Module) -> None:
    """Draw every matrix from a normal distribution with torch's global generator."""
    for parameter in module.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=INITIAL_DEVIATION)


def _rotate(x: torch.Tensor, tables: Tables) -> torch.Tensor:
    """Rotate x [batch, heads, tokens, head_dim] in place of its positions 0, 1, 2 and so on."""
    cosines, sines = (table[: x.shape[2]].to(x.dtype) for table in tables)
    return x * cosines + x.roll(x.shape[-1] // 2, dims=-1) * sines
