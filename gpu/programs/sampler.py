"""How a round draws: the drafts of learned lanes, then what the target's logits accept and add."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import torch

from gpu.device import TokenLogprobs
from gpu.programs.lanes import LaneBuffers
from gpu.state import SlotState


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What a round decided for each of B lanes, in static tensors.

    emitted int64 [B, W]: accepted drafts, then one more token; counts int64 [B]: how many of them, 0 where nothing is
    drawn or the lane failed. finite bool [B]: the lane's logits were. survival float64 [B, D]: NaN where not evaluated.
    """

    emitted: torch.Tensor
    counts: torch.Tensor
    finite: torch.Tensor
    survival: torch.Tensor

    @staticmethod
    def empty(lanes: int, width: int, depth: int, device: torch.device) -> Verdict:
        """Tensors to be written by every run."""
        return Verdict(
            emitted=torch.zeros((lanes, width), dtype=torch.int64, device=device),
            counts=torch.zeros(lanes, dtype=torch.int64, device=device),
            finite=torch.ones(lanes, dtype=torch.bool, device=device),
            survival=torch.full((lanes, depth), torch.nan, dtype=torch.float64, device=device),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class RoundRows:
    """Where each lane's rows are. lengths, first_rows int64 [B]: verification rows, and the first one's logits row.

    A prompt lane has one row, its last. drafts int64 [B, D]: the proposals that rows 2, 3, … hold.
    """

    lengths: torch.Tensor
    first_rows: torch.Tensor
    drafts: torch.Tensor


class RoundSampler(Protocol):
    """Draws for the lanes of one program."""

    @property
    def verdict(self) -> Verdict:
        """The latest run's decisions."""

    @property
    def logprobs(self) -> Sequence[tuple[TokenLogprobs, ...]]:
        """Those of each lane's emitted tokens, for the lanes that the latest run had."""

    def begin(self, lanes: LaneBuffers, state: SlotState) -> None:
        """A run starts with these lanes."""

    def draft(self, step: int, logits: torch.Tensor) -> torch.Tensor:
        """Columns [B] int64 that draft logits [B, draft vocab] propose as the lane's token number `step` from now."""

    def verify(self, logits: torch.Tensor, rows: RoundRows) -> None:
        """Fill `verdict` from the target's logits [rows, vocab]."""
