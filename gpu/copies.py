"""Copy proposals: what followed the last few tokens when they stood in the request's own text before.

Of the n-grams of 5 down to 2 tokens that end the text, the longest that occurs earlier is taken, at its most recent
earlier occurrence. The proposals are the tokens after that occurrence; where they reach the end of the text they go on
with the proposals themselves, so that a text that repeats itself is continued. The twin is gpu/reference/copies.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LONGEST = 5
SHORTEST = 2
_BASE = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_SIZES = range(SHORTEST, LONGEST + 1)


class CopyIndex:
    """A text that grows, and where each of its n-grams was last followed by a token. O(1) per token.

    n-grams are looked up by a 64-bit hash; a hit is compared with the tokens themselves.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._tokens = list(token_ids)
        self._next = {size: self._all_followed(size) for size in _SIZES}

    def extend(self, token_ids: Sequence[int]) -> None:
        """The text goes on with `token_ids`."""
        for token in token_ids:
            for size, key in self._suffix_keys():
                self._next[size][key] = len(self._tokens)
            self._tokens.append(token)

    def propose(self, limit: int) -> list[int]:
        """Up to `limit` token ids that the text suggests; empty without a match."""
        tokens = self._tokens
        for size, key in reversed(self._suffix_keys()):
            at = self._next[size].get(key)
            if at is not None and tokens[at - size : at] == tokens[-size:]:
                return _repeated(tokens[at : at + limit], limit)
        return []

    def _suffix_keys(self) -> list[tuple[int, int]]:
        """(size, hash) of the n-grams that end the text, shortest first."""
        keys, key, power = [], 0, 1
        for size, token in enumerate(reversed(self._tokens[-LONGEST:]), start=1):
            key = (key + token * power) & _MASK
            power = power * _BASE & _MASK
            if size >= SHORTEST:
                keys.append((size, key))
        return keys

    def _all_followed(self, size: int) -> dict[int, int]:
        """Hash of each n-gram of `size` tokens that a token follows -> that token's position, the last one's."""
        count = len(self._tokens) - size
        if count < 1:
            return {}
        tokens = np.array(self._tokens, dtype=np.uint64)
        keys, power = np.zeros(count, dtype=np.uint64), 1
        for back in range(size):
            keys += tokens[size - 1 - back : size - 1 - back + count] * np.uint64(power)
            power = power * _BASE & _MASK
        return dict(zip(keys.tolist(), range(size, size + count), strict=True))


def _repeated(tokens: list[int], limit: int) -> list[int]:
    """`tokens`, repeated up to `limit` of them."""
    return (tokens * -(-limit // len(tokens)))[:limit] if tokens else []
