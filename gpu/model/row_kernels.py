"""The compiled loops of gpu.model.row_operations. Importing this module compiles them, or reads numba's cache.

They call no other compiled function, so numba's cache, which looks at this file alone, is never stale.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

# Sums may be reordered, which vectorising them needs; NaN and infinity keep their meaning, since the check for finite
# logits relies on it.
_FASTMATH = {"reassoc", "contract", "arcp", "nsz"}

_ROWS, _WEIGHT, _HEADS = numba.float32[:, ::1], numba.float32[::1], numba.float32[:, :, ::1]

Float32 = npt.NDArray[np.float32]


@numba.njit(
    numba.void(_ROWS, _WEIGHT, numba.float32, _ROWS), cache=True, nogil=True, fastmath=_FASTMATH, error_model="numpy"
)
def norm_rows(x: Float32, weight: Float32, epsilon: float, normed: Float32) -> None:
    """Write x / sqrt(mean of squares + epsilon) * weight of each row of x [rows, width] to `normed` [rows, width]."""
    rows, width = x.shape
    for row in range(rows):
        values, result = x[row], normed[row]
        squares = np.float32(0)
        for part in range(width):
            squares += values[part] * values[part]
        scale = np.float32(1) / np.sqrt(squares / np.float32(width) + epsilon)
        for part in range(width):
            result[part] = values[part] * scale * weight[part]


@numba.njit(
    numba.void(_ROWS, _ROWS, _WEIGHT, numba.float32, _ROWS),
    cache=True,
    nogil=True,
    fastmath=_FASTMATH,
    error_model="numpy",
)
def add_and_norm_rows(x: Float32, addend: Float32, weight: Float32, epsilon: float, normed: Float32) -> None:
    """Add `addend` to x [rows, width], then as norm_rows()."""
    rows, width = x.shape
    for row in range(rows):
        values, more, result = x[row], addend[row], normed[row]
        squares = np.float32(0)
        for part in range(width):
            value = values[part] + more[part]
            values[part] = value
            squares += value * value
        scale = np.float32(1) / np.sqrt(squares / np.float32(width) + epsilon)
        for part in range(width):
            result[part] = values[part] * scale * weight[part]


@numba.njit(
    numba.void(_HEADS, _HEADS, _HEADS, _HEADS, _HEADS, _HEADS),
    cache=True,
    nogil=True,
    fastmath=_FASTMATH,
    error_model="numpy",
)
def split_heads(
    fused: Float32,
    cosines: Float32,
    sines: Float32,
    query: Float32,
    key: Float32,
    value: Float32,
) -> None:
    """Rotate queries and keys of `fused` [rows, queries + 2 * kv_heads, dim], and copy the values.

    `cosines` and `sines` [rows, 1, dim], the sines' first half negated. Writes `query` [rows, queries, dim], `key` and
    `value` [rows, kv_heads, dim].
    """
    rows, queries, dim = query.shape
    kv_heads, half = key.shape[1], dim // 2
    for row in range(rows):
        cosine, sine = cosines[row, 0], sines[row, 0]
        for head in range(queries + kv_heads):
            given = fused[row, head]
            turned = query[row, head] if head < queries else key[row, head - queries]
            for part in range(half):
                turned[part] = given[part] * cosine[part] + given[part + half] * sine[part]
            for part in range(half):
                turned[part + half] = given[part + half] * cosine[part + half] + given[part] * sine[part + half]
        for head in range(kv_heads):
            value[row, head] = fused[row, queries + kv_heads + head]
