"""The static inputs of one inference program: what its lanes are, uploaded whole before every run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from gpu.device import InvalidFrame
from gpu.programs.interface import Int64, LaneInput

NO_PREFILL_ROW = -1


class LaneBuffers:
    """Per-lane inputs in one int64 vector, so that they reach the device in one copy. Inactive lanes are padding.

    slots [B]: request slots, the padding slot for inactive lanes. lengths [B]: prompt tokens or verification rows
    (their upper limit under device allocation), 0 for inactive lanes. draws [B]: 1 where a token is drawn. copied [B]:
    number of copy proposals, 0 for learned ones. copies [B, D]: their ids. prompt [C]: the prompts' tokens, one prompt
    after the other in the lanes' order. prompt_starts [B]: where a lane's tokens begin there, 0 for lanes without any.
    prefill_rows int32 [R]: the prompts' lanes in their order, -1 where there are fewer.

    `in_host_memory`: stage() fills the inputs themselves, so that numpy reads what the program does. `takes_prompts`:
    some lane can be a prompt row.

    Where runs are queued, stage() fills one of two copies in turn, so that the next run can be staged while the copy
    of the one before is still being read. Otherwise the inputs themselves are filled.
    """

    def __init__(
        self,
        lanes: int,
        draft_depth: int,
        prompt_tokens: int,
        padding_slot: int,
        device: torch.device,
        queued: bool = False,
        prompt_rows: int = 1,
    ) -> None:
        """`queued`: up to two runs are staged before the first of them is sent and has run. `prompt_rows`: R."""
        sizes = (lanes, lanes, lanes, lanes, lanes * draft_depth, prompt_tokens, lanes, prompt_rows)
        total = sum(sizes)
        self._staging = torch.zeros(total, dtype=torch.int64)
        self._copies_in_turn: tuple[torch.Tensor, ...] = ()
        self._inputs = self._staging
        if queued or device.type != "cpu":
            pinned = device.type == "cuda"
            self._copies_in_turn = tuple(torch.zeros(total, dtype=torch.int64, pin_memory=pinned) for _ in range(2))
            self._inputs = torch.zeros(total, dtype=torch.int64, device=device)
        self._turn = 0
        self.prefill_rows = torch.full((prompt_rows,), NO_PREFILL_ROW, dtype=torch.int32, device=device)
        parts = torch.split(self._inputs, list(sizes))
        self.slots, self.lengths, self.draws, self.copied, copies, self.prompt = parts[:-2]
        self.prompt_starts, self._sent_prefill_rows = parts[-2:]
        self.copies = copies.view(lanes, draft_depth)
        self._host = self._staging.numpy()
        host = np.split(self._host, np.cumsum(sizes)[:-1])
        self.host_slots, self.host_lengths, self.host_draws, self._copied, host_copies, self.host_prompt = host[:-2]
        self.host_prompt_starts, self.host_prefill_rows = host[-2:]
        self._copies = host_copies.reshape(lanes, draft_depth)
        self.padding_slot = padding_slot
        self._dense = torch.arange(lanes, device=device)
        self._host_dense = np.arange(lanes)
        self.capacity = lanes
        self.prompt_rows = prompt_rows
        self.in_host_memory = not self._copies_in_turn
        self.takes_prompts = prompt_tokens > 0
        self.upload(())

    def upload(self, lanes: Sequence[LaneInput]) -> None:
        """stage() and send()."""
        self.send(self.stage(lanes))

    def stage(self, lanes: Sequence[LaneInput]) -> int:
        """Write the lanes in dense order, and padding into everything that they do not use; returns what to send.

        Raises InvalidFrame beyond the buffers; nothing was written then.
        """
        self._check_bounds(lanes)
        prompts = [row for row, lane in enumerate(lanes) if lane.prompt is not None]
        count = len(lanes)
        self._host.fill(0)
        self.host_slots[:count] = [lane.slot for lane in lanes]
        self.host_slots[count:] = self.padding_slot
        self.host_lengths[:count] = [lane.rows if lane.prompt is None else len(lane.prompt) for lane in lanes]
        self.host_draws[:count] = [lane.prompt is None or lane.finishes for lane in lanes]
        self.host_prefill_rows[: len(prompts)] = prompts
        self.host_prefill_rows[len(prompts) :] = NO_PREFILL_ROW
        start = 0
        for row, lane in enumerate(lanes):
            if lane.prompt is not None:
                end = start + len(lane.prompt)
                self.host_prompt[start:end] = lane.prompt
                self.host_prompt_starts[row] = start
                start = end
            elif lane.copies is not None and lane.rows > 1:
                self._copied[row] = lane.rows - 1
                self._copies[row, : lane.rows - 1] = lane.copies[: lane.rows - 1]
        if self._copies_in_turn:
            self._turn ^= 1
            self._copies_in_turn[self._turn].copy_(self._staging)
        return self._turn

    def send(self, turn: int) -> None:
        """Bring what stage() wrote to the device, without waiting."""
        if self._copies_in_turn:
            self._inputs.copy_(self._copies_in_turn[turn], non_blocking=True)
        if self.takes_prompts or not self.in_host_memory:
            self.prefill_rows.copy_(self._sent_prefill_rows)

    def is_prompt(self) -> torch.Tensor:
        """Bool [B]: whether the lane is a prompt row."""
        if self.prompt_rows == 1:
            return self._dense == self.prefill_rows
        return (self._dense[:, None] == self.prefill_rows).any(dim=1)

    def decoding(self, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(slots, lengths) [B] with prompt rows as inactive lanes."""
        if not self.takes_prompts:
            return self.slots, lengths
        prompt = self.is_prompt()
        return torch.where(prompt, self.padding_slot, self.slots), torch.where(prompt, 0, lengths)

    def host_decoding(self, lengths: Int64) -> tuple[Int64, Int64]:
        """decoding() in numpy, where the inputs are in the host's memory."""
        if not self.takes_prompts:
            return self.host_slots, lengths
        prompt = self.is_host_prompt()
        return np.where(prompt, self.padding_slot, self.host_slots), np.where(prompt, 0, lengths)

    def is_host_prompt(self) -> npt.NDArray[np.bool_]:
        """is_prompt() of the lanes staged last."""
        prompt: npt.NDArray[np.bool_] = (self._host_dense == self.host_prefill_rows[:, None]).any(axis=0)
        return prompt

    def host_prompts(self) -> list[int]:
        """Dense indices of the prompt rows uploaded last, in their order."""
        return [row for row in self.host_prefill_rows.tolist() if row != NO_PREFILL_ROW]

    def learned_lanes(self) -> list[int]:
        """Dense indices of the lanes uploaded last that decode without copies."""
        prompts = {*self.host_prefill_rows.tolist()}
        return [
            lane
            for lane, (length, copied) in enumerate(zip(self.host_lengths.tolist(), self._copied.tolist(), strict=True))
            if length and not copied and lane not in prompts
        ]

    def drafts_are_learned(self) -> bool:
        """Whether any of the lanes uploaded last verifies learned drafts."""
        return any(self.host_lengths[lane] > 1 for lane in self.learned_lanes())

    def _check_bounds(self, lanes: Sequence[LaneInput]) -> None:
        """Nothing reaches beyond the buffers. Whether lanes fit their program was checked with their frame."""
        width = self._copies.shape[1] + 1
        if len(lanes) > self.capacity:
            raise InvalidFrame(f"{len(lanes)} lanes; {self.capacity} fit")
        prompts = [len(lane.prompt) for lane in lanes if lane.prompt is not None]
        if len(prompts) > self.prompt_rows or sum(prompts) > len(self.host_prompt):
            raise InvalidFrame(
                f"{len(prompts)} prompts of {sum(prompts)} tokens; {self.prompt_rows} of {len(self.host_prompt)} fit"
            )
        for lane in lanes:
            if lane.prompt is None and lane.rows > width:
                raise InvalidFrame(f"slot {lane.slot}: {lane.rows} rows; {width} fit")
