"""How much of the slots' page tables a run reads."""

from __future__ import annotations

import torch

from gpu.pages import pages_for
from gpu.programs.attention import LaneGroup, group_lanes
from gpu.programs.interface import ExecutionStyle, Int64
from gpu.state import SlotState


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
