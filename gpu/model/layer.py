"""One transformer layer over token rows, for the target's layers and the draft head's alike. Every step runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812

from gpu.model.config import ModelConfig
from gpu.model.linear import Linear
from gpu.model.row_operations import TORCH_ROWS, Heads, RowOperations

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
    operations: RowOperations = TORCH_ROWS,
) -> None:
    """Add the layer to `hidden` [rows, hidden] in place. `index`: what `attend` is told.

    `rotation`: cosines and sines [rows, 1, head_dim] of the rows' positions.
    """
    mixed = attend(index, *project(layer, config, hidden, rotation, operations))
    normed = operations.add_and_norm(hidden, layer.attention_output(mixed), layer.mlp_norm, config.norm_epsilon)
    gate, up = layer.gate_up(normed).chunk(2, dim=1)
    hidden += layer.down(F.silu(gate).mul_(up))


def project(
    layer: LayerParts,
    config: ModelConfig,
    hidden: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor],
    operations: RowOperations = TORCH_ROWS,
) -> Heads:
    """Query [rows, heads, head_dim], key and value [rows, kv_heads * head_dim] of `hidden` [rows, hidden]."""
    normed = operations.norm(hidden, layer.attention_norm, config.norm_epsilon)
    fused = layer.qkv(normed).view(len(hidden), config.heads + 2 * config.kv_heads, config.head_dim)
    return operations.split_heads(fused, rotation, config.kv_heads)
