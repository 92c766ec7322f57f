"""True durations of steps: what the device takes, apart from what the scheduler has measured so far."""

from __future__ import annotations

import dataclasses
import enum
import math
import zlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from scheduler.shapes import GraphShape
from scheduler.simulation.errors import SimulationError
from scheduler.simulation.measured import ContextCurve

NS_PER_MS = 1_000_000
_TABLE = 1 << 14


class Moment(enum.Enum):
    """When a step is prepared: after a completion, beside a running step, or for who comes to an idle machine."""

    COMPLETION = "completion"
    BESIDE = "beside"
    IDLE = "idle"


class StepCost(Protocol):
    """How long a step takes on an undisturbed device."""

    needs_context: bool

    def step_ms(self, plan: Any, context_tokens: float, /) -> float:
        """Time in ms for the plan's physical work at this mean context."""


class HostTimes(Protocol):
    """What passes between steps beside the device's work. Times in ns; `now_ns` is the host's clock."""

    def prepare_ns(self, shape: GraphShape, moment: Moment, now_ns: int, /) -> int:
        """From when the host can plan the step until the device has it; what was completed before is visible then."""

    def publish_ns(self, shape: GraphShape, now_ns: int, /) -> int:
        """From the step's completion until its output is visible, when no step follows."""

    def pause_ns(self, shape: GraphShape, now_ns: int, /) -> int | None:
        """From when a step that was queued behind another could start, planned and its turn, until it does.

        None: it starts as soon as the device has it.
        """


class PaddedCost:
    """A prepared graph takes its measured time, whoever is in it.

    With `by_context` the time follows the mean context of the plan's decoders; otherwise it is the one at the reference
    context.
    """

    def __init__(self, curves: Mapping[GraphShape, ContextCurve], by_context: bool = False) -> None:
        self.needs_context = by_context
        self._curves = dict(curves)
        self._fixed_ms = {shape: curve.reference_ms for shape, curve in curves.items()}
        # A shape's hash is computed in Python; its identity is free. The shapes are kept alive by _curves.
        self._by_id = {id(shape): (curve, self._fixed_ms[shape]) for shape, curve in self._curves.items()}

    def step_ms(self, plan: Any, context_tokens: float) -> float:
        found = self._by_id.get(id(plan.shape))
        curve, fixed_ms = found if found is not None else (self._curves[plan.shape], self._fixed_ms[plan.shape])
        return curve.at(context_tokens) if self.needs_context else fixed_ms


@dataclasses.dataclass(frozen=True, slots=True)
class Disturbance:
    """What makes a real device differ from its catalog; all zero by default.

    `noise`: standard deviation of the logarithm of each duration; its median stays. `drift`: amplitude of a slow
    sinusoidal change, as a share, with `drift_period_s` and a phase of its own for each graph. `wrong_capture`: label
    of a graph (`prefill:B1:C4096`) whose first `wrong_samples` measurements read `wrong_factor` times too long while
    its execution is as it is.
    """

    noise: float = 0.0
    drift: float = 0.0
    drift_period_s: float = 600.0
    wrong_capture: str = ""
    wrong_factor: float = 1.6
    wrong_samples: int = 9

    def __post_init__(self) -> None:
        for field, low, high in (("noise", 0, 2), ("drift", 0, 0.9), ("drift_period_s", 1e-3, 1e9)):
            if not low <= getattr(self, field) <= high:
                raise SimulationError(f"{field} is {getattr(self, field):g}; it must be from {low:g} to {high:g}")
        if not (0.01 <= self.wrong_factor <= 100 and self.wrong_samples >= 0):
            raise SimulationError("a wrong capture needs a factor from 0.01 to 100 and at least 0 samples")


class TrueDurations:
    """A DurationSource: an undisturbed cost with a Disturbance on top, seeded."""

    def __init__(self, cost: StepCost, disturbance: Disturbance | None = None, seed: int = 0) -> None:
        self._cost = cost
        self.needs_context = cost.needs_context
        self._disturbance = disturbance if disturbance is not None else Disturbance()
        self._steps = 0
        self._wrong_left = self._disturbance.wrong_samples if self._disturbance.wrong_capture else 0
        generator = np.random.default_rng([seed, 1])
        self._factors: list[float] = np.exp(self._disturbance.noise * generator.standard_normal(_TABLE)).tolist()
        self._phase_seed = seed

    def duration_ns(self, plan: Any, context_tokens: float, now_ns: int) -> tuple[int, int]:
        """(device time, measured device time) in ns; each call is one execution."""
        settings = self._disturbance
        duration_ms = self._cost.step_ms(plan, context_tokens)
        if settings.noise:
            duration_ms *= self._factors[self._steps % _TABLE]
            self._steps += 1
        if settings.drift:
            turn = 2 * math.pi * now_ns / (settings.drift_period_s * 1e9)
            duration_ms *= 1 + settings.drift * math.sin(turn + self._phase(plan.shape))
        true_ns = max(1, round(duration_ms * NS_PER_MS))
        return true_ns, self.measured_ns(plan.shape, true_ns) if self._wrong_left else true_ns

    def measured_ns(self, shape: GraphShape, true_ns: int) -> int:
        """What a measurement of an execution of `true_ns` reads; a wrong capture's count goes down by one."""
        if self._wrong_left and shape.label == self._disturbance.wrong_capture:
            self._wrong_left -= 1
            return round(true_ns * self._disturbance.wrong_factor)
        return true_ns

    def _phase(self, shape: GraphShape) -> float:
        """A phase in [0, 2 pi) of the shape's own; the same on every machine."""
        text = f"{self._phase_seed}:{shape.label}".encode()
        return zlib.crc32(text) % 6283 / 1000


@dataclasses.dataclass(frozen=True, slots=True)
class HostCosts:
    """Host and launch time of one step in ms, during which the step does not run on the device yet.

    A step without drafts costs `step_ms`; one with D drafts `draft_step_ms + draft_token_ms * D`: what the public
    measurements behind the catalogs need to reach end-to-end step times.
    """

    step_ms: float = 0.25
    draft_step_ms: float = 0.9
    draft_token_ms: float = 0.14

    def __post_init__(self) -> None:
        for field in ("step_ms", "draft_step_ms", "draft_token_ms"):
            if not 0 <= getattr(self, field) <= 1e6:
                raise SimulationError(f"{field} is {getattr(self, field):g}; it must be from 0 to 1e6")

    def prepare_ns(self, shape: GraphShape, _moment: Moment, _now_ns: int) -> int:
        """The step's host time, whenever it is prepared."""
        return self.step_ns(shape.draft_depth)

    def publish_ns(self, shape: GraphShape, _now_ns: int) -> int:
        """One more host time."""
        return self.step_ns(shape.draft_depth)

    def pause_ns(self, _shape: GraphShape, _now_ns: int) -> int | None:
        """None: only the host takes time."""
        return None

    def step_ns(self, draft_depth: int) -> int:
        """Host time of a step with so many drafts, ns."""
        ms = self.draft_step_ms + self.draft_token_ms * draft_depth if draft_depth else self.step_ms
        return round(ms * NS_PER_MS)
