"""What rows.py computes of a run's lanes, in numpy, for programs that run eagerly in the host's memory.

These are a few dozen operations on arrays of a few numbers per lane. torch hands the interpreter to whoever waits for
it at each of them, so that beside a worker that plans they take as long as the worker does; numpy keeps it. What torch
computes is the plain twin, and what other devices and captured programs run.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from gpu.pages import PADDING_PAGE, PADDING_WRITE_ROW, PAGE_TOKENS
from gpu.programs.lanes import LaneBuffers
from gpu.programs.rows import RowLayout, TokenRows
from gpu.state import SlotState

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class HostRowLayout:
    """RowLayout over tensors in the host's memory."""

    def __init__(self, lanes: int, rows: int, width: int | None) -> None:
        self._last_lane = lanes - 1
        self._rows = np.arange(rows)
        self._fixed = width is not None
        self._single = width == 1 and rows == lanes
        if width is not None:
            self._lanes = self._rows // width
            self._offsets = self._rows % width
            self._starts = np.arange(lanes) * width
            self._constants = tuple(map(torch.from_numpy, (self._lanes, self._offsets, self._starts)))

    def lay(self, lengths: torch.Tensor, lane_tokens: torch.Tensor, lanes: LaneBuffers, state: SlotState) -> TokenRows:
        """As RowLayout.lay."""
        if self._single and not lanes.takes_prompts:
            return self._lay_single(lengths.numpy(), lane_tokens.numpy(), lanes, state)
        lane_of_row, offsets, valid, starts = self._place(lengths.numpy())
        slots = lanes.host_slots[lane_of_row]
        positions = np.where(valid, state.cursor.numpy()[slots] + offsets, 0)
        tokens = lane_tokens.numpy()[lane_of_row, np.minimum(offsets, lane_tokens.shape[1] - 1)]
        if lanes.prompt.shape[0]:
            at = lanes.host_prompt_starts[lane_of_row] + offsets
            prompt = lanes.host_prompt[np.minimum(at, lanes.prompt.shape[0] - 1)]
            tokens = np.where(lanes.is_host_prompt()[lane_of_row], prompt, tokens)
        rows = (
            lane_of_row,
            offsets,
            valid,
            starts,
            slots,
            positions,
            np.where(valid, tokens, 0),
            host_kv_rows(state, slots, positions, valid),
        )
        return TokenRows(*map(torch.from_numpy, rows))

    def _lay_single(self, lengths: Int64, lane_tokens: Int64, lanes: LaneBuffers, state: SlotState) -> TokenRows:
        """lay() where every lane is its one row: decode steps. With each operation fewer, less is read into the cache
        that the layers have just emptied.
        """
        lane_of_row, offsets, starts = self._constants
        valid, slots = lengths > 0, lanes.host_slots
        positions = state.cursor.numpy()[slots] * valid
        return TokenRows(
            lane_of_row,
            offsets,
            torch.from_numpy(valid),
            starts,
            lanes.slots,
            torch.from_numpy(positions),
            torch.from_numpy(lane_tokens[:, 0] * valid),
            torch.from_numpy(host_kv_rows(state, slots, positions, valid)),
        )

    def _place(self, lengths: Int64) -> tuple[Int64, Int64, Bool, Int64]:
        """(lane [R], offset [R], valid [R], starts [B])."""
        if self._fixed:
            return self._lanes, self._offsets, self._offsets < lengths[self._lanes], self._starts
        ends = lengths.cumsum()
        starts = ends - lengths
        lanes = np.minimum(ends.searchsorted(self._rows, side="right"), self._last_lane)
        valid = self._rows < ends[-1]
        return lanes, np.where(valid, self._rows - starts[lanes], 0), valid, starts


def host_kv_rows(state: SlotState, slots: Int64, positions: Int64, valid: Bool) -> Int64:
    """As rows.kv_rows."""
    pages = state.page_table.numpy()[slots, positions // PAGE_TOKENS]
    rows = pages * PAGE_TOKENS + positions % PAGE_TOKENS
    return np.where(valid & (pages != PADDING_PAGE), rows, PADDING_WRITE_ROW)


def row_layout(buffers: LaneBuffers, lanes: int, rows: int, width: int | None) -> RowLayout | HostRowLayout:
    """The layout that fits where the lanes' inputs are."""
    if buffers.in_host_memory:
        return HostRowLayout(lanes, rows, width)
    return RowLayout(lanes, rows, width, buffers.slots.device)
