"""gpu/sampling/philox.py in torch operations, which a CUDA graph can capture."""

from __future__ import annotations

import torch

from gpu.sampling.philox import KEY_STEPS, MULTIPLIERS, ROUNDS, WORD_MASK, Purpose


def device_uniforms(
    seed_low: torch.Tensor, seed_high: torch.Tensor, indices: torch.Tensor, purpose: Purpose
) -> torch.Tensor:
    """Numbers in [0, 1): float64 [entries], for int64 [entries] halves of the seeds and output tokens' numbers.

    Words are int64. A product of two 32-bit words may pass 2**63 and wrap; its bits are those of the unsigned one.
    """
    word_0, word_1 = indices & WORD_MASK, indices >> 32
    word_2, word_3 = torch.full_like(indices, int(purpose)), torch.zeros_like(indices)
    for turn in range(ROUNDS):
        first, second = word_0 * MULTIPLIERS[0], word_2 * MULTIPLIERS[1]
        word_0 = _high(second) ^ word_1 ^ (seed_low + turn * KEY_STEPS[0] & WORD_MASK)
        word_2 = _high(first) ^ word_3 ^ (seed_high + turn * KEY_STEPS[1] & WORD_MASK)
        word_1, word_3 = second & WORD_MASK, first & WORD_MASK
    return ((word_0 >> 5).double() * 67108864.0 + (word_1 >> 6).double()) / 9007199254740992.0


def _high(product: torch.Tensor) -> torch.Tensor:
    return product >> 32 & WORD_MASK
