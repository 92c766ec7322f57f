"""The prepared graphs and what has been measured of their durations (S1, S6)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from scheduler import layout
from scheduler.checks import MAX_TIME_NS, whole
from scheduler.errors import InvalidCatalog, InvalidObservation
from scheduler.plans import CostState
from scheduler.shapes import Allocation, GraphKind, GraphShape

WINDOW_SAMPLES = 9
DEFAULT_TTL_NS = 30_000_000_000
MAX_DURATION_NS = 3_600_000_000_000

KINDS = tuple(GraphKind)
ALLOCATIONS = tuple(Allocation)
_KIND_NUMBER = {kind: number for number, kind in enumerate(KINDS)}
_ALLOCATION_NUMBER = {allocation: number for number, allocation in enumerate(ALLOCATIONS)}


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


class Catalog:
    """Every prepared shape, in the catalog's own order, with its measured duration. It serves one scheduler.

    Durations always start unknown, whatever was measured elsewhere. `graphs` is the same as layout.GRAPH records, which
    kernels read; `capacities` are the distinct prompt capacities, ascending. Raises InvalidCatalog for an empty
    catalog, for what is no GraphShape and for a shape that is listed twice.
    """

    def __init__(self, shapes: Iterable[GraphShape], ttl_ns: int = DEFAULT_TTL_NS) -> None:
        self._shapes = tuple(shapes)
        if not self._shapes:
            raise InvalidCatalog("the catalog holds no graph; prepare at least one shape")
        for shape in self._shapes:
            if not isinstance(shape, GraphShape):
                raise InvalidCatalog(f"the catalog holds {shape!r}, which is no GraphShape")
        self._position = {shape: i for i, shape in enumerate(self._shapes)}
        if len(self._position) != len(self._shapes):
            twice = next(s for s in self._shapes if self._shapes.count(s) > 1)
            raise InvalidCatalog(f"the catalog lists {twice.label} twice")
        self._by_kind = {kind: tuple(s for s in self._shapes if s.kind is kind) for kind in GraphKind}
        self.ttl_ns = ttl_ns
        self.capacities = tuple(sorted({s.prefill_capacity for s in self._shapes if s.prefill_capacity}))
        self.graphs = _graph_records(self._shapes, self.capacities)
        # The same numbers as in `graphs`, as Python integers: reading those is ten times as fast.
        self._durations = [0] * len(self._shapes)
        self._observed = [-1] * len(self._shapes)
        self._duration_column, self._observed_column = self.graphs["duration_ns"], self.graphs["observed_ns"]
        self._log_column = self.graphs["log_ms"]
        self._samples: list[list[int]] = [[] for _ in self._shapes]

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
        """What is known at `now_ns`; stale after `ttl_ns` without a valid sample."""
        position = self.position(shape)
        observed_ns = self._observed[position]
        if observed_ns < 0:
            return _UNKNOWN
        return CostEstimate(self._durations[position], observed_ns, self.state_at(position, now_ns))

    def state_at(self, position: int, now_ns: int) -> CostState:
        """What is known at `now_ns` about the graph at a position of the catalog's order."""
        observed_ns = self._observed[position]
        if observed_ns < 0:
            return CostState.UNKNOWN
        return CostState.FRESH if now_ns - observed_ns <= self.ttl_ns else CostState.STALE

    def duration_ns(self, position: int) -> int:
        """The estimate of the graph at a position; 0 while unknown."""
        return self._durations[position]

    def smallest_known_ns(self, kind: GraphKind) -> int:
        """The smallest known duration of a kind, 0 while none is known."""
        known = (self._durations[self._position[shape]] for shape in self._by_kind[kind])
        return min((duration for duration in known if duration), default=0)

    def known_capacities(self, kind: GraphKind) -> list[tuple[int, int]]:
        """(prompt capacity, duration in ns) of the kind's measured graphs, in catalog order."""
        pairs = ((s.prefill_capacity, self._durations[self._position[s]]) for s in self._by_kind[kind])
        return [pair for pair in pairs if pair[1]]

    def any_fresh(self, kind: GraphKind, now_ns: int) -> bool:
        """Whether some graph of the kind has a fresh estimate."""
        return any(self.state_at(self._position[s], now_ns) is CostState.FRESH for s in self._by_kind[kind])

    def observe(self, shape: GraphShape, duration_ns: int, now_ns: int) -> CostEstimate:
        """Adds one sample: the median of the last nine while fresh, a replacement once stale (S6).

        A duration of 0 (none was measured) changes nothing. Raises InvalidObservation for anything that is no
        whole number of ns from 0 to one hour, and for a time that is no whole number of ns from 0.
        """
        if not whole(duration_ns, 0, MAX_DURATION_NS):
            raise InvalidObservation(f"{shape.label}: a duration of {duration_ns!r} ns; allowed are 0 to one hour")
        if not whole(now_ns, 0, MAX_TIME_NS):
            raise InvalidObservation(
                f"{shape.label}: observed at {now_ns!r} ns; times are whole ns from 0, below 2**62"
            )
        if duration_ns:
            self.add_sample(self.position(shape), duration_ns, now_ns)
        return self.estimate(shape, now_ns)

    def add_sample(self, position: int, duration_ns: int, now_ns: int) -> None:
        """observe() of a checked positive duration for the graph at a position."""
        samples = self._samples[position]
        if self.state_at(position, now_ns) is not CostState.FRESH:
            samples.clear()
        samples.append(duration_ns)
        del samples[:-WINDOW_SAMPLES]
        self._set(position, _median(samples), now_ns)

    def _set(self, position: int, duration_ns: int, observed_ns: int) -> None:
        self._durations[position] = duration_ns
        self._observed[position] = observed_ns
        self._duration_column[position] = duration_ns
        self._log_column[position] = math.log(duration_ns / 1e6) if duration_ns else 0.0
        self._observed_column[position] = observed_ns

    def export(self) -> list[tuple[list[int], int, int]]:
        """Per shape its samples, its last valid observation and its last attempted refresh, for a checkpoint."""
        attempted = self.graphs["attempted_ns"].tolist()
        return [(list(s), o, a) for s, o, a in zip(self._samples, self._observed, attempted, strict=True)]

    def load(self, entries: Sequence[tuple[list[int], int, int]]) -> None:
        """Takes over what export() gave. Raises InvalidCatalog when it is not of this many shapes."""
        if len(entries) != len(self._shapes):
            raise InvalidCatalog(f"estimates of {len(entries)} graphs for a catalog of {len(self._shapes)}")
        for position, (samples, observed_ns, attempted_ns) in enumerate(entries):
            self._samples[position] = list(samples)
            self._set(position, _median(samples) if samples else 0, observed_ns)
            self.graphs[position]["attempted_ns"] = attempted_ns


