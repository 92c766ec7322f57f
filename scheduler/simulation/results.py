"""What a simulation leaves behind, as plain columns."""

from __future__ import annotations

import dataclasses
from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.shapes import GraphShape


@dataclasses.dataclass(slots=True)
class Tally:
    """Launches of one kind or for one reason."""

    launches: int = 0
    device_ns: int = 0


@dataclasses.dataclass(slots=True)
class Outcome:
    """One answered request. Times are ns on the simulation's clock, counts are tokens.

    `arrived_ns` to `admitted_ns` it waited for a slot. `first_ns` and `finished_ns`: its first and last output became
    visible. `largest_gap_ns`: the longest time between two of its visible outputs, 0 when there was one.
    """

    index: int
    client: str
    prompt_tokens: int
    arrived_ns: int
    cached_tokens: int = 0
    output_tokens: int = 0
    admitted_ns: int = 0
    first_ns: int = 0
    finished_ns: int = 0
    largest_gap_ns: int = 0


@dataclasses.dataclass(slots=True)
class SimulationResult:
    """`outcomes`: finished requests, in that order. `gaps_ns`: every time between two visible outputs of a request.

    `open`: those that had not ended when the run was stopped, with what they had; `waiting`: those without a slot then.
    `refused`: prompts that leave no room for an output token in the context. `truncated`: answers cut at the context.
    `left`: requests whose client left before the answer was complete; else only steps and their tokens count them.
    `first_arrival_ns`, `end_ns`: the first arrival and the last visible output. `busy_ns`: device time of all steps.
    `computed_prompt_tokens`: prompt tokens of all steps.
    `kinds`, `shapes` and `reasons` count the same steps by graph kind, shape label and plan reason.
    """

    outcomes: list[Outcome] = dataclasses.field(default_factory=list)
    gaps_ns: array[int] = dataclasses.field(default_factory=lambda: array("q"))
    open: list[Outcome] = dataclasses.field(default_factory=list)
    waiting: int = 0
    refused: int = 0
    truncated: int = 0
    left: int = 0
    first_arrival_ns: int = 0
    end_ns: int = 0
    busy_ns: int = 0
    plans: int = 0
    lanes: int = 0
    computed_prompt_tokens: int = 0
    offered_tokens: int = 0
    accepted_tokens: int = 0
    kinds: dict[str, Tally] = dataclasses.field(default_factory=dict)
    shapes: dict[str, Tally] = dataclasses.field(default_factory=dict)
    reasons: dict[str, Tally] = dataclasses.field(default_factory=dict)

    @property
    def over(self) -> int:
        """How many requests are over, in whatever way."""
        return len(self.outcomes) + self.refused + self.left

    def gap_array(self) -> npt.NDArray[np.int64]:
        """`gaps_ns` as an array, which shares its memory."""
        return np.frombuffer(self.gaps_ns, dtype=np.int64)


class Launches:
    """Counts steps by shape and reason while a simulation runs.

    Shapes are counted by identity, since their hash is computed in Python, and put together by label at the end.
    """

    def __init__(self) -> None:
        self._shapes: dict[int, tuple[GraphShape, Tally]] = {}
        self._reasons: dict[str, Tally] = {}

    def count(self, plan: Any, device_ns: int) -> None:
        """One step of so much device time."""
        shape = plan.shape
        found = self._shapes.get(id(shape))
        if found is None:
            found = self._shapes[id(shape)] = (shape, Tally())
        _add(found[1], 1, device_ns)
        reason = plan.reason.value
        if reason not in self._reasons:
            self._reasons[reason] = Tally()
        _add(self._reasons[reason], 1, device_ns)

    def write(self, result: SimulationResult) -> None:
        """Fills the result's tallies."""
        result.reasons = self._reasons
        for shape, tally in self._shapes.values():
            for tallies, name in ((result.kinds, shape.kind.value), (result.shapes, shape.label)):
                _add(tallies.setdefault(name, Tally()), tally.launches, tally.device_ns)


def _add(tally: Tally, launches: int, device_ns: int) -> None:
    tally.launches += launches
    tally.device_ns += device_ns
