"""Decode programs: one pending token for each of up to B requests."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from gpu.model.weights import Model
from gpu.pages import KvCache
from gpu.programs.buffers import Logits, ProgramBuffers
from gpu.programs.forward import hidden_states, logits
from gpu.requests import LaneWork


class DecodeProgram:
    """One step of `batch` rows. Keys and values are gathered once per layer, all query heads of a key head at once."""

    def __init__(self, model: Model, cache: KvCache, batch: int, columns: int) -> None:
        self._model = model
        self._cache = cache
        self._batch = batch
        self.buffers = ProgramBuffers(batch, batch, columns)

    def run(self, works: tuple[LaneWork, ...]) -> Logits:
        """Logits [lanes, vocab] after each lane's token; `works` holds up to `batch` lanes, or none to warm up."""
        config, batch, cache, buffers = self._model.config, self._batch, self._cache, self.buffers
        columns = buffers.fill(works)
        read_rows = buffers.read_rows(columns, buffers.positions).view(-1)
        mask = buffers.mask(columns, self._model.dtype).view(batch, 1, 1, -1)
        kv_shape = (batch, -1, config.kv_heads, config.head_dim)
        query_shape = (batch, config.kv_heads, config.group, config.head_dim)

        def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            keys, values = cache.keys[layer], cache.values[layer]
            keys.index_copy_(0, buffers.write_rows, key)
            values.index_copy_(0, buffers.write_rows, value)
            mixed = F.scaled_dot_product_attention(
                query.reshape(query_shape),
                keys.index_select(0, read_rows).view(kv_shape).transpose(1, 2),
                values.index_select(0, read_rows).view(kv_shape).transpose(1, 2),
                attn_mask=mask,
            )
            return mixed.reshape(batch, config.heads * config.head_dim)

        hidden = hidden_states(self._model, buffers.token_ids, buffers.positions, attend)
        return logits(self._model, hidden)[: len(works)].numpy()
