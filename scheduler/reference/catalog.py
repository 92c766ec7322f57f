"""The prepared graphs and what has been measured of their durations (S1, S6)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from scheduler.errors import InvalidCatalog, InvalidObservation
from scheduler.plans import CostState
from scheduler.reference.decision import Graph
from scheduler.shapes import GraphKind, GraphShape

WINDOW_SAMPLES = 9
DEFAULT_TTL_NS = 30_000_000_000
MAX_DURATION_NS = 3_600_000_000_000


@dataclasses.dataclass(slots=True)
class _Entry:
    """`samples`: the last nine valid durations, oldest first."""

    samples: list[int] = dataclasses.field(default_factory=list)
    duration_ns: int = 0
    observed_ns: int | None = None
    attempted_ns: int | None = None


class ReferenceCatalog:
    """Every prepared shape, in the catalog's own order, with its measured duration.

    Raises InvalidCatalog for an empty catalog or a shape that is listed twice.
    """

    def __init__(self, shapes: Iterable[GraphShape], ttl_ns: int = DEFAULT_TTL_NS) -> None:
        self.shapes = tuple(shapes)
        if not self.shapes:
            raise InvalidCatalog("the catalog holds no graph; prepare at least one shape")
        self._position = {shape: i for i, shape in enumerate(self.shapes)}
        if len(self._position) != len(self.shapes):
            raise InvalidCatalog("the catalog lists a shape twice")
        self._entries = [_Entry() for _ in self.shapes]
        self.usable = [True] * len(self.shapes)
        self.ttl_ns = ttl_ns

    def of_kind(self, kind: GraphKind) -> Sequence[GraphShape]:
        """The shapes of one kind, in catalog order."""
        return [shape for shape in self.shapes if shape.kind is kind]

    def position(self, shape: GraphShape) -> int:
        """The shape's place in the catalog's order; raises InvalidCatalog when it is not prepared."""
        if shape not in self._position:
            raise InvalidCatalog(f"{shape.label} is not in the catalog")
        return self._position[shape]

    def estimate(self, shape: GraphShape, now_ns: int) -> Graph:
        """What is known about `shape` at `now_ns`; stale after `ttl_ns` without a valid sample."""
        return self._graph(self.position(shape), now_ns)

    def graphs(self, now_ns: int) -> tuple[Graph, ...]:
        """Every shape with its estimate, in catalog order."""
        return tuple(self._graph(position, now_ns) for position in range(len(self.shapes)))

    def _graph(self, position: int, now_ns: int) -> Graph:
        entry = self._entries[position]
        return Graph(
            shape=self.shapes[position],
            position=position,
            usable=self.usable[position],
            duration_ns=entry.duration_ns,
            observed_ns=entry.observed_ns,
            attempted_ns=entry.attempted_ns,
            state=self._state(entry, now_ns),
        )

    def _state(self, entry: _Entry, now_ns: int) -> CostState:
        if entry.observed_ns is None:
            return CostState.UNKNOWN
        return CostState.FRESH if now_ns - entry.observed_ns <= self.ttl_ns else CostState.STALE

    def load(self, entries: Sequence[tuple[list[int], int, int]]) -> None:
        """Takes over per shape its samples, its last valid observation and its last attempt in ns, -1 without one."""
        for entry, (samples, observed_ns, attempted_ns) in zip(self._entries, entries, strict=True):
            entry.samples = list(samples)
            entry.duration_ns = median(entry.samples) if samples else 0
            entry.observed_ns = None if observed_ns < 0 else observed_ns
            entry.attempted_ns = None if attempted_ns < 0 else attempted_ns

    def attempt(self, shape: GraphShape, now_ns: int) -> None:
        """Notes that a timing refresh of `shape` was committed."""
        self._entries[self.position(shape)].attempted_ns = now_ns

    def observe(self, shape: GraphShape, duration_ns: int, now_ns: int) -> Graph:
        """Adds one sample: the median of the last nine while fresh, a replacement once stale (S6).

        A duration of 0 (none was measured) changes nothing. Raises InvalidObservation for anything that is no
        whole number of ns from 0 to one hour.
        """
        if isinstance(duration_ns, bool) or not isinstance(duration_ns, int) or not 0 <= duration_ns <= MAX_DURATION_NS:
            raise InvalidObservation(f"{shape.label}: a duration of {duration_ns!r} ns; allowed are 0 to one hour")
        entry = self._entries[self.position(shape)]
        if duration_ns > 0:
            fresh = self._state(entry, now_ns) is CostState.FRESH
            kept = entry.samples[-(WINDOW_SAMPLES - 1) :] if fresh else []
            entry.samples = [*kept, duration_ns]
            entry.duration_ns = median(entry.samples)
            entry.observed_ns = now_ns
        return self.estimate(shape, now_ns)


def median(samples: list[int]) -> int:
    """The middle sample, or the mean of the middle pair (rounded down to a whole ns)."""
    ordered = sorted(samples)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) // 2
