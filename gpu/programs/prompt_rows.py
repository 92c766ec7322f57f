"""How the prompts of a run attend: a whole program's prompt, or several among decoding lanes.

A prompt's rows are many and its keys those of one lane, so that prompts attend apart from each other and from decoding
lanes. What is static differs: an eager run knows its prompts' lengths, a captured one only what they are at the most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import torch

from gpu.model.weights import Model
from gpu.programs.attention import CellAttention, LaneGroup, LaneWindow, PromptWindow
from gpu.programs.columns import Columns
from gpu.programs.interface import ExecutionStyle, ProgramContext
from gpu.programs.lanes import LaneBuffers
from gpu.programs.rows import TokenRows
from scheduler.shapes import GraphShape

_BLOCKS_PER_CAPACITY = 8
_BLOCK_STEP = 64


@dataclasses.dataclass(frozen=True, slots=True)
class PromptCells:
    """Where a run's prompts attend.

    `parts`: windows and their numbers of cells. `token_rows` int64 [cells]: the token row whose query each cell takes.
    `sources` int64 [rows]: the cell of each token row, for the rows of prompts.
    """

    parts: Sequence[tuple[CellAttention, int]]
    token_rows: torch.Tensor
    sources: torch.Tensor


class PromptRows(Protocol):
    """The prompts of a mixed program."""

    def cells(self, rows: TokenRows, lengths: torch.Tensor) -> PromptCells:
        """Of one run, whose lanes have `lengths` [B] rows."""


def prompt_blocks(prompt_tokens: int, prompt_rows: int) -> tuple[int, int]:
    """(blocks, rows of each) that hold every division of `prompt_tokens` among `prompt_rows` prompts.

    A block belongs to one prompt, so that each prompt but one may leave a block partly empty. Few large blocks waste
    rows, many small ones gather the same keys more often.
    """
    size = _BLOCK_STEP * -(-prompt_tokens // (_BLOCK_STEP * _BLOCKS_PER_CAPACITY))
    return -(-prompt_tokens // size) + prompt_rows - 1, size


def make_prompt_rows(shape: GraphShape, context: ProgramContext, lanes: LaneBuffers) -> PromptRows:
    """The form that fits the style and how many prompts there may be."""
    if context.style is ExecutionStyle.EAGER:
        return EagerPrompts(context, lanes)
    return CapturedPrompt(shape, context, lanes) if shape.prompt_rows == 1 else CapturedPrompts(shape, context, lanes)


class OnePrompt:
    """Windows of a fixed number of rows over one lane."""

    def __init__(self, shape: GraphShape, context: ProgramContext, lanes: LaneBuffers) -> None:
        self._model: Model = context.model
        self._state, self._lanes = context.state, lanes
        self._rows = shape.prefill_capacity
        self._columns = Columns(context.style, context.state)

    def window(self, lane: torch.Tensor, lengths: torch.Tensor) -> PromptWindow:
        """`lane` [1]: the prompt's dense index, or any when there is none."""
        there = self._lanes.prefill_rows >= 0
        slot = torch.where(there, self._lanes.slots.index_select(0, lane), self._state.padding_slot)
        length = torch.where(there, lengths.index_select(0, lane), 0)
        cursor = self._state.cursor.index_select(0, slot)
        columns = self._columns.holding(cursor + length)
        pages = self._state.page_table[:, :columns].index_select(0, slot)
        model = self._model
        return PromptWindow(model.config, pages, cursor, length, self._rows, model.dtype)


class CapturedPrompt:
    """Implements PromptRows for one prompt at the most: C cells, whether it fills them or not."""

    def __init__(self, shape: GraphShape, context: ProgramContext, lanes: LaneBuffers) -> None:
        self._prompt = OnePrompt(shape, context, lanes)
        self._lanes = lanes
        self._cells = torch.arange(shape.prefill_capacity, device=context.state.device)

    def cells(self, rows: TokenRows, lengths: torch.Tensor) -> PromptCells:
        """Without a prompt, the cells compute on some lane's queries and nobody reads them."""
        lane = self._lanes.prefill_rows.to(torch.int64).clamp(min=0)
        token_rows = rows.starts.index_select(0, lane) + self._cells
        return PromptCells([(self._prompt.window(lane, lengths), len(self._cells))], token_rows, rows.offsets)


