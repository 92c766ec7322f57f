"""From lanes to token rows: which lane and offset each row of a program stands for, its token, position and KV row."""

from __future__ import annotations

import dataclasses

import torch

from gpu.pages import PADDING_PAGE, PADDING_WRITE_ROW, PAGE_TOKENS
from gpu.programs.lanes import LaneBuffers
from gpu.state import SlotState


@dataclasses.dataclass(frozen=True, slots=True)
class TokenRows:
    """The R token rows of one run: int64 [R], but `valid` is bool [R] and `starts` int64 [B], each lane's first row.

    `lanes` and `offsets` are in range for every row; a row that is not valid holds token 0 at position 0 and is
    written to the padding page.
    """

    lanes: torch.Tensor
    offsets: torch.Tensor
    valid: torch.Tensor
    starts: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor
    token_ids: torch.Tensor
    write_rows: torch.Tensor


class RowLayout:
    """Rows of `lanes` lanes: with a `width` each lane owns that many rows, else lanes follow each other densely."""

    def __init__(self, lanes: int, rows: int, width: int | None, device: torch.device) -> None:
        self._last_lane = lanes - 1
        self._rows = torch.arange(rows, device=device)
        self._fixed = width is not None
        if width is not None:
            self._lanes = self._rows // width
            self._offsets = self._rows % width
            self._starts = torch.arange(lanes, device=device) * width

    def lay(self, lengths: torch.Tensor, lane_tokens: torch.Tensor, lanes: LaneBuffers, state: SlotState) -> TokenRows:
        """The rows of lanes with `lengths` [B] rows each.

        `lane_tokens` [B, W]: the pending token and the drafts of decoding lanes.
        """
        lane_of_row, offsets, valid, starts = self._place(lengths)
        slots = lanes.slots.index_select(0, lane_of_row)
        positions = torch.where(valid, state.cursor.index_select(0, slots) + offsets, 0)
        width = lane_tokens.shape[1]
        tokens = lane_tokens.reshape(-1).index_select(0, lane_of_row * width + offsets.clamp(max=width - 1))
        if lanes.prompt.shape[0]:
            at = lanes.prompt_starts.index_select(0, lane_of_row) + offsets
            prompt = lanes.prompt.index_select(0, at.clamp(max=lanes.prompt.shape[0] - 1))
            tokens = torch.where(lanes.is_prompt().index_select(0, lane_of_row), prompt, tokens)
        return TokenRows(
            lanes=lane_of_row,
            offsets=offsets,
            valid=valid,
            starts=starts,
            slots=slots,
            positions=positions,
            token_ids=torch.where(valid, tokens, 0),
            write_rows=kv_rows(state, slots, positions, valid),
        )

    def _place(self, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """(lane [R], offset [R], valid [R], starts [B])."""
        if self._fixed:
            valid = self._offsets < lengths.index_select(0, self._lanes)
            return self._lanes, self._offsets, valid, self._starts
        ends = lengths.cumsum(0)
        starts = ends - lengths
        lanes = torch.searchsorted(ends, self._rows, right=True).clamp_(max=self._last_lane)
        valid = self._rows < ends[-1]
        offsets = torch.where(valid, self._rows - starts.index_select(0, lanes), 0)
        return lanes, offsets, valid, starts


def kv_rows(state: SlotState, slots: torch.Tensor, positions: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """KV rows [rows] to write for `positions` [rows] of `slots` [rows]; the padding row where not `valid`."""
    pages = state.page_table[slots, torch.div(positions, PAGE_TOKENS, rounding_mode="floor")]
    rows = pages * PAGE_TOKENS + positions % PAGE_TOKENS
    # A caller's mistake must not reach the padding page's zero row, which every lane reads.
    return torch.where(valid & (pages != PADDING_PAGE), rows, PADDING_WRITE_ROW)
