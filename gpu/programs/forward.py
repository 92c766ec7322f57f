"""The transformer over token rows; programs differ only in how rows attend. Every step runs through here."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from gpu.model.layer import Attend, run_layer
from gpu.model.weights import Model


def hidden_states(model: Model, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
    """Final hidden states [rows, hidden], before the last norm, of rows at `positions` [rows]."""
    cosines = model.cosines.index_select(0, positions).unsqueeze(1)
    sines = model.sines.index_select(0, positions).unsqueeze(1)
    hidden = model.embedding(token_ids)
    for index, layer in enumerate(model.layers):
        run_layer(layer, index, model.config, hidden, (cosines, sines), attend)
    return hidden


def logits(model: Model, hidden: torch.Tensor) -> torch.Tensor:
    """Logits [rows, vocab], float32, of contiguous hidden states [rows, hidden]."""
    config = model.config
    normed = F.rms_norm(hidden, (config.hidden_size,), model.final_norm, config.norm_epsilon)
    return model.head(normed).float()
