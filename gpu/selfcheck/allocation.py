"""Device allocation against its greedy loop."""

from __future__ import annotations

import random

import torch

from gpu.allocation import create_allocator
from gpu.allocation.cupy_kernel import CupyAllocator
from gpu.reference.allocation import allocate_rows
from gpu.selfcheck.outcome import CheckFailed

_SIZES = ((1, 1), (2, 3), (4, 5), (8, 7), (33, 5), (64, 7), (3, 63))
_SLOTS = 4096


def allocation_parity(place: torch.device, cases: int) -> str:
    """Seeded rounds, many with ties: the same rows as row after row to the best draft."""
    allocate = create_allocator(place)
    dice = random.Random(4)
    for number in range(cases):
        lanes, depths = _SIZES[number % len(_SIZES)]
        joint = _joint(dice, lanes, depths)
        limits = [dice.choice((0, 1, depths + 1, dice.randint(1, depths + 1))) for _ in range(lanes)]
        slots = dice.sample(range(_SLOTS), lanes)
        active = sum(limit > 0 for limit in limits)
        rows = dice.randint(active, sum(limits))
        scores = torch.tensor(joint, dtype=torch.float32)
        found = torch.full((lanes,), -1, dtype=torch.int64, device=place)
        allocate(scores.to(place), torch.tensor(limits).to(place), torch.tensor(slots).to(place), rows, found)
        expected = allocate_rows(scores.tolist(), limits, slots, rows)
        if found.tolist() != expected:
            raise CheckFailed(f"case {number} ({lanes} lanes, {depths} drafts, {rows} rows) got other rows")
    form = "the CUDA kernel" if isinstance(allocate, CupyAllocator) else "torch operations"
    return f"{cases} rounds allocated by {form} as by the reference"


def _joint(dice: random.Random, lanes: int, depths: int) -> list[list[float]]:
    """Falling probabilities [lanes][depths], in half of the cases powers of two, so that there are ties."""
    coarse = dice.random() < 0.5
    rows = []
    for _ in range(lanes):
        value, row = 1.0, []
        for _ in range(depths):
            value *= dice.choice((1.0, 0.5)) if coarse else dice.random()
            row.append(value)
        rows.append(row)
    return rows
