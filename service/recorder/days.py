"""Which days a run's plans lie on, so that PostgreSQL looks for a plan in that day's partition only.

A plan is looked for by run and fence, which says nothing of its day: without one the server tries the index of every
partition, for every plan and lane that ends. The writer remembers the days of what it stored itself, which is nearly
all that it is asked for later; the plans that were in flight when a recorder started are looked for everywhere.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence

DAY_US = 86_400_000_000
YEAR_2000 = dt.date(2000, 1, 1)
RUN_DAYS = "recorder_run_days"
"""In a PostgreSQL connection's info: the RunDays of the writer that uses it."""


def date_of(day: int) -> dt.date:
    """The date of a number of days since 2000-01-01, which is what PostgreSQL stores of a date."""
    return YEAR_2000 + dt.timedelta(days=day)


class RunDays:
    """The fences that one writer stored of its newest run, by day. Days are numbers as `date_of` takes them.

    Fences rise in the journal, so that a fence above those of the first call belongs to a plan that was noted, or to
    none that is stored.
    """

    def __init__(self) -> None:
        self._run_id: str | None = None
        self._known_above = 0
        self._ranges: dict[int, tuple[int, int]] = {}

    def note(self, run_id: str, fences: Sequence[int], days: Sequence[int]) -> None:
        """Plans that are about to be stored, the day of each; they may be refused afterwards."""
        lowest, highest = min(fences), max(fences)
        if run_id != self._run_id:
            self._run_id, self._known_above, self._ranges = run_id, highest, {}
        first = days[0]
        if days.count(first) == len(days):  # as it nearly always is
            self._widen(first, lowest, highest)
            return
        for day, fence in zip(days, fences, strict=True):
            self._widen(day, fence, fence)

    def _widen(self, day: int, lowest: int, highest: int) -> None:
        before = self._ranges.get(day, (lowest, highest))
        self._ranges[day] = (min(before[0], lowest), max(before[1], highest))

    def between(self, run_id: str, fences: Collection[int]) -> tuple[int, int] | None:
        """The first and the last day on which these plans may lie; None when that is not known."""
        if not fences or run_id != self._run_id:
            return None
        lowest, highest = min(fences), max(fences)
        if lowest <= self._known_above:
            return None
        days = [day for day, (first, last) in self._ranges.items() if last >= lowest and first <= highest]
        return (min(days), max(days)) if days else None

    def condition(self, run_id: str, fences: Collection[int]) -> str:
        """` AND …` for a statement over one of the tables with days; empty when nothing is known.

        The days are in the text and not parameters: the server leaves the other partitions out when it plans.
        """
        found = self.between(run_id, fences)
        if found is None:
            return ""
        first, last = map(date_of, found)
        return f" AND recorded_on BETWEEN DATE '{first}' AND DATE '{last}'"
