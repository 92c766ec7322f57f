"""Where a program puts its lanes' rows, how these attend, and which of them get logits: one class for each family."""

from __future__ import annotations

from typing import Protocol

import torch

from gpu.model.weights import Model
from gpu.pages import pages_for
from gpu.programs.attention import LaneGroup, LaneWindow, Mix, PackedWindow, PromptWindow, group_lanes
from gpu.programs.host_rows import HostRowLayout, row_layout
from gpu.programs.interface import ExecutionStyle, Int64, ProgramContext
from gpu.programs.lanes import LaneBuffers
from gpu.programs.paged_attention import PagedWindow, load_kernel, reads_pages_in_place
from gpu.programs.rows import RowLayout, TokenRows
from gpu.state import SlotState
from scheduler.shapes import GraphKind, GraphShape


class Placement(Protocol):
    """The row geometry of one program. `lengths` [B] are the rows of each lane."""

    layout: RowLayout | HostRowLayout

    def mix(self, rows: TokenRows, lengths: torch.Tensor) -> Mix:
        """The attention of one run; computes what all layers share."""

    def logit_rows(self, rows: TokenRows, lengths: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        """(token rows [N] that get logits, None for all; each lane's first row among these [B])."""


class Columns:
    """How many pages of the table a run reads: those in use when it runs eagerly, all when it was captured."""

    def __init__(self, style: ExecutionStyle, state: SlotState) -> None:
        self._eager = style is ExecutionStyle.EAGER
        self._all = state.columns

    def holding(self, tokens: torch.Tensor | Int64) -> int:
        """Columns for the longest of `tokens` [lanes]; at least 1."""
        return min(self._all, max(1, pages_for(int(tokens.max())))) if self._eager else self._all

    def groups(self, tokens: torch.Tensor, token_bytes: int) -> tuple[LaneGroup, ...]:
        """Lanes to attend together when they have `tokens` [lanes], each token's keys taking `token_bytes`."""
        if self._eager:
            return group_lanes(tokens.tolist(), token_bytes)
        return (LaneGroup(0, len(tokens), self._all),)


def make_placement(shape: GraphShape, context: ProgramContext, lanes: LaneBuffers) -> Placement:
    """The geometry that fits the shape."""
    if shape.kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL):
        return PromptPlacement(shape, context, lanes)
    if shape.kind is GraphKind.MIXED or shape.target_rows < shape.batch_capacity * shape.target_width:
        return PackedPlacement(shape, context, lanes)
    return GridPlacement(shape, context, lanes)


