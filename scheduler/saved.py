"""What a checkpoint holds, by name and type; scheduler.replay makes it of a state, and a state of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np

from scheduler import layout
from scheduler.errors import InvalidCheckpoint, InvalidPolicy
from scheduler.load_settings import LoadSettings
from scheduler.plans import (
    Alternative,
    CostState,
    LedgerBalances,
    PlanLane,
    PlanParts,
    Reason,
    ScoreKind,
)
from scheduler.policy import PolicyConfig
from scheduler.prompts import Prompt
from scheduler.records import RequestHandle, RequestSpec
from scheduler.shapes import GraphShape
from scheduler.state import Resources


class SavedPlan(msgspec.Struct):
    """A ScheduledPlan by its fields, and what commit and completion need of it."""

    shape: GraphShape
    lanes: tuple[PlanLane, ...]
    reason: Reason
    score_kind: ScoreKind
    score: float
    log_scale: float
    parts: PlanParts
    selected_cost_ns: int
    observation_age_ns: int | None
    cost_state: CostState
    exploration_credit_ns: int
    ledgers: LedgerBalances
    alternatives: tuple[Alternative, ...]
    margin: float | None
    candidates: int
    active_decoders: int
    logical_rows: int
    planned_ns: int
    lane_epochs: tuple[int, ...]
    following: GraphShape | None
    queue_depth: int
    tick: int
    cohort: bytes
    graph: int
    needs_empty: bool


class SavedFrame(msgspec.Struct):
    """A frame in flight."""

    number: int
    fence: int
    plan: SavedPlan
    known: bool
    queued: bool
    committed_ns: int
    expected_end_ns: int


class SavedTenant(msgspec.Struct):
    """Who holds a slot."""

    handle: RequestHandle
    spec: RequestSpec
    prompt: Prompt
    finished: bool


class SavedLedgers(msgspec.Struct):
    """(units, ordinary_ns, spent_ns) of both ledgers, the discovery total, the open episode."""

    timing: tuple[int, int, int]
    acceptance: tuple[int, int, int]
    discovery_ns: int
    episode: tuple[Reason, int] | None


class Head(msgspec.Struct):
    """What says whether the rest can be read."""

    version: int
    layout: str


class Shapes(Head):
    """As much as it takes to make the catalog."""

    shapes: tuple[GraphShape, ...]


class Measured(Shapes):
    """As much as it takes to say what was known of each graph's duration: of each shape its last samples in ns, its
    last valid observation (-1: none) and its last attempted refresh.
    """

    coefficients: dict[str, float | int | str]
    estimates: list[tuple[list[int], int, int]]
    now_ns: int


class Saved(Head):
    """Everything that a checkpoint holds."""

    shapes: tuple[GraphShape, ...]
    settings: LoadSettings
    coefficients: dict[str, float | int | str]
    estimates: list[tuple[list[int], int, int]]
    arrays: dict[str, bytes]
    tenants: list[SavedTenant]
    queue: list[SavedFrame]
    completed: int
    served: dict[int, int]
    unpublished_snapshots: list[str]
    resources: Resources
    ledgers: SavedLedgers
    now_ns: int
    last_fence: int
    tick: int
    admissions: int

    def policy(self) -> PolicyConfig:
        """The policy in force. Raises InvalidCheckpoint for coefficients that this program does not know."""
        try:
            return PolicyConfig().merged(self.coefficients)
        except InvalidPolicy as why:
            raise InvalidCheckpoint(f"the checkpoint's policy cannot be used: {why}") from None


class ArrayForm(NamedTuple):
    """An array's element type and shape."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def array_forms(slots: int, depth: int, capacities: int) -> dict[str, ArrayForm]:
    """The arrays of a state with so many request slots, draft depths (one at least) and distinct prompt capacities."""
    per_frame = (layout.FRAMES, slots)
    number = np.dtype(np.float64)
    return {
        "slots": ArrayForm(layout.SLOT, (slots,)),
        "frames": ArrayForm(layout.FRAME, (layout.FRAMES,)),
        "lanes": ArrayForm(layout.LANE, per_frame),
        "participants": ArrayForm(layout.PARTICIPANT, per_frame),
        "works": ArrayForm(np.dtype(np.int64), (slots, max(1, capacities))),
        "acceptance": ArrayForm(number, (slots, 2, 2, depth, 2)),
        "prior": ArrayForm(number, (2, depth)),
        "pool": ArrayForm(number, (2, 2, 2)),
        "survival": ArrayForm(number, (slots, 2, depth)),
        "yields": ArrayForm(number, (slots, 2, 3, depth + 2)),
    }
