"""One transformer layer over token rows, for the target's layers and the draft head's alike. Every step runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812

from gpu.model.config import ModelConfig
from gpu.model.linear import Linear

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, query [rows, heads, head_dim], key and value [rows, kv_heads * head_dim]) -> [rows, heads * head_dim]."""


class LayerParts(Protocol):
    """The weights of one layer; see gpu.model.weights.LayerWeights."""

    @property
    def attention_norm(self) -> torch.Tensor: ...
    @property
    def qkv(self) -> Linear: ...
    @property
    def attention_output(self) -> Linear: ...
    @property
    def mlp_norm(self) -> torch.Tensor: ...
    @property
    def gate_up(self) -> Linear: ...
    @property
    def down(self) -> Linear: ...


def run_layer(
    layer: LayerParts,
    index: int,
    config: ModelConfig,
    hidden: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor],
    attend: Attend,
) -> None:
    """Add the layer to `hidden` [rows, hidden] in place. `index`: what `attend` is told.

    `rotation`: cosines and sines [rows, 1, head_dim] of the rows' positions.
    """
    mixed = attend(index, *project(layer, config, hidden, rotation))
    hidden += layer.attention_output(mixed)
    normed = F.rms_norm(hidden, (config.hidden_size,), layer.mlp_norm, config.norm_epsilon)
    gate, up = layer.gate_up(normed).chunk(2, dim=1)
    hidden += layer.down(F.silu(gate).mul_(up))


def project(
    layer: LayerParts,
    config: ModelConfig,
    hidden: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor],
    first: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query [rows, heads - first, head_dim], key and value [rows, kv_heads * head_dim] of `hidden` [rows, hidden].

    Query heads before `first` are not rotated and left out: config.heads where only the layer's entries are wanted.
    """
    rows, turned, width = len(hidden), config.heads + config.kv_heads, config.kv_heads * config.head_dim
    normed = F.rms_norm(hidden, (config.hidden_size,), layer.attention_norm, config.norm_epsilon)
    fused = layer.qkv(normed).view(rows, turned + config.kv_heads, config.head_dim)
    rotated, queries = rotate(fused[:, first:turned], *rotation), config.heads - first
    return rotated[:, :queries], rotated[:, queries:].reshape(rows, width), fused[:, turned:].reshape(rows, width)


def rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Rotate x [rows, heads, head_dim]; the sines' first half is negated."""
    return torch.addcmul(x * cosines, x.roll(x.shape[-1] // 2, dims=-1), sines)
