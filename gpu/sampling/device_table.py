"""The sampling parameters and token counts of every slot as tensors, read by captured programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gpu.device import InvalidRequest, SamplingParameters
from gpu.sampling.philox import SEED_MASK, WORD_MASK
from gpu.sampling.processors import LOWEST_TEMPERATURE
from gpu.sampling.table import bias_by_token, needs_counts


class DeviceSamplingTable:
    """Static tensors whose row `slots` is the padding slot. open() writes them, between programs only.

    Without `adjustments` there are no tables of `slots` by `vocab` (9 bytes an entry), and requests with penalties or
    a logit bias are refused.
    """

    ENTRY_BYTES = 9
    """Memory for one token of one slot."""

    def __init__(self, slots: int, vocab: int, device: torch.device | str = "cpu", *, adjustments: bool = True) -> None:
        def per_slot(value: float, dtype: torch.dtype) -> torch.Tensor:
            return torch.full((slots + 1,), value, dtype=dtype, device=device)

        rows = slots + 1 if adjustments else 0
        self.vocab = vocab
        self.adjustments = adjustments
        self.temperature = per_slot(1.0, torch.float32)
        self.top_k = per_slot(vocab, torch.int64)
        self.top_p = per_slot(1.0, torch.float32)
        self.min_p = per_slot(0.0, torch.float32)
        self.repetition = per_slot(1.0, torch.float32)
        self.presence = per_slot(0.0, torch.float32)
        self.frequency = per_slot(0.0, torch.float32)
        self.greedy = per_slot(True, torch.bool)
        self.by_equality = per_slot(True, torch.bool)
        self.seed_low = per_slot(0, torch.int64)
        self.seed_high = per_slot(0, torch.int64)
        self.prompt_tokens = torch.zeros((rows, vocab), dtype=torch.bool, device=device)
        self.output_counts = torch.zeros((rows, vocab), dtype=torch.int32, device=device)
        self.bias = torch.zeros((rows, vocab), dtype=torch.float32, device=device)

    def open(
        self,
        slot: int,
        parameters: SamplingParameters,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int] = (),
    ) -> None:
        """Describe a slot anew; `output_ids`: tokens that the request emitted before, in an earlier life.

        Raises InvalidRequest for a bad logit bias, or for adjustments that this table has no room for.
        """
        bias = bias_by_token(parameters, self.vocab)
        if not self.adjustments and (bias or needs_counts(parameters)):
            raise InvalidRequest("this device was prepared without penalties and logit bias")
        greedy = parameters.temperature == 0.0
        # A greedy lane's weights are computed and dropped; any temperature does.
        self.temperature[slot] = 1.0 if greedy else max(parameters.temperature, LOWEST_TEMPERATURE)
        self.top_k[slot] = parameters.top_k if 0 < parameters.top_k < self.vocab else self.vocab
        self.top_p[slot] = parameters.top_p
        self.min_p[slot] = min(parameters.min_p, 1.0)
        self.repetition[slot] = parameters.repetition_penalty
        self.presence[slot] = parameters.presence_penalty
        self.frequency[slot] = parameters.frequency_penalty
        self.greedy[slot] = greedy
        self.by_equality[slot] = greedy or parameters.reproducible
        seed = parameters.seed & SEED_MASK
        self.seed_low[slot] = seed & WORD_MASK
        self.seed_high[slot] = seed >> 32
        if self.adjustments:
            self._write_tokens(slot, bias, prompt_ids, output_ids)

    def record(self, slots: torch.Tensor, emitted: torch.Tensor) -> None:
        """Count the tokens `emitted` [lanes, width], -1 for none, of `slots` [lanes]. Captured with the program."""
        if self.adjustments:
            cells = slots.unsqueeze(1) * self.vocab + emitted.clamp(min=0)
            self.output_counts.view(-1).scatter_add_(0, cells.flatten(), (emitted >= 0).int().flatten())

    def _write_tokens(
        self, slot: int, bias: dict[int, float], prompt_ids: Sequence[int], output_ids: Sequence[int]
    ) -> None:
        prompt = np.unique(np.asarray(prompt_ids, dtype=np.int64))
        self.prompt_tokens[slot].zero_()
        self.prompt_tokens[slot].index_fill_(0, self._sent(prompt), True)
        counts = np.bincount(np.asarray(output_ids, dtype=np.int64), minlength=self.vocab)
        self.output_counts[slot].copy_(self._sent(counts.astype(np.int32)))
        self.bias[slot].zero_()
        for token, addend in bias.items():
            self.bias[slot, token] = addend

    def _sent(self, values: npt.NDArray[Any]) -> torch.Tensor:
        """The values on this table's device; from pinned memory, so that nobody waits for the programs before."""
        device = self.temperature.device
        host = torch.from_numpy(values)
        return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)
