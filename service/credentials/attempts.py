"""Failed attempts, counted for each address in bounded memory.

A right key always passes, so that nobody locks others out who share his address; guessing 256 random bits is hopeless
at any pace. What this bounds is the work and the log lines that wrong keys cause.
"""

from __future__ import annotations

import collections
import dataclasses

MOST_ADDRESSES = 1024
BURST = 10
RETURN_S = 6.0
"""After so long one more attempt is answered as usual."""
LOG_EVERY_S = 60.0


@dataclasses.dataclass(slots=True)
class _Address:
    left: float = BURST
    at_s: float = 0.0
    logged_s: float = float("-inf")
    unlogged: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """What to do about a failed attempt. `wait_s`: 0, or the caller is told to come back after so many seconds.

    `to_log`: failures since this address was last logged, 0 when nothing is to be logged now.
    """

    wait_s: int
    to_log: int


class FailedAttempts:
    """BURST failures at once, then one each RETURN_S, for each address; the least recent addresses are forgotten."""

    def __init__(self) -> None:
        self._addresses: collections.OrderedDict[str, _Address] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._addresses)

    def failed(self, address: str, now_s: float) -> Failure:
        """Counts one more failure of `address`; `now_s` on a clock that never goes back."""
        found = self._addresses.pop(address, None) or _Address(at_s=now_s)
        self._addresses[address] = found
        if len(self._addresses) > MOST_ADDRESSES:
            self._addresses.popitem(last=False)
        found.left = min(BURST, found.left + (now_s - found.at_s) / RETURN_S)
        found.at_s = now_s
        wait_s = 0
        if found.left >= 1.0:
            found.left -= 1.0
        else:
            wait_s = max(1, round((1.0 - found.left) * RETURN_S))
        found.unlogged += 1
        if now_s - found.logged_s < LOG_EVERY_S:
            return Failure(wait_s, 0)
        found.logged_s, count, found.unlogged = now_s, found.unlogged, 0
        return Failure(wait_s, count)
