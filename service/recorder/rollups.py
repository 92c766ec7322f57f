"""Completed plans of one transaction summed for `plan_minutes`, where they are added to what is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
        self._sums: dict[tuple[int, Row], list[Any]] = {}

    def add(self, group: Row, selected_cost_ms: float, end: Row) -> None:
        """Count a plan of this shape and reason, if it is completed. `end` as RowBuilder.plan_end makes it."""
        _, _, completed_ns, outcome, device_ms, _, _, _, output_tokens, *_ = end
        if outcome == _COUNTED:
            self._count(group, selected_cost_ms, completed_ns, device_ms, output_tokens)

    def add_plans(self, plans: Iterable[tuple[Row, float]], ends: Mapping[str, Iterable[Any]]) -> None:
        """Count those of the plans, each with its shape and reason and its cost, that are completed.

        `ends`: columns as PlanEnds has them.
        """
        columns = [ends[name] for name in ("outcome", "completed_ns", "device_ms", "output_tokens")]
        for (group, cost_ms), outcome, completed_ns, device_ms, output_tokens in zip(plans, *columns, strict=True):
            if outcome == _COUNTED:
                self._count(group, cost_ms, completed_ns, device_ms, output_tokens)

    def _count(
        self, group: Row, selected_cost_ms: float, completed_ns: int, device_ms: float, output_tokens: int
    ) -> None:
        key = (self._build.minute(completed_ns), group)
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
            (build.minute_start(minute), build.run_id, *group, *sums) for (minute, group), sums in self._sums.items()
        ]
