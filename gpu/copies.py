"""Copy proposals: what followed the last few tokens when they stood in the request's own text before.

Of the n-grams of 5 down to 2 tokens that end the text, the longest that occurs earlier is taken, at its most recent
earlier occurrence. The proposals are the tokens after that occurrence; where they reach the end of the text they go on
with the proposals themselves, so that a text that repeats itself is continued. The twin is gpu/reference/copies.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

LONGEST = 5
SHORTEST = 2
_BASE = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_SIZES = range(SHORTEST, LONGEST + 1)


class CopyIndex:
    """A text that grows, and where each of its n-grams was last followed by a token.

    n-grams are looked up by a 64-bit hash; a hit is compared with the tokens themselves. Those of the text that it
    begins with are searched in an array: a dictionary of 32,768 tokens' took 35 ms to build, the array takes 0.8 ms.
    Those that come later are in a dictionary, O(1) per token.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._tokens = list(token_ids)
        text = np.array(self._tokens, dtype=np.uint64)
        self._first = {size: _followed_keys(text, size) for size in _SIZES}
        self._next: dict[int, dict[int, int]] = {size: {} for size in _SIZES}

    def extend(self, token_ids: Sequence[int]) -> None:
        """The text goes on with `token_ids`."""
        for token in token_ids:
            for size, key in self._suffix_keys():
                self._next[size][key] = len(self._tokens)
            self._tokens.append(token)

    def propose(self, limit: int) -> list[int]:
        """Up to `limit` token ids that the text suggests; empty without a match."""
        tokens, start = self._tokens, 0
        for size, key in self._suffix_keys():
            at = self._last_followed(size, key)
            if at is None:
                break  # nor does a longer n-gram occur
            if tokens[at - size : at] == tokens[-size:]:
                start = at
        return _repeated(tokens[start : start + limit], limit) if start else []

    def _suffix_keys(self) -> list[tuple[int, int]]:
        """(size, hash) of the n-grams that end the text, shortest first."""
        keys, key, power = [], 0, 1
        for size, token in enumerate(reversed(self._tokens[-LONGEST:]), start=1):
            key = (key + token * power) & _MASK
            power = power * _BASE & _MASK
            if size >= SHORTEST:
                keys.append((size, key))
        return keys

    def _last_followed(self, size: int, key: int) -> int | None:
        """The position of the token that last followed the n-gram with this hash."""
        at = self._next[size].get(key)
        if at is not None:
            return at
        found = np.flatnonzero(self._first[size] == np.uint64(key))
        return size + int(found[-1]) if len(found) else None


def _followed_keys(text: npt.NDArray[np.uint64], size: int) -> npt.NDArray[np.uint64]:
    """Hashes of the n-grams of `size` tokens that a token of `text` [n] follows: [n - size], in their order."""
    count = max(0, len(text) - size)
    keys, power = np.zeros(count, dtype=np.uint64), 1
    for back in range(size):
        keys += text[size - 1 - back : size - 1 - back + count] * np.uint64(power)
        power = power * _BASE & _MASK
    return keys


def _repeated(tokens: list[int], limit: int) -> list[int]:
    """`tokens`, repeated up to `limit` of them."""
    return (tokens * -(-limit // len(tokens)))[:limit] if tokens else []
