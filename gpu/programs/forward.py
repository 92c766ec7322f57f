"""The transformer over token rows; programs differ only in how rows attend. Every step runs through here."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812

from gpu.model.weights import Model

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, query [rows, heads, head_dim], key and value [rows, kv_heads * head_dim]) -> [rows, heads * head_dim]."""


def hidden_states(model: Model, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
    """Final hidden states [rows, hidden], before the last norm, of rows at `positions` [rows]."""
    config = model.config
    rows, turned = token_ids.shape[0], config.heads + config.kv_heads
    width = config.kv_heads * config.head_dim
    cosines = model.cosines.index_select(0, positions).unsqueeze(1)
    sines = model.sines.index_select(0, positions).unsqueeze(1)
    hidden = model.embedding(token_ids)
    for index, layer in enumerate(model.layers):
        normed = F.rms_norm(hidden, (config.hidden_size,), layer.attention_norm, config.norm_epsilon)
        fused = layer.qkv(normed).view(rows, turned + config.kv_heads, config.head_dim)
        rotated = rotate(fused[:, :turned], cosines, sines)
        mixed = attend(
            index,
            rotated[:, : config.heads],
            rotated[:, config.heads :].reshape(rows, width),
            fused[:, turned:].reshape(rows, width),
        )
        hidden += layer.attention_output(mixed)
        normed = F.rms_norm(hidden, (config.hidden_size,), layer.mlp_norm, config.norm_epsilon)
        gate, up = layer.gate_up(normed).chunk(2, dim=1)
        hidden += layer.down(F.silu(gate).mul_(up))
    return hidden


def logits(model: Model, hidden: torch.Tensor) -> torch.Tensor:
    """Logits [rows, vocab], float32, of contiguous hidden states [rows, hidden]."""
    config = model.config
    normed = F.rms_norm(hidden, (config.hidden_size,), model.final_norm, config.norm_epsilon)
    return model.head(normed).float()


def rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Rotate x [rows, heads, head_dim]; the sines' first half is negated."""
    return torch.addcmul(x * cosines, x.roll(x.shape[-1] // 2, dims=-1), sines)
