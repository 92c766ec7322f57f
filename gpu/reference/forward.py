"""A slow, obvious forward pass over a whole sequence: no pages, no batch, no fused or packed weights."""

from __future__ import annotations

import math

import torch

from gpu.model.config import ModelConfig
from gpu.model.source import EMBEDDING, FINAL_NORM, OUTPUT_HEAD, WeightSource


def sequence_logits(source: WeightSource, token_ids: list[int]) -> torch.Tensor:
    """Logits [tokens, vocab] in float32 after each token of one sequence."""
    config = source.config

    def weight(name: str) -> torch.Tensor:
        return source.tensor(name).float()

    positions = torch.arange(len(token_ids), dtype=torch.float32)
    frequencies = [_frequency(config, source.rope_frequency_factors, pair) for pair in range(config.head_dim // 2)]
    angles = positions[:, None] * torch.tensor(frequencies)[None, :]
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


def _frequency(config: ModelConfig, factors: torch.Tensor | None, pair: int) -> float:
    """Radians per position of one pair of dimensions, with the file's own divisor or Llama 3's stretching."""
    frequency = math.pow(config.rope_theta, -2.0 * pair / config.head_dim)
    scaling = config.rope_scaling
    if factors is not None:
        return frequency / float(factors[pair])
    if scaling is None:
        return frequency
    wavelength = 2.0 * math.pi / frequency
    if wavelength < scaling.original_context / scaling.high_freq_factor:
        return frequency
    if wavelength > scaling.original_context / scaling.low_freq_factor:
        return frequency / scaling.factor
    turns = scaling.original_context / wavelength
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return (1.0 - share) * frequency / scaling.factor + share * frequency


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
