"""Completed plans of one transaction summed for `plan_minutes`, where they are added to what is there."""

from __future__ import annotations

from typing import Any

from service.recorder.rows import Row, RowBuilder
from service.store.buckets import DEVICE_BUCKETS, device_bucket

_COUNTED = "completed"
"""Plans of any other outcome have no device time worth a histogram."""
_SUMS = 5


class MinuteSums:
    """One row of plan_minutes for each minute, shape and reason that the plans of a run touch."""

    def __init__(self, build: RowBuilder) -> None:
        self._build = build
        self._sums: dict[tuple[Any, ...], list[Any]] = {}

    def add(self, group: Row, selected_cost_ms: float, completed_ns: int, end: Row) -> None:
        """Count a plan of this shape and reason, if it is completed. `end` as RowBuilder.plan_end makes it."""
        outcome, device_ms, output_tokens = end[3], end[4], end[8]
        if outcome != _COUNTED:
            return
        key = (self._build.minute(completed_ns), *group)
        sums = self._sums.get(key)
        if sums is None:
            sums = self._sums[key] = [0, 0.0, device_ms, 0.0, 0, *([0] * len(DEVICE_BUCKETS))]
        sums[0] += 1
        sums[1] += device_ms
        sums[2] = max(sums[2], device_ms)
        sums[3] += selected_cost_ms
        sums[4] += output_tokens
        sums[_SUMS + device_bucket(device_ms)] += 1

    def rows(self) -> list[Row]:
        """Every column of plan_minutes, in its order."""
        build = self._build
        return [
            (build.minute_start(minute), build.run_id, *group, *sums) for (minute, *group), sums in self._sums.items()
        ]
