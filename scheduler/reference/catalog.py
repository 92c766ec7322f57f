"""The prepared graphs and what has been measured of their durations (S1, S6)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from scheduler.errors import InvalidCatalog, InvalidObservation
from scheduler.plans import CostState
from scheduler.shapes import GraphKind, GraphShape

WINDOW_SAMPLES = 9
DEFAULT_TTL_NS = 30_000_000_000
MAX_DURATION_NS = 3_600_000_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class CostEstimate:
    """`duration_ns` is 0 while unknown; `observed_ns` is the time of the last valid sample, None while unknown."""

    duration_ns: int
    observed_ns: int | None
    state: CostState

    @property
    def known(self) -> bool:
        """Measured at least once; a stale measurement is still known (S6)."""
        return self.state is not CostState.UNKNOWN


_UNKNOWN = CostEstimate(0, None, CostState.UNKNOWN)


@dataclasses.dataclass(slots=True)
class _Entry:
    """`samples`: the last nine valid durations, oldest first; never empty once `observed_ns` is set."""

    samples: list[int] = dataclasses.field(default_factory=list)
    duration_ns: int = 0
    observed_ns: int | None = None


class Catalog:
    """Every prepared shape, in the catalog's own order, with its measured duration.

    Durations always start unknown, whatever was measured elsewhere. Raises InvalidCatalog for an empty catalog
    or a shape that is listed twice.
    """

    def __init__(self, shapes: Iterable[GraphShape], ttl_ns: int = DEFAULT_TTL_NS) -> None:
        self._shapes = tuple(shapes)
        if not self._shapes:
            raise InvalidCatalog("the catalog holds no graph; prepare at least one shape")
        self._position = {shape: i for i, shape in enumerate(self._shapes)}
        if len(self._position) != len(self._shapes):
            twice = next(s for s in self._shapes if self._shapes.count(s) > 1)
            raise InvalidCatalog(f"the catalog lists {twice.label} twice")
        self._entries = [_Entry() for _ in self._shapes]
        self._by_kind = {kind: tuple(s for s in self._shapes if s.kind is kind) for kind in GraphKind}
        self.ttl_ns = ttl_ns

    @property
    def shapes(self) -> tuple[GraphShape, ...]:
        """Every shape, in catalog order."""
        return self._shapes

    def of_kind(self, kind: GraphKind) -> Sequence[GraphShape]:
        """The shapes of one kind, in catalog order."""
        return self._by_kind[kind]

    def position(self, shape: GraphShape) -> int:
        """The shape's place in the catalog's order; raises InvalidCatalog when it is not prepared."""
        try:
            return self._position[shape]
        except KeyError:
            raise InvalidCatalog(f"{shape.label} is not in the catalog") from None

    def estimate(self, shape: GraphShape, now_ns: int) -> CostEstimate:
        """What is known about `shape` at `now_ns`; stale after `ttl_ns` without a valid sample."""
        entry = self._entries[self.position(shape)]
        if entry.observed_ns is None:
            return _UNKNOWN
        fresh = now_ns - entry.observed_ns <= self.ttl_ns
        return CostEstimate(entry.duration_ns, entry.observed_ns, CostState.FRESH if fresh else CostState.STALE)

    def observe(self, shape: GraphShape, duration_ns: int, now_ns: int) -> CostEstimate:
        """Adds one sample: the median of the last nine while fresh, a replacement once stale (S6).

        A duration of 0 (none was measured) changes nothing. Raises InvalidObservation for anything that is no
        whole number of ns from 0 to one hour.
        """
        if isinstance(duration_ns, bool) or not isinstance(duration_ns, int) or not 0 <= duration_ns <= MAX_DURATION_NS:
            raise InvalidObservation(f"{shape.label}: a duration of {duration_ns!r} ns; allowed are 0 to one hour")
        before = self.estimate(shape, now_ns)
        if duration_ns == 0:
            return before
        entry = self._entries[self.position(shape)]
        if before.state is CostState.FRESH:
            entry.samples = [*entry.samples[-(WINDOW_SAMPLES - 1) :], duration_ns]
        else:
            entry.samples = [duration_ns]
        entry.duration_ns = _median(entry.samples)
        entry.observed_ns = now_ns
        return self.estimate(shape, now_ns)


def _median(samples: list[int]) -> int:
    """The middle sample, or the mean of the middle pair (rounded down to a whole ns)."""
    ordered = sorted(samples)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) // 2
