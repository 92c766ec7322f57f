"""A slow, obvious forward pass over a whole sequence: no pages, no batch, no fused or packed weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from gpu.model.config import ModelConfig
from gpu.model.source import EMBEDDING, FINAL_NORM, OUTPUT_HEAD, WeightSource

Weights = Callable[[str], torch.Tensor]
"""Name of a tensor -> the tensor in float32."""


def sequence_logits(source: WeightSource, token_ids: list[int]) -> torch.Tensor:
    """Logits [tokens, vocab] in float32 after each token of one sequence."""
    return output_logits(source, norm(sequence_hidden(source, token_ids), source, FINAL_NORM))


def sequence_hidden(source: WeightSource, token_ids: list[int]) -> torch.Tensor:
    """Hidden states [tokens, hidden] in float32 before the final norm."""
    config = source.config
    hidden = source.tensor(EMBEDDING).float()[torch.tensor(token_ids)]
    angles = rotary_angles(source, len(token_ids))
    for layer in range(config.layers):
        hidden = llama_layer(lambda name: source.tensor(name).float(), f"model.layers.{layer}.", config, angles, hidden)
    return hidden


def rotary_angles(source: WeightSource, positions: int) -> torch.Tensor:
    """Radians [positions, head_dim / 2] of positions 0, 1, …"""
    config = source.config
    frequencies = [_frequency(config, source.rope_frequency_factors, pair) for pair in range(config.head_dim // 2)]
    return torch.arange(positions, dtype=torch.float32)[:, None] * torch.tensor(frequencies)[None, :]


def llama_layer(
    weight: Weights, prefix: str, config: ModelConfig, angles: torch.Tensor, hidden: torch.Tensor
) -> torch.Tensor:
    """One layer over a whole sequence, hidden [tokens, hidden] -> [tokens, hidden]."""
    normed = rms_norm(hidden, weight(prefix + "input_layernorm.weight"), config.norm_epsilon)
    query = _heads(normed @ weight(prefix + "self_attn.q_proj.weight").T, config.heads)
    key = _heads(normed @ weight(prefix + "self_attn.k_proj.weight").T, config.kv_heads)
    value = _heads(normed @ weight(prefix + "self_attn.v_proj.weight").T, config.kv_heads)
    mixed = _attend(_rotate(query, angles), _rotate(key, angles), value)
    hidden = hidden + mixed @ weight(prefix + "self_attn.o_proj.weight").T
    normed = rms_norm(hidden, weight(prefix + "post_attention_layernorm.weight"), config.norm_epsilon)
    gate = normed @ weight(prefix + "mlp.gate_proj.weight").T
    up = normed @ weight(prefix + "mlp.up_proj.weight").T
    return hidden + (gate * torch.sigmoid(gate) * up) @ weight(prefix + "mlp.down_proj.weight").T


def output_logits(source: WeightSource, normed: torch.Tensor) -> torch.Tensor:
    """Logits [tokens, vocab] of normed hidden states."""
    return normed @ source.tensor(EMBEDDING if source.config.tied_embeddings else OUTPUT_HEAD).float().T


def norm(hidden: torch.Tensor, source: WeightSource, name: str) -> torch.Tensor:
    """RMS norm with the model's own weight `name`."""
    return rms_norm(hidden, source.tensor(name).float(), source.config.norm_epsilon)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Each row over its root mean square, times `weight`."""
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + epsilon) * weight


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
