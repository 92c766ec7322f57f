"""What a value that a caller gave must be before it is used: whole numbers, times and texts of the right type.

Types are checked because a wrong one would be found only later, when something has changed already: NaN compares as
neither too small nor too large, True counts as 1, and kernels take 64-bit integers only.
"""

from __future__ import annotations

from typing import TypeGuard

MAX_TIME_NS = 2**62 - 1
"""Times end here, after 146 years: what is added to one still is a 64-bit integer."""


def whole(value: object, low: int, high: int) -> TypeGuard[int]:
    """Whether `value` is an int, and no bool, from `low` to `high`."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def storable_text(value: object) -> TypeGuard[str]:
    """Whether `value` is text that can be written as UTF-8; a lone surrogate cannot."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
