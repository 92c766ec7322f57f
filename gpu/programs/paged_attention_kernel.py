"""The compiled loop of gpu.programs.paged_attention. Importing this module compiles it, or reads numba's cache.

It calls no other compiled function, so numba's cache, which looks at this file alone, is never stale.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

# Sums may be reordered, which vectorising them needs; NaN and infinity keep their meaning, since the check for finite
# logits relies on it.
_FASTMATH = {"reassoc", "contract", "arcp", "nsz"}

_ROWS = numba.float32[:, ::1]
_PAGES, _COUNTS, _QUERY = numba.int64[:, ::1], numba.int64[::1], numba.float32[:, :, ::1]
_SIGNATURE = numba.void(_ROWS, _ROWS, _QUERY, _PAGES, _COUNTS, numba.int64, numba.float32, _ROWS, _ROWS)


@numba.njit(_SIGNATURE, cache=True, nogil=True, fastmath=_FASTMATH, error_model="numpy")
def attend_rows(
    keys: npt.NDArray[np.float32],
    values: npt.NDArray[np.float32],
    query: npt.NDArray[np.float32],
    pages: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    page_tokens: int,
    scale: float,
    weights: npt.NDArray[np.float32],
    mixed: npt.NDArray[np.float32],
) -> None:
    """Attend one row per lane to the first counts[lane] tokens of its pages; zeros where that is 0.

    `keys`, `values` [KV rows, kv_heads * dim], `query` [lanes, heads, dim], `pages` [lanes, columns], `counts`
    [lanes], at most columns * page_tokens. Writes `mixed` [lanes, heads * dim]; `weights` [1, columns * page_tokens]
    is scratch.
    """
    lanes, heads, dim = query.shape
    group = heads * dim // keys.shape[1]
    weight = weights[0]
    for lane in range(lanes):
        count = counts[lane]
        for head in range(heads):
            asked = query[lane, head]
            first = head // group * dim
            top = np.float32(-np.inf)
            for start in range(0, count, page_tokens):
                shift = pages[lane, start // page_tokens] * page_tokens - start
                for token in range(start, min(start + page_tokens, count)):
                    key = keys[token + shift, first : first + dim]
                    score = np.float32(0)
                    for part in range(dim):
                        score += asked[part] * key[part]
                    weight[token] = score * scale
                    top = max(top, weight[token])
            total = np.float32(0)
            for token in range(count):
                weight[token] = np.exp(weight[token] - top)
                total += weight[token]
            result = mixed[lane, head * dim : (head + 1) * dim]
            result[:] = np.float32(0)
            for start in range(0, count, page_tokens):
                shift = pages[lane, start // page_tokens] * page_tokens - start
                for token in range(start, min(start + page_tokens, count)):
                    value = values[token + shift, first : first + dim]
                    share = weight[token] / total
                    for part in range(dim):
                        result[part] += share * value[part]