class GridPlacement:
    """B lanes of W rows each, lane after lane."""

    def __init__(self, shape: GraphShape, context: ProgramContext, lanes: LaneBuffers) -> None:
        self._lanes = _LanePart(shape, context, lanes)
        batch, width = shape.batch_capacity, shape.target_width
        self.layout = row_layout(lanes, batch, batch * width, width)

    def mix(self, rows: TokenRows, lengths: torch.Tensor) -> Mix:
        """Every row is its own cell."""
        return self._lanes.window(lengths).attend

    def logit_rows(self, rows: TokenRows, lengths: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        """All rows."""
        return None, rows.starts


class PromptPlacement:
    """C rows of one prompt."""

    def __init__(self, shape: GraphShape, context: ProgramContext, lanes: LaneBuffers) -> None:
        self._prompt = _PromptPart(shape, context, lanes)
        self.layout = row_layout(lanes, 1, shape.prefill_capacity, shape.prefill_capacity)
        self._first = torch.zeros(1, dtype=torch.int64, device=context.state.device)

    def mix(self, rows: TokenRows, lengths: torch.Tensor) -> Mix:
        """All rows attend to one lane."""
        return self._prompt.window(self._first, lengths).attend

    def logit_rows(self, rows: TokenRows, lengths: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        """The prompt's last row."""
        return (lengths - 1).clamp_(min=0), self._first


class PackedPlacement:
    """B lanes of up to W rows each, one after the other without gaps; in mixed programs one may be a prompt."""

    def __init__(self, shape: GraphShape, context: ProgramContext, lanes: LaneBuffers) -> None:
        batch, width, prompt = shape.batch_capacity, shape.target_width, shape.prefill_capacity
        self._row_count = prompt + (batch - 1) * width if prompt else shape.target_rows
        device = context.state.device
        self.layout = row_layout(lanes, batch, self._row_count, None)
        self._lanes = _LanePart(shape, context, lanes)
        self._prompt = _PromptPart(shape, context, lanes) if prompt else None
        self._width = width
        self._buffers = lanes
        self._in_lane = torch.arange(width, device=device)
        self._in_prompt = torch.arange(prompt, device=device)
        self._first_cells = torch.arange(batch, device=device) * width

    def mix(self, rows: TokenRows, lengths: torch.Tensor) -> Mix:
        """Lanes attend in cells of W rows, the prompt apart from them."""
        cells = self._clamped(rows.starts[:, None] + self._in_lane).view(-1)
        sources = rows.lanes * self._width + rows.offsets.clamp(max=self._width - 1)
        if self._prompt is None:
            return PackedWindow(self._lanes.window(lengths), None, cells, sources).attend
        lane = self._buffers.prefill_row.to(torch.int64)
        sources = torch.where(rows.lanes == lane, rows.offsets, sources + len(self._in_prompt))
        lane = lane.clamp(min=0)  # without a prompt, its rows compute on some lane's queries and nobody reads them
        cells = torch.cat((self._clamped(rows.starts.index_select(0, lane) + self._in_prompt), cells))
        return PackedWindow(self._lanes.window(lengths), self._prompt.window(lane, lengths), cells, sources).attend

    def logit_rows(self, rows: TokenRows, lengths: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        """All rows without a prompt; else W for each lane, of which the prompt's are all its last row."""
        if self._prompt is None:
            return None, rows.starts
        first = rows.starts + torch.where(self._buffers.is_prompt(), lengths - 1, 0)
        step = torch.where(self._buffers.is_prompt()[:, None], 0, self._in_lane)
        return self._clamped(first[:, None] + step).view(-1), self._first_cells

    def _clamped(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.clamp(max=self._row_count - 1)


class _LanePart:
    """Windows over the decoding lanes; a prompt lane's cells are those of the padding slot."""

    def __init__(self, shape: GraphShape, context: ProgramContext, lanes: LaneBuffers) -> None:
        self._model, self._state, self._lanes = context.model, context.state, lanes
        self._width = shape.target_width
        config = context.model.config
        self._token_bytes = config.kv_heads * config.head_dim * context.model.dtype.itemsize
        self._columns = Columns(context.style, context.state)
        self._in_place = reads_pages_in_place(context, self._width)
        if self._in_place:
            load_kernel()

    def window(self, lengths: torch.Tensor) -> LaneWindow | PagedWindow:
        if self._in_place:
            return self._paged_window(lengths)
        slots, lengths = self._lanes.decoding(lengths)
        cursors = self._state.cursor.index_select(0, slots)
        groups = self._columns.groups(cursors + lengths, self._token_bytes)
        columns = max(group.columns for group in groups)
        pages, model = self._state.page_table[:, :columns].index_select(0, slots), self._model
        return LaneWindow(model.config, pages, cursors, lengths, self._width, model.dtype, groups)

    def _paged_window(self, lengths: torch.Tensor) -> PagedWindow:
        slots, counts = self._lanes.host_decoding(lengths.numpy())
        cursors = self._state.cursor.numpy()[slots]
        columns = self._columns.holding(cursors + counts)
        pages = self._state.page_table.numpy()[slots, :columns]
        return PagedWindow(self._model.config, pages, cursors, counts)


class _PromptPart:
    """Windows over the prompt row."""

    def __init__(self, shape: GraphShape, context: ProgramContext, lanes: LaneBuffers) -> None:
        self._model: Model = context.model
        self._state, self._lanes = context.state, lanes
        self._rows = shape.prefill_capacity
        self._columns = Columns(context.style, context.state)

    def window(self, lane: torch.Tensor, lengths: torch.Tensor) -> PromptWindow:
        """`lane` [1]: the prompt's dense index, or any when there is none."""
        there = self._lanes.prefill_row >= 0
        slot = torch.where(there, self._lanes.slots.index_select(0, lane), self._state.padding_slot)
        length = torch.where(there, lengths.index_select(0, lane), 0)
        cursor = self._state.cursor.index_select(0, slot)
        columns = self._columns.holding(cursor + length)
        pages = self._state.page_table[:, :columns].index_select(0, slot)
        model = self._model
        return PromptWindow(model.config, pages, cursor, length, self._rows, model.dtype)
