"""Counter-based random numbers: Philox4x32 with 10 rounds, as in Salmon et al., "Parallel random numbers".

The key is the request's seed, the counter (output token's number, purpose). gpu/sampling/device_philox.py computes
the same numbers with torch operations.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD_MASK = 0xFFFFFFFF
SEED_MASK = (1 << 64) - 1

UInt64 = npt.NDArray[np.uint64]
Float64 = npt.NDArray[np.float64]

_MULTIPLIERS = np.array(MULTIPLIERS, dtype=np.uint64)[:, None]
_KEY_STEPS = np.arange(ROUNDS, dtype=np.uint64)[:, None, None] * np.array(KEY_STEPS, dtype=np.uint64)[:, None]
_WORD_MASK = np.uint64(WORD_MASK)
_WORD_BITS = np.uint64(32)


class Purpose(enum.IntEnum):
    """What a number is for; each purpose has its own stream."""

    TARGET = 0
    ACCEPT = 1
    DRAFT = 2


def uniform(seed: int, index: int, purpose: Purpose = Purpose.TARGET) -> float:
    """The number in [0, 1) that belongs to output token `index` of a request with this seed, for this purpose."""
    return float(uniforms([seed], [index], [purpose])[0])


def uniforms(seeds: list[int], indices: list[int], purposes: list[Purpose]) -> Float64:
    """One number in [0, 1) with 53 random bits per entry: float64 [entries]. Seeds count modulo 2**64."""
    key = _words([seed & SEED_MASK for seed in seeds])
    counter = _words(indices)
    # Words 0 and 2 are multiplied in each round, words 1 and 3 are not.
    multiplied = np.stack((counter[0], np.array(purposes, dtype=np.uint64)))
    others = np.stack((counter[1], np.zeros_like(counter[1])))
    round_keys = (key + _KEY_STEPS) & _WORD_MASK
    for round_key in round_keys:
        product = multiplied * _MULTIPLIERS
        multiplied = (product >> _WORD_BITS)[::-1] ^ others ^ round_key
        others = (product & _WORD_MASK)[::-1]
    high = (multiplied[0] >> np.uint64(5)).astype(np.float64)
    low = (others[0] >> np.uint64(6)).astype(np.float64)
    return np.asarray((high * 67108864.0 + low) / 9007199254740992.0)


def _words(numbers: list[int]) -> UInt64:
    """Low and high 32 bits of non-negative 64-bit numbers: uint64 [2, entries]."""
    values = np.array(numbers, dtype=np.uint64)
    return np.stack((values & _WORD_MASK, values >> _WORD_BITS))
