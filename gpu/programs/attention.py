"""How token rows attend to the KV pages: what all layers share is computed once per run.

Keys after a lane's last position, and pages that it does not have, read the zero row: no product ever sees memory
that the lane did not write, since a masked NaN would still spread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812

from gpu.model.config import ModelConfig
from gpu.model.layer import Attend
from gpu.pages import PAGE_TOKENS, ZERO_ROW, KvCache, pages_for

_GROUP_BYTES = 512 * 1024

Mix = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(keys, values: a layer's KV rows; query [rows, heads, head_dim]) -> [rows, heads * head_dim]."""


def writing_attention(cache: KvCache, write_rows: torch.Tensor, mix: Mix) -> Attend:
    """An Attend that writes each row's key and value to `write_rows` [rows] before all rows attend."""

    def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        keys, values = cache.keys[layer], cache.values[layer]
        keys.index_copy_(0, write_rows, key)
        values.index_copy_(0, write_rows, value)
        return mix(keys, values, query)

    return attend


def read_rows(pages: torch.Tensor, last_positions: torch.Tensor) -> torch.Tensor:
    """KV rows [lanes, columns * 16] of `pages` [lanes, columns]; the zero row after `last_positions` [lanes]."""
    lanes, columns = pages.shape
    in_page = torch.arange(PAGE_TOKENS, device=pages.device)
    rows = ((pages * PAGE_TOKENS).unsqueeze(2) + in_page).view(lanes, columns * PAGE_TOKENS)
    keys = torch.arange(columns * PAGE_TOKENS, device=pages.device)
    return torch.where(keys <= last_positions[:, None], rows, ZERO_ROW)


