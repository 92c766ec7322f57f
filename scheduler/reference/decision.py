"""What the planner sees and what it answers: everything that one decision may depend on."""

from __future__ import annotations

import dataclasses
import math

from scheduler.plans import CostState, LedgerBalances, ScheduledPlan
from scheduler.policy import PolicyConfig
from scheduler.reference.residents import Resident
from scheduler.shapes import GraphShape


@dataclasses.dataclass(frozen=True, slots=True)
class Graph:
    """One prepared shape and what is known of its duration.

    `position`: in the catalog's order. `usable`: not of the other generation mode or fixed width (true for kinds
    that generate nothing). `duration_ns` 0 while unknown. `attempted_ns`: the last committed timing refresh.
    """

    shape: GraphShape
    position: int
    usable: bool
    duration_ns: int
    observed_ns: int | None
    attempted_ns: int | None
    state: CostState

    @property
    def known(self) -> bool:
        """Measured at least once, stale or not."""
        return self.duration_ns > 0

    @property
    def duration_ms(self) -> float:
        """The duration in ms, 0.0 while unknown."""
        return self.duration_ns / 1e6

    @property
    def log_ms(self) -> float:
        """The natural logarithm of the duration in ms, 0.0 while unknown."""
        return math.log(self.duration_ms) if self.known else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """The state at one plan(). The planner changes nothing of it.

    `start_ns`: now, or the queue's expected end. `queue_depth`: frames in flight, 0 or 1. `residents`: the runnable
    ones, in slot order. `free_pages`: None without a limit. `fixed_width`: 0 for adaptive verification. `*_full`: full
    credit and no open episode. `tick`: commits so far.
    """

    now_ns: int
    start_ns: int
    queue_depth: int
    policy: PolicyConfig
    fixed_width: int
    graphs: tuple[Graph, ...]
    residents: tuple[Resident, ...]
    free_pages: int | None
    page_tokens: int
    free_snapshot_rows: int
    timing_full: bool
    acceptance_full: bool
    timing_credit_ns: int
    acceptance_credit_ns: int
    ledgers: LedgerBalances
    tick: int


CandidateTuple = tuple[str, str | None, tuple[int, ...], tuple[int, ...], bool, float, str, bool]
"""(shape label, following label, cohort slots ascending, rows in that order, known, score, barred_by, needs_empty)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The planner's answer. `plan` is None when nothing may be submitted now; `candidates` are in catalog order."""

    plan: ScheduledPlan | None
    candidates: tuple[CandidateTuple, ...]
