"""How a run takes its lanes' pending tokens out of the slots' state and moves the slots on: with torch, or in numpy.

The numpy form is for programs that run eagerly in the host's memory; see host_rows.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from gpu.programs.lanes import LaneBuffers
from gpu.programs.sampler import Verdict
from gpu.state import SlotState


class Progress(Protocol):
    """Over the lanes and the slots of one program."""

    def take_pending(self, lane_tokens: torch.Tensor) -> None:
        """Write each lane's pending token to `lane_tokens` [B, W] at 0; 0 for a lane without one."""

    def drawn_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        """`lengths` [B], but 1 for a prompt, whose last row alone is drawn from."""

    def advance(self, lengths: torch.Tensor, verdict: Verdict) -> torch.Tensor:
        """Move the slots on by what was consumed and emitted; returns the tokens that each lane consumed [B]."""


class TorchProgress:
    """On whatever device the state is."""

    def __init__(self, lanes: LaneBuffers, state: SlotState) -> None:
        self._lanes = lanes
        self._state = state

    def take_pending(self, lane_tokens: torch.Tensor) -> None:
        slots, _ = self._lanes.decoding(self._lanes.lengths)
        # A lane without a token must not end a CUDA device with an index that is out of range.
        lane_tokens[:, 0] = self._state.pending.index_select(0, slots).clamp_(min=0)

    def drawn_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        return torch.where(self._lanes.is_prompt(), 1, lengths)

    def advance(self, lengths: torch.Tensor, verdict: Verdict) -> torch.Tensor:
        state, lanes = self._state, self._lanes
        consumed = torch.where(lanes.is_prompt(), lengths, verdict.counts) * verdict.finite
        state.cursor.index_add_(0, lanes.slots, consumed)
        state.emitted.index_add_(0, lanes.slots, verdict.counts)
        last = verdict.emitted.gather(1, (verdict.counts - 1).clamp_(min=0)[:, None]).squeeze(1)
        pending = torch.where(verdict.counts > 0, last, state.pending.index_select(0, lanes.slots))
        state.pending.index_copy_(0, lanes.slots, pending)
        return consumed


class HostProgress:
    """TorchProgress in the host's memory. The padding slot, which stands for several lanes, is never moved."""

    def __init__(self, lanes: LaneBuffers, state: SlotState) -> None:
        self._lanes = lanes
        self._cursor, self._emitted, self._pending = state.cursor.numpy(), state.emitted.numpy(), state.pending.numpy()
        self._dense = np.arange(lanes.capacity)

    def take_pending(self, lane_tokens: torch.Tensor) -> None:
        slots, _ = self._lanes.host_decoding(self._lanes.host_lengths)
        np.maximum(self._pending[slots], 0, out=lane_tokens.numpy()[:, 0])

    def drawn_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        if not self._lanes.takes_prompts:
            return lengths
        return torch.from_numpy(np.where(self._lanes.is_host_prompt(), 1, lengths.numpy()))

    def advance(self, lengths: torch.Tensor, verdict: Verdict) -> torch.Tensor:
        counts, slots = verdict.counts.numpy(), self._lanes.host_slots
        consumed = counts
        if self._lanes.takes_prompts:
            consumed = np.where(self._lanes.is_host_prompt(), lengths.numpy(), counts)
        consumed = consumed * verdict.finite.numpy()
        self._cursor[slots] += consumed
        self._emitted[slots] += counts
        last = verdict.emitted.numpy()[self._dense, np.maximum(counts - 1, 0)]
        self._pending[slots] = np.where(counts > 0, last, self._pending[slots])
        return torch.from_numpy(consumed)


def make_progress(lanes: LaneBuffers, state: SlotState) -> Progress:
    """The form that fits where the lanes' inputs are."""
    return (HostProgress if lanes.in_host_memory else TorchProgress)(lanes, state)
