"""Committed plans in flight (S10)."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from scheduler import layout
from scheduler.plans import Reason, ScheduledPlan
from scheduler.shapes import Allocation, GraphKind
from scheduler.validation import LaneRow

QUEUEABLE = frozenset({GraphKind.DECODE, GraphKind.SPECULATIVE})
"""Only these may occupy both frame slots."""
REASONS = tuple(Reason)


@dataclasses.dataclass(slots=True)
class Frame:
    """One committed plan. `number`: its record in state.frames; `graph`: the shape's position in the catalog.

    `known`: its cost was known at commit; `queued`: another frame was in flight then. `rows`: its lanes as numbers.
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
    rows: list[LaneRow]

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
        return self.plan.reason in (Reason.ORDINARY, Reason.SOLO_PREFILL)

    def record(self) -> tuple[int | float, ...]:
        """The values of its layout.FRAME record."""
        plan = self.plan
        return (
            self.fence,
            self.graph,
            len(self.rows),
            REASONS.index(plan.reason),
            int(self.known),
            plan.selected_cost_ns,
            int(self.queued),
            self.committed_ns,
            self.expected_end_ns,
            0,
            0.0,
        )


def lane_rows(cohort: npt.NDArray[np.void]) -> list[LaneRow]:
    """The lanes' slots, generations, ceilings and prompt tokens."""
    columns = (cohort[name].tolist() for name in ("slot", "generation", "ceiling", "prompt_tokens"))
    return list(zip(*columns, strict=True))


def may_queue(queue: list[Frame], now_ns: int) -> bool:
    """Whether another plan may be made: no frame, or one whose kind queues, whose cost was known, and which has not
    overrun its expected end.
    """
    if not queue:
        return True
    first = queue[0]
    return len(queue) == 1 and first.plan.shape.kind in QUEUEABLE and first.known and now_ns <= first.expected_end_ns


assert layout.FRAME.names is not None
assert len(layout.FRAME.names) == 11, "Frame.record() gives every field"
