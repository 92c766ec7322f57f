"""How often each caller may ask for something expensive: a bucket of tokens for each, filled at a steady rate."""

from __future__ import annotations

import collections
import dataclasses


@dataclasses.dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float


class RateLimit:
    """`burst` calls at once, and `per_minute` from then on, for each caller by itself.

    Remembers `most_callers`, those who asked last; who is forgotten begins with a full bucket. Not for several threads.
    """

    def __init__(self, per_minute: float, burst: int, most_callers: int = 1024) -> None:
        self.per_minute = per_minute
        self.burst = burst
        self._most_callers = most_callers
        self._buckets: collections.OrderedDict[str, _Bucket] = collections.OrderedDict()

    def take(self, caller: str, now_s: float) -> float:
        """0 when the call may go on; else the seconds after which one may, and nothing was taken.

        `now_s` is of a clock that never goes back.
        """
        bucket = self._buckets.pop(caller, None) or _Bucket(self.burst, now_s)
        self._buckets[caller] = bucket
        while len(self._buckets) > self._most_callers:
            self._buckets.popitem(last=False)
        per_second = self.per_minute / 60
        bucket.tokens = min(self.burst, bucket.tokens + (now_s - bucket.filled_at) * per_second)
        bucket.filled_at = now_s
        if bucket.tokens >= 1:
            bucket.tokens -= 1
            return 0.0
        return (1 - bucket.tokens) / per_second
