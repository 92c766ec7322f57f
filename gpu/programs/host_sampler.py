"""Sampling of one program's rounds on the host, through gpu.sampling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gpu.device import TokenLogprobs
from gpu.programs.interface import Float32, Int64
from gpu.programs.lanes import LaneBuffers
from gpu.programs.sampler import RoundRows, Verdict
from gpu.sampling import SamplingTable, VerifyLane, draft_sample, verify_round
from gpu.state import SlotState


class HostSampler:
    """Implements gpu.programs.sampler.RoundSampler for programs that run eagerly."""

    def __init__(self, table: SamplingTable, verdict: Verdict, draft_token_ids: torch.Tensor | None) -> None:
        """`draft_token_ids` [draft vocab]: the ids of a draft head's columns, None where they are equal."""
        self.verdict = verdict
        self.logprobs: list[tuple[TokenLogprobs, ...]] = []
        self._table = table
        self._emitted = verdict.emitted.numpy()
        self._counts = verdict.counts.numpy()
        self._finite = verdict.finite.numpy()
        self._survival = verdict.survival.numpy()
        self._draft_token_ids = None if draft_token_ids is None else draft_token_ids.numpy()
        self._slots: list[int] = []
        self._numbers: list[int] = []
        self._learned: list[int] = []
        self._probabilities: list[Float32 | None] = []

    def begin(self, lanes: LaneBuffers, state: SlotState) -> None:
        """Remember the lanes and their next output tokens' numbers; forget the round before."""
        self._lanes = lanes
        self._slots = lanes.host_slots.tolist()
        self._numbers = state.emitted.numpy()[lanes.host_slots].tolist()
        self._learned = lanes.learned_lanes() if len(lanes.copies[0]) else []
        self._probabilities = []

    def draft(self, step: int, logits: torch.Tensor) -> torch.Tensor:
        """Columns [B] of learned lanes' drafts, 0 for all others; keeps what they were drawn from."""
        chosen = np.zeros(len(logits), dtype=np.int64)
        learned = self._learned
        if learned:
            slots = [self._slots[lane] for lane in learned]
            numbers = [self._numbers[lane] + step for lane in learned]
            rows = logits.numpy()
            rows = rows[: len(learned)] if learned[-1] + 1 == len(learned) else rows[learned]
            chosen[learned], probabilities = draft_sample(rows, slots, numbers, self._table)
            self._probabilities.append(probabilities)
        return torch.from_numpy(chosen)

    def verify(self, logits: torch.Tensor, rows: RoundRows) -> None:
        """Fill the verdict, keep log-probabilities, and count emitted tokens for penalties."""
        host_logits = logits.numpy()
        lengths, first_rows, drafts = rows.lengths.tolist(), rows.first_rows.tolist(), rows.drafts.numpy()
        active = len(self._slots) - self._slots.count(self._lanes.padding_slot)
        self._emitted[:] = 0
        self._counts[:] = 0
        self._finite[:] = True
        self._survival[:] = np.nan
        self.logprobs = [()] * active
        draws = self._lanes.host_draws.tolist()
        drawing = [lane for lane in range(active) if draws[lane]]
        undrawn = [lane for lane in range(active) if not draws[lane]] if len(drawing) < active else []
        plain = [lane for lane in drawing if lengths[lane] == 1 and self._table.of(self._slots[lane]).takes_likeliest]
        if plain:
            self._take_likeliest(host_logits, plain, [first_rows[lane] for lane in plain])
            drawing = sorted({*drawing} - {*plain})
        if drawing:
            self._verify_lanes(host_logits, drawing, first_rows, lengths, drafts)
        for lane in undrawn:
            self._finite[lane] = np.isfinite(host_logits[first_rows[lane]].max())

    def _take_likeliest(self, logits: Float32, lanes: list[int], rows: list[int]) -> None:
        """What verify_round() gives lanes without drafts that take the likeliest token and ask for nothing else."""
        best = logits.argmax(axis=1)[rows]  # of NaN, where a row holds any
        finite = np.isfinite(logits[rows, best])
        self._emitted[lanes, 0] = best * finite
        self._counts[lanes] = finite
        self._finite[lanes] = finite

    def _verify_lanes(
        self, logits: Float32, lanes: list[int], first_rows: list[int], lengths: list[int], drafts: Int64
    ) -> None:
        verified = [self._verify_lane(lane, first_rows[lane], drafts[lane, : lengths[lane] - 1]) for lane in lanes]
        for lane, outcome in zip(lanes, verify_round(logits, verified, self._table), strict=True):
            count = len(outcome.emitted)
            self._emitted[lane, :count] = outcome.emitted
            self._counts[lane] = count
            self._finite[lane] = outcome.finite
            self._survival[lane, : len(outcome.survival)] = outcome.survival
            self.logprobs[lane] = outcome.logprobs
            self._table.record(self._slots[lane], outcome.emitted)

    def _verify_lane(self, lane: int, first_row: int, drafts: Int64) -> VerifyLane:
        return VerifyLane(
            slot=self._slots[lane],
            first_row=first_row,
            drafts=drafts,
            q=self._drawn_from(lane, len(drafts)),
            index=self._numbers[lane],
        )

    def _drawn_from(self, lane: int, count: int) -> tuple[Int64 | None, Float32] | None:
        """The distributions [count, draft vocab] of a lane's drafts; None where all are certain."""
        if not count or lane not in self._learned:
            return None
        row = self._learned.index(lane)
        steps: Sequence[Float32] = [step[row] for step in self._probabilities[:count] if step is not None]
        return (self._draft_token_ids, np.stack(steps)) if steps else None
