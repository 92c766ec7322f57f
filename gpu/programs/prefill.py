"""Prefill programs: up to C prompt tokens of one request, from its cursor on."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from gpu.model.weights import Model
from gpu.pages import KvCache
from gpu.programs.buffers import Logits, ProgramBuffers
from gpu.programs.forward import hidden_states, logits
from gpu.requests import LaneWork


class PrefillProgram:
    """`capacity` rows of one request, which attend to its earlier chunks through the pages."""

    def __init__(self, model: Model, cache: KvCache, capacity: int, columns: int) -> None:
        self._model = model
        self._cache = cache
        self._capacity = capacity
        self.buffers = ProgramBuffers(1, capacity, columns)

    def run(self, works: tuple[LaneWork, ...]) -> Logits:
        """Logits [1, vocab] after the chunk's last token; `works` holds one lane, or none to warm up."""
        config, rows, cache, buffers = self._model.config, self._capacity, self._cache, self.buffers
        columns = buffers.fill(works)
        last_row = len(works[0].token_ids) - 1 if works else 0
        read_rows = buffers.read_rows(columns, buffers.positions[last_row : last_row + 1]).view(-1)
        mask = buffers.mask(columns, self._model.dtype)
        grouped = (config.kv_heads, config.group, -1, config.head_dim)
        kv_shape = (-1, config.kv_heads, config.head_dim)

        def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            keys, values = cache.keys[layer], cache.values[layer]
            keys.index_copy_(0, buffers.write_rows, key)
            values.index_copy_(0, buffers.write_rows, value)
            gathered_keys = keys.index_select(0, read_rows).view(kv_shape).transpose(0, 1)
            gathered_values = values.index_select(0, read_rows).view(kv_shape).transpose(0, 1)
            mixed = F.scaled_dot_product_attention(
                query.transpose(0, 1).view(grouped),
                gathered_keys.unsqueeze(1).expand(grouped),
                gathered_values.unsqueeze(1).expand(grouped),
                attn_mask=mask,
            )
            return mixed.permute(2, 0, 1, 3).reshape(rows, config.heads * config.head_dim)

        hidden = hidden_states(self._model, buffers.token_ids, buffers.positions, attend)
        return logits(self._model, hidden[last_row : last_row + 1].contiguous())[: len(works)].numpy()
