"""What a real machine took, taken again: durations by shape, host time between steps, and accepted drafts.

A shape's step takes what a step of the same shape took about the same time of the recording, corrected by how the
shape's duration grew with the context. So noise, bursts and drift are those of the real machine. Shapes that never ran
take an estimate.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.shapes import GraphKind, GraphShape
from scheduler.simulation.acceptance import Survival
from scheduler.simulation.durations import Moment
from scheduler.simulation.errors import SimulationError

NEARBY = 16
"""A duration is drawn among so many samples before and behind the time of the step."""
DEFAULT_HOST_NS = 250_000
LARGEST_CHANGE = 0.5
"""How far a context may move a duration from a sample's, as a share of it."""
_PAIRS = 512
_LEAST_FOR_SLOPE = 24
_TABLE = 1 << 14


@dataclasses.dataclass(frozen=True, slots=True)
class ShapeSamples:
    """Executions of one shape in order of time: when each began (ns), how long it took (ns), its mean context (tokens).

    Raises SimulationError for columns of different lengths, no samples or durations that are none.
    """

    started_ns: Sequence[int]
    durations_ns: Sequence[int]
    contexts: Sequence[float]

    def __post_init__(self) -> None:
        if not len(self.started_ns) == len(self.durations_ns) == len(self.contexts) > 0:
            raise SimulationError("samples of a shape need a time, a duration and a context each, and one at least")
        if min(self.durations_ns) < 1:
            raise SimulationError("a recorded duration is at least 1 ns")


@dataclasses.dataclass(frozen=True, slots=True)
class Waits:
    """Times between events in order: when each began (ns) and how long it took (ns); may be empty.

    Raises SimulationError for columns of different lengths and times below 0.
    """

    began_ns: Sequence[int] = ()
    lengths_ns: Sequence[int] = ()

    def __post_init__(self) -> None:
        if len(self.began_ns) != len(self.lengths_ns) or min(self.lengths_ns, default=0) < 0:
            raise SimulationError("a wait needs a time and a length of at least 0 ns")


class _Nearby:
    """Draws places among samples near a time, in a sequence that the seed fixes."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._shifts: list[int] = generator.integers(-NEARBY, NEARBY + 1, _TABLE).tolist()
        self._drawn = 0

    def place(self, times_ns: Sequence[int], now_ns: int) -> int:
        """A place among `times_ns`, which rise and are not empty."""
        self._drawn += 1
        place = bisect.bisect_right(times_ns, now_ns) - 1 + self._shifts[self._drawn % _TABLE]
        return min(max(place, 0), len(times_ns) - 1)


class _Drawn:
    """One shape's durations, ready to be drawn."""

    __slots__ = ("contexts", "durations_ns", "per_token_ns", "started_ns")

    def __init__(self, samples: ShapeSamples, generator: np.random.Generator) -> None:
        durations = np.asarray(samples.durations_ns, dtype=np.float64)
        contexts = np.asarray(samples.contexts, dtype=np.float64)
        self.started_ns = list(samples.started_ns)
        self.durations_ns = list(samples.durations_ns)
        self.contexts = list(samples.contexts)
        self.per_token_ns = slope(contexts, durations, generator)

    def at(self, place: int, context_tokens: float) -> int:
        """The duration of the sample at `place`, as it would have been at this context; at most LARGEST_CHANGE off."""
        duration_ns = self.durations_ns[place]
        if not self.per_token_ns:
            return duration_ns
        change_ns = self.per_token_ns * (context_tokens - self.contexts[place])
        limit_ns = LARGEST_CHANGE * duration_ns
        return max(1, duration_ns + round(min(max(change_ns, -limit_ns), limit_ns)))


def slope(
    contexts: npt.NDArray[np.float64], durations_ns: npt.NDArray[np.float64], generator: np.random.Generator
) -> float:
    """Growth of the duration per token of context, ns: the median over pairs of samples; 0 where it is not seen.

    Outliers do not move a median. Few samples or one context say nothing. No more than LARGEST_CHANGE of the usual
    duration is put down to the usual context.
    """
    count = len(contexts)
    if count < _LEAST_FOR_SLOPE:
        return 0.0
    one, other = generator.integers(0, count, (2, _PAIRS))
    apart = np.abs(contexts[one] - contexts[other]) >= max(1.0, 0.1 * float(np.ptp(contexts)))
    if np.count_nonzero(apart) < _LEAST_FOR_SLOPE:
        return 0.0
    one, other = one[apart], other[apart]
    slopes = (durations_ns[one] - durations_ns[other]) / (contexts[one] - contexts[other])
    most = LARGEST_CHANGE * float(np.median(durations_ns)) / max(1.0, float(np.median(contexts)))
    return min(max(0.0, float(np.median(slopes))), most)


