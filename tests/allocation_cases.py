"""Seeded cases of device allocation, and what every one of its forms is run on and compared with."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import torch

from gpu.allocation.buffers import MAX_DRAFTS, MAX_LANES, RowAllocator
from gpu.reference import allocation as reference

SLOTS = 4096


@dataclasses.dataclass(frozen=True)
class Case:
    """`joint` float32 [lanes, depths]; `limits`, `slots` int64 [lanes]."""

    joint: np.ndarray
    limits: np.ndarray
    slots: np.ndarray
    target_rows: int

    def expected(self) -> list[int]:
        return reference.allocate_rows(self.joint.tolist(), self.limits.tolist(), self.slots.tolist(), self.target_rows)

    def rows_of(self, allocate: RowAllocator) -> list[int]:
        """What an allocator writes over a poisoned buffer; it leaves its inputs as they are."""
        inputs = [torch.from_numpy(array.copy()) for array in (self.joint, self.limits, self.slots)]
        rows = torch.full((len(self.limits),), -99)
        allocate(*inputs, self.target_rows, rows)
        given = (self.joint, self.limits, self.slots)
        assert [tensor.numpy().tobytes() for tensor in inputs] == [array.tobytes() for array in given]
        return rows.tolist()


def joint_scores(dice: random.Random, lanes: int, depths: int) -> np.ndarray:
    """float32 [lanes, depths]: products of confidences, coarse ones with many ties, edges, neighbours, rising ones."""
    draws = np.array([[dice.random() for _ in range(depths)] for _ in range(lanes)], dtype=np.float32)
    style = dice.randrange(8)
    if style <= 1:
        return np.cumprod(draws, axis=1, dtype=np.float32)
    if style == 2:
        return np.cumprod(np.ceil(draws * 2) / 2, axis=1, dtype=np.float32)  # powers of two
    if style == 3:
        return -np.sort(-np.floor(draws * 4) / 3, axis=1)  # 0, 1/3, 2/3, 1
    if style == 4:
        return np.full((lanes, depths), dice.choice((0.0, 1.0)), dtype=np.float32)
    if style == 5:
        steps = np.cumsum(np.floor(draws * 3), axis=1).astype(np.int32)
        return (np.float32(dice.choice((1.0, 0.3, 1e-40))).view(np.int32) - steps).clip(0).view(np.float32)
    if style == 6:
        return np.cumprod(draws < 0.8, axis=1, dtype=np.float32)  # 1 until the first 0
    return draws  # rising with depth here and there


def allocation_case(dice: random.Random, lanes: int | None = None, depths: int | None = None) -> Case:
    """Any case the scheduler could make, small if no sizes are given: limits 0, 1, full and more than D + 1."""
    lanes = lanes or dice.choice((1, 2, 2, 3, 4, 5, 8))
    depths = depths or dice.choice((1, 2, 3, 5, 7, 8))
    kinds = dice.choice(((depths + 1,), (0, depths + 1), (0, 1, 2, depths + 1), (1,), range(depths + 4)))
    limits = np.array([dice.choice(kinds) for _ in range(lanes)], dtype=np.int64)
    slots = np.array(dice.sample(range(SLOTS), lanes), dtype=np.int64)
    if dice.random() < 0.3:
        slots[limits == 0] = dice.choice((-1, 0, SLOTS))  # nobody promises anything about inactive lanes
    active = int((limits > 0).sum())
    most = int(np.minimum(limits, depths + 1).sum())
    between = dice.randint(active, most)
    rows = dice.choice((active, active + 1, between, between, between, max(most - 1, active), most, most + 5))
    return Case(joint_scores(dice, lanes, depths), limits, slots, rows)


def allocation_cases(seed: int, small: int, large: int) -> list[Case]:
    """`small` cases of up to eight lanes, `large` ones of many lanes or drafts, the largest among them."""
    dice = random.Random(seed)
    cases = [allocation_case(dice) for _ in range(small)]
    sizes = [(MAX_LANES, 7), (33, 5), (MAX_LANES - 1, 1), (3, MAX_DRAFTS), (2, 33), (17, 32)]
    cases += [allocation_case(dice, *sizes[i % len(sizes)]) for i in range(large)]
    return cases if large == 0 else [*cases, allocation_case(dice, MAX_LANES, MAX_DRAFTS)]
