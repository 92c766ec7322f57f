"""Arithmetic on bins of time. Pure: many plans become sums, and the longest of them stay marks of their own."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Sequence

SECOND_US = 1_000_000
_STEPS_US = (
    *(step * scale for scale in (1, 10, 100, 1_000, 10_000, 100_000) for step in (1, 2, 5)),
    *(seconds * SECOND_US for seconds in (1, 2, 5, 10, 15, 30)),
    *(minutes * 60 * SECOND_US for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * 3600 * SECOND_US for hours in (1, 2, 3, 6, 12, 24, 48, 168, 720)),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Bin:
    """Plans of one group that were committed in one stretch of time, in one frame slot; None: of both slots.

    `number`: of the stretch, which begins `number * width` after 1970. `group`: a kind or a reason.
    """

    number: int
    slot: int | None
    group: str
    plans: int
    busy_ns: int


@dataclasses.dataclass(frozen=True, slots=True)
class Extreme:
    """The longest plan of a bin, or the longest gap, which ended when the plan began.

    `fence` and `run_id` are None where only the length is known. `at_us`: its commit, since 1970.
    """

    number: int
    slot: int | None
    group: str
    length_ns: int
    at_us: int
    run_id: str | None = None
    fence: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Binned:
    """What was aggregated: sums, and what none of them may hide. `width_us`: of a bin."""

    width_us: int
    bins: Sequence[Bin]
    longest: Sequence[Extreme]
    gaps: Sequence[Extreme]

    @property
    def plans(self) -> int:
        """How many plans the bins hold."""
        return sum(one.plans for one in self.bins)

    @property
    def marks(self) -> int:
        """How many marks it takes to draw them."""
        return len(self.bins) + len(self.longest) + len(self.gaps)


def width_for(span_us: int, most: int, least_us: int = 1) -> int:
    """A round width of bins, in µs, so that a span holds about `most` of them; at least `least_us`."""
    wanted = max(least_us, -(-span_us // most))
    index = bisect.bisect_left(_STEPS_US, wanted)
    if index < len(_STEPS_US):
        return _STEPS_US[index]
    return -(-wanted // _STEPS_US[-1]) * _STEPS_US[-1]


def at_most(binned: Binned, marks: int) -> Binned:
    """The same with bins twice as wide, as often as it takes to need at most `marks` marks."""
    while binned.marks > marks and len({one.number for one in binned.bins}) > 1:
        binned = _twice_as_wide(binned)
    return binned


def _twice_as_wide(binned: Binned) -> Binned:
    sums: dict[tuple[int, int | None, str], tuple[int, int]] = {}
    for one in binned.bins:
        key = (one.number // 2, one.slot, one.group)
        plans, busy = sums.get(key, (0, 0))
        sums[key] = (plans + one.plans, busy + one.busy_ns)
    bins = [Bin(*key, *values) for key, values in sums.items()]
    return Binned(binned.width_us * 2, bins, _in_halves(binned.longest), _in_halves(binned.gaps))


def _in_halves(marks: Sequence[Extreme]) -> list[Extreme]:
    return greatest(dataclasses.replace(mark, number=mark.number // 2) for mark in marks)


def greatest(marks: Iterable[Extreme]) -> list[Extreme]:
    """The longest of each bin and slot, in the order of time."""
    best: dict[tuple[int, int | None], Extreme] = {}
    for mark in marks:
        key = (mark.number, mark.slot)
        if key not in best or mark.length_ns > best[key].length_ns:
            best[key] = mark
    return sorted(best.values(), key=lambda mark: (mark.at_us, mark.slot or 0))
