"""Wall time of a run's monotonic times."""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple

_EPOCH = dt.datetime(1970, 1, 1)
_LAST_NS = 1 << 63


class RunClock(NamedTuple):
    """Two clocks of one run read together, in ns; a wall clock that steps later changes nothing."""

    wall_ns: int
    monotonic_ns: int

    def wall(self, at_ns: int) -> int:
        """Wall time since the epoch in ns."""
        return self.wall_ns + at_ns - self.monotonic_ns

    def usable(self) -> bool:
        """Whether both readings are times that a row can hold."""
        return 0 <= self.wall_ns < _LAST_NS and 0 <= self.monotonic_ns < _LAST_NS

    def aware(self, at_ns: int) -> dt.datetime:
        """An aware UTC datetime. Raises OverflowError beyond year 9999."""
        return (_EPOCH + dt.timedelta(microseconds=self.wall(at_ns) // 1000)).replace(tzinfo=dt.UTC)