class RecordedDurations:
    """A DurationSource over recorded samples. `estimated_ns`: durations of shapes without any."""

    def __init__(
        self,
        samples: Mapping[GraphShape, ShapeSamples],
        estimated_ns: Mapping[GraphShape, int],
        seed: int = 0,
    ) -> None:
        generator = np.random.default_rng([seed, 5])
        self._shapes = {shape: _Drawn(of_shape, generator) for shape, of_shape in samples.items()}
        self._estimated_ns = dict(estimated_ns)
        self._by_id: dict[int, tuple[GraphShape, _Drawn | int]] = {}
        self.needs_context = any(drawn.per_token_ns for drawn in self._shapes.values())
        self._nearby = _Nearby(generator)
        self.estimated_steps = 0
        """Steps so far that took an estimate."""

    def duration_ns(self, plan: Any, context_tokens: float, now_ns: int) -> tuple[int, int]:
        """(device time, measured device time) in ns, the same here. Raises SimulationError for an unknown shape."""
        shape = plan.shape
        found = self._by_id.get(id(shape))
        if found is None:
            found = self._by_id[id(shape)] = (shape, self._of(shape))  # the shape is kept, so that its id stays its own
        drawn = found[1]
        if isinstance(drawn, int):
            self.estimated_steps += 1
            return drawn, drawn
        duration_ns = drawn.at(self._nearby.place(drawn.started_ns, now_ns), context_tokens)
        return duration_ns, duration_ns

    def _of(self, shape: GraphShape) -> _Drawn | int:
        drawn = self._shapes.get(shape)
        if drawn is not None:
            return drawn
        if shape not in self._estimated_ns:
            raise SimulationError(f"nothing says how long {shape.label} takes")
        return self._estimated_ns[shape]


@dataclasses.dataclass(frozen=True, slots=True)
class HostSamples:
    """What a recording says of the time between steps.

    `after_completion`: by kind, from the end of the step before to the start of one that was planned after it, while
    somebody could be served. `pauses`: by kind, from a queued step's plan and turn to its start. `idle`: from
    the plan to the start when the machine had been idle. `publications`: from a step's end until its output
    was visible.
    """

    after_completion: Mapping[GraphKind, Waits]
    pauses: Mapping[GraphKind, Waits]
    idle: Waits
    publications: Waits


class RecordedHost:
    """HostTimes as recorded. Where a kind was not seen, all kinds together say; where nothing was, DEFAULT_HOST_NS."""

    def __init__(self, samples: HostSamples, seed: int = 0) -> None:
        self._samples = samples
        self._nearby = _Nearby(np.random.default_rng([seed, 6]))
        self._any_completion = _together(samples.after_completion)
        self._any_pause = _together(samples.pauses)

    def prepare_ns(self, shape: GraphShape, moment: Moment, now_ns: int) -> int:
        """See HostTimes."""
        if moment is Moment.BESIDE:
            return self._drawn(self._samples.publications, now_ns)
        if moment is Moment.IDLE and self._samples.idle.lengths_ns:
            return self._drawn(self._samples.idle, now_ns)
        return self._drawn(self._samples.after_completion.get(shape.kind, self._any_completion), now_ns)

    def publish_ns(self, _shape: GraphShape, now_ns: int) -> int:
        """See HostTimes."""
        return self._drawn(self._samples.publications, now_ns)

    def pause_ns(self, shape: GraphShape, now_ns: int) -> int | None:
        """See HostTimes."""
        return self._drawn(self._samples.pauses.get(shape.kind, self._any_pause), now_ns)

    def _drawn(self, waits: Waits, now_ns: int) -> int:
        lengths = waits.lengths_ns
        return lengths[self._nearby.place(waits.began_ns, now_ns)] if lengths else DEFAULT_HOST_NS


def _together(by_kind: Mapping[GraphKind, Waits]) -> Waits:
    pairs = sorted(pair for waits in by_kind.values() for pair in zip(waits.began_ns, waits.lengths_ns, strict=True))
    return Waits([began for began, _ in pairs], [length for _, length in pairs])


def survival_of(offered: Sequence[int], accepted: Sequence[int], source: str) -> Survival | None:
    """The curve of recorded rounds: S_i is the chance that drafts 1 to i are all accepted; None without a draft.

    Each depth counts the rounds that verified a draft there behind accepted ones, so rounds that offered fewer say
    nothing about what lies deeper.
    """
    drafts, good = np.asarray(offered, dtype=np.int64), np.asarray(accepted, dtype=np.int64)
    curve: list[float] = []
    joint = 1.0
    for depth in range(1, int(drafts.max(initial=0)) + 1):
        tried = (drafts >= depth) & (good >= depth - 1)
        passed = np.count_nonzero(tried & (good >= depth))
        joint *= passed / np.count_nonzero(tried) if tried.any() else 0.0
        curve.append(joint)
    return Survival(tuple(curve), source, len(curve)) if curve else None


def estimate_by_neighbours(known_ns: Mapping[GraphShape, int], missing: Sequence[GraphShape]) -> dict[GraphShape, int]:
    """Durations of shapes that never ran, from measured ones of the same kind: linear in the rows that they compute.

    Beyond the measured sizes the nearest one's time per row goes on upwards, and downwards the nearest one's time. A
    shape whose kind was never measured gets none.
    """
    found: dict[GraphShape, int] = {}
    for shape in missing:
        points: dict[int, int] = {}
        for other, duration_ns in known_ns.items():
            if other.kind is shape.kind:
                rows = _rows(other)
                points[rows] = min(duration_ns, points.get(rows, duration_ns))
        if points:
            found[shape] = _interpolated(sorted(points.items()), _rows(shape))
    return found


def _rows(shape: GraphShape) -> int:
    return shape.physical_rows or shape.batch_capacity


def _interpolated(points: Sequence[tuple[int, int]], rows: int) -> int:
    (first, first_ns), (last, last_ns) = points[0], points[-1]
    if rows <= first:
        return first_ns
    if rows >= last:
        return round(last_ns * rows / last)
    place = bisect.bisect_right([at for at, _ in points], rows)
    (low, low_ns), (high, high_ns) = points[place - 1], points[place]
    return round(low_ns + (high_ns - low_ns) * (rows - low) / (high - low))
