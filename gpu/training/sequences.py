"""Whole sequences with a plain KV cache, one row each: what generation and measurement run instead of the programs."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from gpu.model.draft_head import DraftHead, draft_inputs, draft_layer
from gpu.model.weights import Model
from gpu.programs.forward import hidden_states


class SequenceBatch:
    """KV of `rows` sequences of up to `tokens` tokens, for the target's layers and one draft layer.

    Later positions are masked, so that a rejected token's KV does no harm until it is overwritten.
    """

    def __init__(self, model: Model, rows: int, tokens: int) -> None:
        config = model.config
        extents = (config.layers + 1, rows, config.kv_heads, tokens, config.head_dim)
        self._model = model
        self._keys = torch.zeros(extents, dtype=model.dtype)
        self._values = torch.zeros(extents, dtype=model.dtype)

    def run(self, rows: torch.Tensor, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Hidden states [batch, n, hidden] of token_ids [batch, n] at `positions` [batch, n] in `rows` [batch]."""
        attention = _Attention(self._model.config.group, self._keys, self._values, rows, positions)
        hidden = hidden_states(self._model, token_ids.flatten(), positions.flatten(), attention)
        return hidden.view(*token_ids.shape, -1)

    def draft(
        self,
        head: DraftHead,
        rows: torch.Tensor,
        hidden: torch.Tensor,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        """Draft outputs g [batch, n, hidden] of entries at `positions`, from `hidden` and each NEXT token."""
        attention = _Attention(self._model.config.group, self._keys, self._values, rows, positions)
        inputs = draft_inputs(head, hidden.flatten(0, 1), self._model.embedding(token_ids.flatten()))
        return draft_layer(head, self._model, inputs, positions.flatten(), attention).view(hidden.shape)


class _Attention:
    """Writes the keys and values of one call and attends to all positions up to each query's own."""

    def __init__(
        self, group: int, keys: torch.Tensor, values: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor
    ) -> None:
        """`group`: query heads of one key head; they share a product, as further rows."""
        self._keys, self._values, self._rows, self._positions = keys, values, rows, positions
        self._extent = int(positions.max()) + 1
        self._are_all_rows = rows.shape[0] == keys.shape[1]  # then no row needs to be copied
        earlier = torch.arange(self._extent) <= positions.unsqueeze(-1)
        self._mask = earlier.unsqueeze(1).repeat(1, 1, group, 1)

    def __call__(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """[rows, heads, head_dim] and twice [rows, width] -> [rows, heads * head_dim]."""
        batch, n = self._positions.shape
        kv_heads, head_dim = self._keys.shape[2], self._keys.shape[4]
        where = (self._rows.unsqueeze(1), slice(None), self._positions)
        self._keys[layer][where] = key.view(batch, n, kv_heads, head_dim)
        self._values[layer][where] = value.view(batch, n, kv_heads, head_dim)
        keys, values = self._context(self._keys[layer]), self._context(self._values[layer])
        grouped = query.reshape(batch, n, kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
        folded = grouped.reshape(batch, kv_heads, -1, head_dim)
        mixed = F.scaled_dot_product_attention(folded, keys, values, attn_mask=self._mask)
        return mixed.view(grouped.shape).permute(0, 3, 1, 2, 4).reshape(batch * n, -1)

    def _context(self, cache: torch.Tensor) -> torch.Tensor:
        rows = cache if self._are_all_rows else cache.index_select(0, self._rows)
        return rows[:, :, : self._extent]
