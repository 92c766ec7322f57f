"""Where a program puts its lanes' rows, how these attend, and which of them get logits: one class for each family."""

from __future__ import annotations

from typing import Protocol

import torch

from gpu.capacity import packed_rows
from gpu.programs.attention import LaneWindow, Mix, PackedWindow
from gpu.programs.columns import Columns
from gpu.programs.host_rows import HostRowLayout, row_layout
from gpu.programs.interface import ProgramContext
from gpu.programs.lanes import LaneBuffers
from gpu.programs.paged_attention import PagedWindow, load_kernel, reads_pages_in_place
from gpu.programs.prompt_rows import OnePrompt, make_prompt_rows
from gpu.programs.rows import RowLayout, TokenRows
from scheduler.shapes import GraphKind, GraphShape


class Placement(Protocol):
    """The row geometry of one program. `lengths` [B] are the rows of each lane."""

    layout: RowLayout | HostRowLayout

    def mix(self, rows: TokenRows, lengths: torch.Tensor) -> Mix:
        """The attention of one run; computes what all layers share."""

    def logit_rows(self, rows: TokenRows, lengths: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        """(token rows [N] that get logits, None for all; each lane's first row among these [B])."""


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
        self._prompt = OnePrompt(shape, context, lanes)
        self.layout = row_layout(lanes, 1, shape.prefill_capacity, shape.prefill_capacity)
        self._first = torch.zeros(1, dtype=torch.int64, device=context.state.device)

    def mix(self, rows: TokenRows, lengths: torch.Tensor) -> Mix:
        """All rows attend to one lane."""
        return self._prompt.window(self._first, lengths).attend

    def logit_rows(self, rows: TokenRows, lengths: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        """The prompt's last row."""
        return (lengths - 1).clamp_(min=0), self._first


class PackedPlacement:
    """B lanes of up to W rows each, one after the other without gaps; in mixed programs some may be prompts."""

    def __init__(self, shape: GraphShape, context: ProgramContext, lanes: LaneBuffers) -> None:
        batch, width, prompt = shape.batch_capacity, shape.target_width, shape.prefill_capacity
        self._row_count = packed_rows(shape)
        device = context.state.device
        self.layout = row_layout(lanes, batch, self._row_count, None)
        self._lanes = _LanePart(shape, context, lanes)
        self._prompts = make_prompt_rows(shape, context, lanes) if prompt else None
        self._width = width
        self._buffers = lanes
        self._in_lane = torch.arange(width, device=device)
        self._first_cells = torch.arange(batch, device=device) * width

    def mix(self, rows: TokenRows, lengths: torch.Tensor) -> Mix:
        """Lanes attend in cells of W rows, prompts apart from them."""
        lanes = self._lanes.window(lengths)
        cells = (rows.starts[:, None] + self._in_lane).view(-1)
        sources = rows.lanes * self._width + rows.offsets.clamp(max=self._width - 1)
        if self._prompts is None:
            return PackedWindow([(lanes, len(cells))], self._clamped(cells), sources).attend
        prompts = self._prompts.cells(rows, lengths)
        is_prompt = self._buffers.is_prompt().index_select(0, rows.lanes)
        sources = torch.where(is_prompt, prompts.sources, sources + len(prompts.token_rows))
        parts = (*prompts.parts, (lanes, len(cells)))
        return PackedWindow(parts, self._clamped(torch.cat((prompts.token_rows, cells))), sources).attend

    def logit_rows(self, rows: TokenRows, lengths: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        """All rows without prompts; else W for each lane, of which a prompt's are all its last row."""
        if self._prompts is None:
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
