"""The obvious form of gpu/copies.py: looks through the whole text for every proposal."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 5
SHORTEST = 2


def propose(token_ids: Sequence[int], limit: int) -> list[int]:
    """Up to `limit` token ids that followed the longest earlier occurrence of the text's end, the latest of these.

    Proposals that reach the end of the text go on with the proposals themselves.
    """
    text = list(token_ids)
    for size in range(LONGEST, SHORTEST - 1, -1):
        for start in range(len(text) - size - 1, -1, -1):
            if text[start : start + size] == text[len(text) - size :]:
                going_on = list(text)
                for offset in range(limit):
                    going_on.append(going_on[start + size + offset])
                return going_on[len(text) :]
    return []
