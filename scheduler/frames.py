"""Committed plans in flight (S10)."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scheduler import layout
from scheduler.plans import Reason, ScheduledPlan
from scheduler.shapes import Allocation, GraphKind

QUEUEABLE = frozenset({GraphKind.DECODE, GraphKind.SPECULATIVE})
"""Only these may occupy both frame slots."""
REASON_NUMBER = {reason: number for number, reason in enumerate(Reason)}


def row_reader(dtype: np.dtype[np.void]) -> struct.Struct:
    """Reads records of 64-bit integers and floats as tuples, in a fifth of the time that numpy takes."""
    return struct.Struct("".join("d" if dtype[name] == np.float64 else "q" for name in dtype.names or ()))


LANE_ROW = row_reader(layout.LANE)


class LaneColumns(NamedTuple):
    """A frame's lanes as Python numbers, in slot order. Ceilings and prompt tokens are token counts."""

    slots: Sequence[int]
    generations: Sequence[int]
    ceilings: Sequence[int]
    prompts: Sequence[int]

    @classmethod
    def of(cls, cohort: npt.NDArray[np.void]) -> LaneColumns:
        """The columns of layout.LANE records, one at least."""
        columns = zip(*LANE_ROW.iter_unpack(cohort.tobytes()), strict=True)
        slots, generations, _epochs, _rows, ceilings, prompts, _sources, _expected = columns
        return cls(slots, generations, ceilings, prompts)


@dataclasses.dataclass(slots=True)
class Frame:
    """One committed plan. `number`: its record in state.frames; `graph`: the shape's position in the catalog.

    `known`: its cost was known at commit; `queued`: another frame was in flight then; `lanes`: of its cohort.
    """

    number: int
    fence: int
    graph: int
    plan: ScheduledPlan
    known: bool
    queued: bool
    committed_ns: int
    expected_end_ns: int
    cohort: npt.NDArray[np.void]
    lanes: LaneColumns

    @property
    def cost_ns(self) -> int:
        """The estimate that the plan used, 0 when unknown."""
        return self.plan.selected_cost_ns

    @property
    def device_allocated(self) -> bool:
        """The graph divides its own rows and so must complete with its confidence (S3)."""
        return self.plan.shape.allocation is Allocation.DEVICE and self.plan.shape.draft_depth > 0

    @property
    def ordinary(self) -> bool:
        """It earns for both ledgers."""
        return self.plan.reason in (Reason.ORDINARY, Reason.SOLO_PREFILL, Reason.TOKEN_BUDGET)


def may_queue(queue: list[Frame], now_ns: int) -> bool:
    """Whether another plan may be made: no frame, or one whose kind queues, whose cost was known, and which has not
    overrun its expected end.
    """
    if not queue:
        return True
    first = queue[0]
    return len(queue) == 1 and first.plan.shape.kind in QUEUEABLE and first.known and now_ns <= first.expected_end_ns
