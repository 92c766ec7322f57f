"""The transformer over token rows; programs differ only in how rows attend. Every step runs through here."""

from __future__ import annotations

import torch

from gpu.model.layer import Attend, run_layer
from gpu.model.row_operations import TORCH_ROWS, RowOperations
from gpu.model.weights import Model


def hidden_states(
    model: Model,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    attend: Attend,
    operations: RowOperations = TORCH_ROWS,
) -> torch.Tensor:
    """Final hidden states [rows, hidden], before the last norm, of rows at `positions` [rows]."""
    cosines = model.cosines.index_select(0, positions).unsqueeze(1)
    sines = model.sines.index_select(0, positions).unsqueeze(1)
    hidden = model.embedding(token_ids)
    for index, layer in enumerate(model.layers):
        run_layer(layer, index, model.config, hidden, (cosines, sines), attend, operations)
    return hidden


def logits(model: Model, hidden: torch.Tensor, operations: RowOperations = TORCH_ROWS) -> torch.Tensor:
    """Logits [rows, vocab], float32, of contiguous hidden states [rows, hidden]."""
    return model.head(operations.norm(hidden, model.final_norm, model.config.norm_epsilon)).float()
