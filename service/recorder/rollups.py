"""Completed plans of one transaction summed for `plan_minutes`, where they are added to what is there."""

from __future__ import annotations

from typing import Any, NamedTuple

from service.recorder.rows import PLAN_COLUMN, Row
from service.store.buckets import DEVICE_BUCKETS, device_bucket

_GROUP = slice(PLAN_COLUMN["kind"], PLAN_COLUMN["reason"] + 1)
"""Where a row of plans holds its shape and reason."""
_COST_MS, _OUTCOME = PLAN_COLUMN["selected_cost_ms"], PLAN_COLUMN["outcome"]
_COMPLETED_AT, _DEVICE_MS = PLAN_COLUMN["completed_at"], PLAN_COLUMN["device_ms"]
_OUTPUT = PLAN_COLUMN["output_tokens"]
_COUNTED = "completed"
"""Plans of any other outcome have no device time worth a histogram."""
_SUMS = 5


class Completion(NamedTuple):
    """What a plan's end adds to its minute. `completed_at` is as the dialect stores it."""

    completed_at: Any
    outcome: str
    device_ms: float
    output_tokens: int


class MinuteSums:
    """One row of plan_minutes for each minute, shape and reason that the plans of a run touch."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._sums: dict[tuple[Any, ...], Row] = {}

    def add_row(self, row: Row) -> None:
        """Count a row of plans, if it is completed."""
        end = Completion(row[_COMPLETED_AT], row[_OUTCOME], row[_DEVICE_MS], row[_OUTPUT])
        self.add(tuple(row[_GROUP]), row[_COST_MS], end)

    def add(self, group: tuple[Any, ...], selected_cost_ms: float, end: Completion) -> None:
        """Count a plan with this shape and reason, if it is completed."""
        if end.outcome != _COUNTED:
            return
        key = (minute_of(end.completed_at), self._run_id, *group)
        sums = self._sums.get(key)
        if sums is None:
            sums = self._sums[key] = [0, 0.0, end.device_ms, 0.0, 0, *([0] * len(DEVICE_BUCKETS))]
        sums[0] += 1
        sums[1] += end.device_ms
        sums[2] = max(sums[2], end.device_ms)
        sums[3] += selected_cost_ms
        sums[4] += end.output_tokens
        sums[_SUMS + device_bucket(end.device_ms)] += 1

    def rows(self) -> list[Row]:
        """Every column of plan_minutes, in its order."""
        return [[*key, *sums] for key, sums in self._sums.items()]


def minute_of(at: Any) -> Any:
    """The minute of a UTC time, either as the dialect stores it."""
    return f"{at[:16]}:00.000000" if isinstance(at, str) else at.replace(second=0, microsecond=0)
