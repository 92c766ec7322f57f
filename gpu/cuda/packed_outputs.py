"""A run's results in two tensors, so that they reach the host in two copies and outlive the next run."""

from __future__ import annotations

import torch

from gpu.programs.outputs import RunOutputs
from scheduler.shapes import GraphShape

_COUNTS, _LENGTHS, _FINITE, _FIRST_ROWS, _EMITTED = range(5)


class PackedOutputs:
    """`_integers` int64 [B, 4 + W] and `_reals` float64 [B, 2, D] on the device, and two host copies of each.

    pack() is recorded with the program. fetch(turn) copies to the host, where read(turn) finds the results of that
    run while the next one writes the device's tensors and the other copy.
    """

    def __init__(self, shape: GraphShape, learned: bool, device: torch.device, pinned: bool) -> None:
        """`learned`: the program has a draft head."""
        lanes, depth = shape.batch_capacity, shape.draft_depth
        width = max(shape.target_width, depth + 1)
        self._learned = learned
        self._integers = torch.zeros((lanes, _EMITTED + width), dtype=torch.int64, device=device)
        self._reals = torch.zeros((lanes, 2, depth), dtype=torch.float64, device=device)
        self._host = tuple(
            (
                torch.zeros(self._integers.shape, dtype=torch.int64, pin_memory=pinned),
                torch.zeros(self._reals.shape, dtype=torch.float64, pin_memory=pinned),
            )
            for _ in range(2)
        )

    def pack(self, outputs: RunOutputs) -> None:
        """Copy the run's tensors into the packed ones, on the device."""
        integers = self._integers
        integers[:, _COUNTS].copy_(outputs.counts)
        integers[:, _LENGTHS].copy_(outputs.lengths)
        integers[:, _FINITE].copy_(outputs.finite)
        integers[:, _FIRST_ROWS].copy_(outputs.first_rows)
        integers[:, _EMITTED:].copy_(outputs.emitted)
        self._reals[:, 0].copy_(outputs.survival)
        if outputs.conditional is not None:
            self._reals[:, 1].copy_(outputs.conditional)

    def fetch(self, turn: int) -> None:
        """Copy to the host's `turn`, without waiting."""
        integers, reals = self._host[turn]
        integers.copy_(self._integers, non_blocking=True)
        if reals.shape[2]:
            reals.copy_(self._reals, non_blocking=True)

    def read(self, turn: int) -> RunOutputs:
        """The results that were fetched to `turn`, valid until the next fetch to it."""
        integers, reals = self._host[turn]
        return RunOutputs(
            emitted=integers[:, _EMITTED:],
            counts=integers[:, _COUNTS],
            lengths=integers[:, _LENGTHS],
            finite=integers[:, _FINITE].bool(),
            first_rows=integers[:, _FIRST_ROWS],
            survival=reals[:, 0],
            conditional=reals[:, 1].float() if self._learned else None,
        )
