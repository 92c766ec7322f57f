"""Sampling of one program's rounds in torch operations on static tensors, so that it can be captured."""

from __future__ import annotations

import torch

from gpu.device import TokenLogprobs
from gpu.programs.lanes import LaneBuffers
from gpu.programs.sampler import RoundRows, Verdict
from gpu.sampling import SamplingTable, token_logprobs
from gpu.sampling.device_sampler import DeviceRound, device_draft_sample, device_verify
from gpu.sampling.device_table import DeviceSamplingTable
from gpu.state import SlotState


class DeviceSampler:
    """Implements gpu.programs.sampler.RoundSampler without waiting for the device. Only `logprobs` downloads."""

    def __init__(
        self,
        device_table: DeviceSamplingTable,
        table: SamplingTable,
        verdict: Verdict,
        probabilities: torch.Tensor | None,
        draft_token_ids: torch.Tensor | None,
    ) -> None:
        """`probabilities` [B, D, draft vocab]: room for what learned drafts are drawn from; None without them.

        `table` knows who wants log-probabilities. `draft_token_ids` [draft vocab]: the ids of a draft head's columns.
        """
        self.verdict = verdict
        self._device_table = device_table
        self._table = table
        self._probabilities = probabilities
        self._draft_token_ids = draft_token_ids

    def begin(self, lanes: LaneBuffers, state: SlotState) -> None:
        """Read the lanes' next output tokens' numbers."""
        self._lanes = lanes
        self._numbers = state.emitted.index_select(0, lanes.slots)

    def draft(self, step: int, logits: torch.Tensor) -> torch.Tensor:
        """Columns [B] of all lanes' drafts; keeps what they were drawn from."""
        columns, probabilities = device_draft_sample(
            logits, self._lanes.slots, self._numbers + step, self._device_table
        )
        if self._probabilities is not None:
            self._probabilities[:, step] = probabilities
        return columns

    def verify(self, logits: torch.Tensor, rows: RoundRows) -> None:
        """Fill the verdict and count emitted tokens for penalties."""
        lanes, verdict = self._lanes, self.verdict
        inputs = DeviceRound(
            slots=lanes.slots,
            first_row=rows.first_rows,
            rows=rows.lengths,
            drafts=rows.drafts,
            indices=self._numbers,
            copies=lanes.copied > 0,
            q=self._probabilities,
            draft_token_ids=self._draft_token_ids,
        )
        outcome = device_verify(logits, inputs, self._device_table)
        draws = (lanes.draws > 0) & outcome.finite
        verdict.counts.copy_(torch.where(draws, outcome.accepted + 1, 0))
        verdict.emitted.copy_(outcome.emitted)
        verdict.finite.copy_(outcome.finite | (rows.lengths == 0))
        verdict.survival.copy_(outcome.survival[:, : verdict.survival.shape[1]])
        self._device_table.record(lanes.slots, torch.where(draws[:, None], outcome.emitted, -1))
        self._logits, self._first_rows = logits, rows.first_rows

    @property
    def logprobs(self) -> list[tuple[TokenLogprobs, ...]]:
        """Those of each lane's emitted tokens, from downloaded logits."""
        slots = self._lanes.host_slots.tolist()
        active = slots[: len(slots) - slots.count(self._lanes.padding_slot)]
        return [self._lane_logprobs(lane, slot) for lane, slot in enumerate(active)]

    def _lane_logprobs(self, lane: int, slot: int) -> tuple[TokenLogprobs, ...]:
        wanted = self._table.of(slot).parameters.logprobs
        count = 0 if wanted is None else int(self.verdict.counts[lane])
        if wanted is None or not count:
            return ()
        first = int(self._first_rows[lane])
        rows = self._logits[first : first + count].cpu().numpy()
        tokens = self.verdict.emitted[lane, :count].tolist()
        return tuple(token_logprobs(row, token, wanted) for row, token in zip(rows, tokens, strict=True))