def causal_mask(positions: torch.Tensor, keys: int, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask [*positions, keys]: 0 where the key's position is not after the row's, else -inf."""
    later = torch.arange(keys, device=positions.device) > positions.unsqueeze(-1)
    return torch.zeros(later.shape, dtype=dtype, device=positions.device).masked_fill_(later, -torch.inf)


@dataclasses.dataclass(frozen=True, slots=True)
class LaneGroup:
    """Lanes `first` to `last` - 1 of a window, which attend together over `columns` pages each."""

    first: int
    last: int
    columns: int


def group_lanes(tokens: Sequence[int], token_bytes: int) -> tuple[LaneGroup, ...]:
    """Neighbouring lanes of `tokens` tokens each, in groups whose gathered keys stay in a core's cache.

    `token_bytes`: of one token's keys. Gathering 16 lanes of 528 tokens at once takes nearly twice as long.
    """
    groups: list[LaneGroup] = []
    first, columns = 0, 1
    for lane, count in enumerate(tokens):
        wider = max(columns, pages_for(count))
        if lane > first and (lane + 1 - first) * wider * PAGE_TOKENS * token_bytes > _GROUP_BYTES:
            groups.append(LaneGroup(first, lane, columns))
            first, wider = lane, max(1, pages_for(count))
        columns = wider
    return (*groups, LaneGroup(first, len(tokens), columns))


class LaneWindow:
    """Lanes of W rows each. The query heads of one key head, and a lane's rows, share one product."""

    def __init__(
        self,
        config: ModelConfig,
        pages: torch.Tensor,
        cursors: torch.Tensor,
        lengths: torch.Tensor,
        width: int,
        dtype: torch.dtype,
        groups: Sequence[LaneGroup],
    ) -> None:
        """`pages` [lanes, columns], `cursors` and `lengths` [lanes]: row w of a lane is at position cursor + w.

        `groups` cover the lanes in order.
        """
        lanes, keys = len(pages), pages.shape[1] * PAGE_TOKENS
        rows = read_rows(pages, cursors + lengths - 1)
        positions = cursors[:, None] + torch.arange(width, device=pages.device)
        mask = causal_mask(positions, keys, dtype).view(lanes, 1, width, 1, keys)
        if width > 1:
            mask = mask.expand(lanes, 1, width, config.group, keys)
        mask = mask.reshape(lanes, 1, -1, keys)
        self._parts = [
            (
                slice(group.first, group.last),
                rows[group.first : group.last, : group.columns * PAGE_TOKENS].reshape(-1),
                mask[group.first : group.last, ..., : group.columns * PAGE_TOKENS],
                (group.last - group.first, group.columns * PAGE_TOKENS, config.kv_heads, config.head_dim),
            )
            for group in groups
        ]
        self._split = (lanes, width, config.kv_heads, config.group, config.head_dim)
        self._folded = (lanes, config.kv_heads, width * config.group, config.head_dim)
        self._unfolded = (lanes, config.kv_heads, width, config.group, config.head_dim)
        self._output = (lanes * width, config.heads * config.head_dim)

    def attend(self, keys: torch.Tensor, values: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        """Query [lanes * W, heads, head_dim] over a layer's `keys` and `values` -> [lanes * W, heads * head_dim]."""
        folded = query.reshape(self._split).transpose(1, 2).reshape(self._folded)
        parts = [
            F.scaled_dot_product_attention(
                folded[lanes],
                keys.index_select(0, rows).view(shape).transpose(1, 2),
                values.index_select(0, rows).view(shape).transpose(1, 2),
                attn_mask=mask,
            )
            for lanes, rows, mask, shape in self._parts
        ]
        mixed = parts[0] if len(parts) == 1 else torch.cat(parts)
        return mixed.reshape(self._unfolded).transpose(1, 2).reshape(self._output)


class PromptWindow:
    """Many rows of one lane, heads first: torch's blocked kernel then keeps a block of keys in the cache."""

    def __init__(
        self,
        config: ModelConfig,
        pages: torch.Tensor,
        cursor: torch.Tensor,
        length: torch.Tensor,
        rows: int,
        dtype: torch.dtype,
    ) -> None:
        """`pages` [1, columns], `cursor` and `length` [1]: row r is at position cursor + r, for r < length."""
        keys = pages.shape[1] * PAGE_TOKENS
        self._rows = read_rows(pages, cursor + length - 1).view(-1)
        self._mask = causal_mask(cursor + torch.arange(rows, device=pages.device), keys, dtype)
        self._grouped = (config.kv_heads, config.group, -1, config.head_dim)
        self._kv_shape = (keys, config.kv_heads, config.head_dim)
        self._output = (rows, config.heads * config.head_dim)

    def attend(self, keys: torch.Tensor, values: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        """Query [rows, heads, head_dim] over a layer's `keys` and `values` -> [rows, heads * head_dim]."""
        mixed = F.scaled_dot_product_attention(
            query.transpose(0, 1).view(self._grouped),
            self._gather(keys).expand(self._grouped),
            self._gather(values).expand(self._grouped),
            attn_mask=self._mask,
        )
        return mixed.permute(2, 0, 1, 3).reshape(self._output)

    def _gather(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.index_select(0, self._rows).view(self._kv_shape).transpose(0, 1).unsqueeze(1)


class CellAttention(Protocol):
    """How a number of cells, each with a query of its own, attend: one of the windows."""

    def attend(self, keys: torch.Tensor, values: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        """Query [cells, heads, head_dim] -> [cells, heads * head_dim]."""


class PackedWindow:
    """Lanes that follow each other densely, which attend in parts: prompts, and decoding lanes in cells of W rows.

    Queries are spread into each part's cells, and the results are put together again.
    """

    def __init__(
        self, parts: Sequence[tuple[CellAttention, int]], token_rows: torch.Tensor, sources: torch.Tensor
    ) -> None:
        """`parts`: each with its number of cells. `token_rows` [all cells]: the token row of each.

        `sources` [rows]: the cell that holds each token row's result.
        """
        self._parts = [window for window, _ in parts]
        self._counts = [count for _, count in parts]
        self._token_rows = token_rows
        self._sources = sources

    def attend(self, keys: torch.Tensor, values: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        """Query [rows, heads, head_dim] over a layer's `keys` and `values` -> [rows, heads * head_dim]."""
        cells = torch.split(query.index_select(0, self._token_rows), self._counts)
        mixed = [part.attend(keys, values, own) for part, own in zip(self._parts, cells, strict=True)]
        return (mixed[0] if len(mixed) == 1 else torch.cat(mixed)).index_select(0, self._sources)