def _median(samples: list[int]) -> int:
    """The middle sample, or the mean of the middle pair (rounded down to a whole ns)."""
    ordered = sorted(samples)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) // 2


def _next_smaller(shape: GraphShape, shapes: Sequence[GraphShape], capacities: Sequence[int]) -> int:
    """The capacity index of the next smaller C of the shape's kind, -1 without one (S6 excludes by it)."""
    smaller = (other.prefill_capacity for other in shapes if other.kind is shape.kind)
    below = max((c for c in smaller if 0 < c < shape.prefill_capacity), default=0)
    return capacities.index(below) if below else -1


def _graph_records(shapes: Sequence[GraphShape], capacities: Sequence[int]) -> npt.NDArray[np.void]:
    """The shapes as layout.GRAPH records, none of them measured."""
    graphs = layout.zeros(layout.GRAPH, len(shapes))
    for row, shape in zip(graphs, shapes, strict=True):
        generation = shape.target_rows > 0
        row["kind"] = _KIND_NUMBER[shape.kind]
        row["batch"] = shape.batch_capacity
        row["depth"] = shape.draft_depth
        row["width"] = shape.target_width
        row["rows"] = shape.target_rows
        row["prompt"] = shape.prefill_capacity
        row["prompt_rows"] = shape.prompt_rows
        row["log_prompt"] = math.log(shape.prefill_capacity) if shape.prefill_capacity else 0.0
        row["capacity_index"] = capacities.index(shape.prefill_capacity) if shape.prefill_capacity else -1
        row["lane_width"] = shape.lane_width
        row["ragged"] = int(shape.ragged)
        row["allocation"] = _ALLOCATION_NUMBER[shape.allocation]
        row["estimator"] = layout.FORECAST if shape.allocation is Allocation.DEVICE else layout.ACCEPTANCE
        row["usable"] = 1
        row["below"] = _next_smaller(shape, shapes, capacities)
        row["physical"] = shape.physical_rows if generation or shape.prefill_capacity else shape.batch_capacity
        row["observed_ns"] = -1
        row["attempted_ns"] = -1
    return graphs