class CapturedPrompts:
    """Implements PromptRows for several prompts: blocks of rows, each of which belongs to one of them.

    The blocks of a prompt follow each other, and the prompts too. A block without rows reads the padding slot.
    """

    def __init__(self, shape: GraphShape, context: ProgramContext, lanes: LaneBuffers) -> None:
        self._model, self._state, self._lanes = context.model, context.state, lanes
        blocks, self._size = prompt_blocks(shape.prefill_capacity, shape.prompt_rows)
        device = context.state.device
        self._blocks = torch.arange(blocks, device=device)
        self._in_block = torch.arange(self._size, device=device)

    def cells(self, rows: TokenRows, lengths: torch.Tensor) -> PromptCells:
        """What all layers share, without asking for a value."""
        state, size = self._state, self._size
        prefill_rows = self._lanes.prefill_rows.to(torch.int64)
        lane_of_prompt = prefill_rows.clamp(min=0)
        prompt_lengths = torch.where(prefill_rows >= 0, lengths.index_select(0, lane_of_prompt), 0)
        counts = (prompt_lengths + (size - 1)) // size
        ends = counts.cumsum(0)
        first_blocks = ends - counts
        prompt = torch.searchsorted(ends, self._blocks, right=True).clamp_(max=len(prefill_rows) - 1)
        offsets = (self._blocks - first_blocks.index_select(0, prompt)) * size
        lane = lane_of_prompt.index_select(0, prompt)
        block_lengths = (prompt_lengths.index_select(0, prompt) - offsets).clamp_(min=0, max=size)
        used = block_lengths > 0
        slots = torch.where(used, self._lanes.slots.index_select(0, lane), state.padding_slot)
        cursors = torch.where(used, state.cursor.index_select(0, slots) + offsets, 0)
        window = LaneWindow(
            self._model.config,
            state.page_table.index_select(0, slots),
            cursors,
            block_lengths,
            size,
            self._model.dtype,
            [LaneGroup(0, len(slots), state.columns)],
        )
        token_rows = (rows.starts.index_select(0, lane) + offsets)[:, None] + self._in_block
        # A row's prompt is the one whose lane it has; rows of other lanes find none and are not asked for.
        of_prompt = rows.lanes[:, None] == prefill_rows
        sources = rows.offsets + (of_prompt * first_blocks).sum(dim=1) * size
        return PromptCells([(window, len(slots) * size)], token_rows.view(-1), sources)


class EagerPrompts:
    """Implements PromptRows with a window of its own for each prompt that is there, no longer than the prompt."""

    def __init__(self, context: ProgramContext, lanes: LaneBuffers) -> None:
        self._model, self._state, self._lanes = context.model, context.state, lanes
        self._columns = Columns(context.style, context.state)

    def cells(self, rows: TokenRows, lengths: torch.Tensor) -> PromptCells:
        """In the order of the lanes' prompt tokens."""
        lanes, device = self._lanes, rows.starts.device
        parts: list[tuple[CellAttention, int]] = []
        token_rows = [torch.empty(0, dtype=torch.int64, device=device)]
        for lane in lanes.host_prompts():
            count = int(lanes.host_lengths[lane])
            parts.append((self._window(int(lanes.host_slots[lane]), count), count))
            token_rows.append(rows.starts[lane] + torch.arange(count, device=device))
        sources = lanes.prompt_starts.index_select(0, rows.lanes) + rows.offsets
        return PromptCells(parts, torch.cat(token_rows), sources)

    def _window(self, slot: int, count: int) -> PromptWindow:
        state, model = self._state, self._model
        cursor = state.cursor[slot : slot + 1]
        columns = self._columns.holding(cursor + count)
        length = torch.full_like(cursor, count)
        pages = state.page_table[slot : slot + 1, :columns]
        return PromptWindow(model.config, pages, cursor, length, count, model.dtype)
