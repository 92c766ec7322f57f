"""A slow, obvious forward pass over a whole sequence: no pages, no batch, no fused or packed weights."""

from __future__ import annotations

import torch

from gpu.model.rope import inverse_frequencies
from gpu.model.source import EMBEDDING, FINAL_NORM, OUTPUT_HEAD, WeightSource


def sequence_logits(source: WeightSource, token_ids: list[int]) -> torch.Tensor:
    """Logits [tokens, vocab] in float32 after each token of one sequence."""
    config = source.config

    def weight(name: str) -> torch.Tensor:
        return source.tensor(name).float()

    positions = torch.arange(len(token_ids), dtype=torch.float32)
    angles = positions[:, None] * inverse_frequencies(config, source.rope_frequency_factors)[None, :]
    hidden = weight(EMBEDDING)[torch.tensor(token_ids)]
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        normed = _norm(hidden, weight(prefix + "input_layernorm.weight"), config.norm_epsilon)
        query = _heads(normed @ weight(prefix + "self_attn.q_proj.weight").T, config.heads)
        key = _heads(normed @ weight(prefix + "self_attn.k_proj.weight").T, config.kv_heads)
        value = _heads(normed @ weight(prefix + "self_attn.v_proj.weight").T, config.kv_heads)
        mixed = _attend(_rotate(query, angles), _rotate(key, angles), value)
        hidden = hidden + mixed @ weight(prefix + "self_attn.o_proj.weight").T
        normed = _norm(hidden, weight(prefix + "post_attention_layernorm.weight"), config.norm_epsilon)
        gate = normed @ weight(prefix + "mlp.gate_proj.weight").T
        up = normed @ weight(prefix + "mlp.up_proj.weight").T
        hidden = hidden + (gate * torch.sigmoid(gate) * up) @ weight(prefix + "mlp.down_proj.weight").T
    hidden = _norm(hidden, weight(FINAL_NORM), config.norm_epsilon)
    return hidden @ weight(EMBEDDING if config.tied_embeddings else OUTPUT_HEAD).T


def _norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + epsilon) * weight


def _heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[tokens, heads * head_dim] -> [heads, tokens, head_dim]."""
    return x.view(x.shape[0], heads, -1).transpose(0, 1)


def _rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    cosines, sines = angles.cos(), angles.sin()
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Causal attention of one sequence -> [tokens, heads * head_dim]."""
    tokens, group = query.shape[1], query.shape[0] // key.shape[0]
    later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    outputs = []
    for head in range(query.shape[0]):
        scores = query[head] @ key[head // group].T / query.shape[-1] ** 0.5
        outputs.append(scores.masked_fill(later, -torch.inf).softmax(dim=-1) @ value[head // group])
    return torch.cat(outputs, dim=-1)
