"""What comes out of the scheduler: a plan with its lanes, its score and what it was chosen over."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from scheduler.records import RequestHandle
from scheduler.shapes import GraphShape


class Reason(enum.Enum):
    """Why a plan was submitted. Values are the names used in SQL, HTTP, spans and metrics."""

    __hash__ = object.__hash__  # as scheduler.shapes.GraphKind

    ORDINARY = "ordinary"
    DISCOVERY = "discovery"
    TIMING_REFRESH = "timing_refresh"
    ACCEPTANCE_LEARNING = "acceptance_learning"
    SOLO_PREFILL = "solo_prefill"
    TOKEN_BUDGET = "token_budget"


class ScoreKind(enum.Enum):
    """RATE: value per millisecond of a known duration. WORK: undivided value, the duration being unknown."""

    RATE = "rate"
    WORK = "work"


class Role(enum.Enum):
    """What a lane does in its graph."""

    PREFILL = "prefill"
    DECODE = "decode"
    INIT = "init"
    RESTORE = "restore"
    VISION = "vision"
    SNAPSHOT = "snapshot"
    TERMINAL = "terminal"


class CostState(enum.Enum):
    """What is known about a graph's duration (S6)."""

    UNKNOWN = "unknown"
    FRESH = "fresh"
    STALE = "stale"


class BarredBy(enum.Enum):
    """Why a recorded runner-up could not have been submitted; NONE when it simply scored lower."""

    NONE = "none"
    PRUNED = "pruned"
    UNMEASURED = "unmeasured"
    PAGES = "pages"
    NEEDS_EMPTY_WINDOW = "needs_empty_window"
    CADENCE = "cadence"
    TOKEN_BUDGET = "token_budget"


class PlanParts(msgspec.Struct, frozen=True):
    """The score's parts, in prompt-token units, multiplied by the decision's common scale.

    value_rate = (token_value + delivery_value + age_relief + terminal_relief + prompt_wait_relief
    + decode_late_relief) / horizon_ms - wait_cost
    when the duration is known; otherwise horizon_ms is None and the score is the undivided sum.
    """

    token_value: float
    delivery_value: float
    age_relief: float
    terminal_relief: float
    wait_cost: float
    horizon_ms: float | None
    prompt_wait_relief: float = 0.0
    decode_late_relief: float = 0.0

    @property
    def work(self) -> float:
        """The undivided sum of the six values, left to right."""
        four = self.token_value + self.delivery_value + self.age_relief + self.terminal_relief
        return four + self.prompt_wait_relief + self.decode_late_relief


class PlanLane(msgspec.Struct, frozen=True):
    """One request's share of a plan. Prices and values carry the decision's common scale; times do not.

    `query_length`: token rows used. `ceiling`: the most output tokens that this lane may commit.
    `prompt_tokens`: prompt tokens consumed. `expected_tokens`: expected output tokens. `proposal_source`: where its
    drafts come from, None without drafts.
    """

    handle: RequestHandle
    request_id: str
    role: Role
    query_length: int
    ceiling: int
    prompt_tokens: int
    expected_tokens: float
    token_price: float
    delivery_price: float
    age_ms: float
    sigma_ms: float
    value: float
    terminal_value: float = 0.0
    proposal_source: str | None = None


class Alternative(msgspec.Struct, frozen=True):
    """A candidate that was scored beside the winner. `rank` counts from 1; `score` is its rate or its work."""

    rank: int
    shape: GraphShape
    score_kind: ScoreKind
    score: float
    parts: PlanParts
    active_rows: int
    request_ids: tuple[str, ...]
    selected_cost_ns: int
    cost_state: CostState
    barred_by: BarredBy
    following: GraphShape | None = None


class LedgerBalances(msgspec.Struct, frozen=True):
    """Exploration ledgers in ms, before this plan's own charge (S7, S8).

    `discovery_ms`: service time (the larger of device and wall interval) spent so far on graphs that had no estimate.
    """

    timing_credit_ms: float = 0.0
    timing_spent_ms: float = 0.0
    timing_ordinary_ms: float = 0.0
    acceptance_credit_ms: float = 0.0
    acceptance_spent_ms: float = 0.0
    acceptance_ordinary_ms: float = 0.0
    discovery_ms: float = 0.0


class ScheduledPlan:
    """One decision: which prepared graph to run, for whom, and why. Not to be changed once made.

    `selected_cost_ns` is the estimate that the decision used, 0 when unknown. `observation_age_ns` is the age of
    its last valid observation, None when there is none. `margin` is (score - runner-up's score) / |score| among
    candidates of the same score kind, None when there was no other. `lane_epochs` are the lanes' request epochs;
    commit refuses the plan when one has moved on. `following`: the inference graph that a prerequisite was scored
    with; the plan keeps its own duration. `queue_depth`: frames in flight when it was made. `tick`: commits before
    it was made; commit refuses the plan when there was another one since.

    `lanes` and `alternatives` may be given as functions; they are called when first read. Plans are equal when all of
    these are. A plan of the fast path also carries, for commit and completion, `cohort` (layout.LANE records of its
    lanes, in slot order), `graph` (position in the catalog) and `needs_empty` (it may only be submitted to an empty
    window), and for whoever writes it down `recorded` (planning.RecordedRows: what the kernel wrote about it).
    """

    __slots__ = (
        "_alternatives",
        "_lane_epochs",
        "_lanes",
        "active_decoders",
        "candidates",
        "cohort",
        "cost_state",
        "exploration_credit_ns",
        "following",
        "graph",
        "ledgers",
        "log_scale",
        "logical_rows",
        "margin",
        "needs_empty",
        "observation_age_ns",
        "parts",
        "planned_ns",
        "queue_depth",
        "reason",
        "recorded",
        "score",
        "score_kind",
        "selected_cost_ns",
        "shape",
        "tick",
    )

    def __init__(
        self,
        shape: GraphShape,
        lanes: tuple[PlanLane, ...] | Callable[[], tuple[PlanLane, ...]],
        reason: Reason,
        score_kind: ScoreKind,
        score: float,
        log_scale: float,
        parts: PlanParts,
        selected_cost_ns: int,
        observation_age_ns: int | None,
        cost_state: CostState,
        exploration_credit_ns: int,
        ledgers: LedgerBalances,
        alternatives: tuple[Alternative, ...] | Callable[[], tuple[Alternative, ...]],
        margin: float | None,
        candidates: int,
        active_decoders: int,
        logical_rows: int,
        planned_ns: int,
        lane_epochs: tuple[int, ...] | Callable[[], tuple[int, ...]],
        following: GraphShape | None = None,
        queue_depth: int = 0,
        tick: int = 0,
    ) -> None:
        self.shape = shape
        self._lanes = lanes
        self.reason = reason
        self.score_kind = score_kind
        self.score = score
        self.log_scale = log_scale
        self.parts = parts
        self.selected_cost_ns = selected_cost_ns
        self.observation_age_ns = observation_age_ns
        self.cost_state = cost_state
        self.exploration_credit_ns = exploration_credit_ns
        self.ledgers = ledgers
        self._alternatives = alternatives
        self.margin = margin
        self.candidates = candidates
        self.active_decoders = active_decoders
        self.logical_rows = logical_rows
        self.planned_ns = planned_ns
        self._lane_epochs = lane_epochs
        self.following = following
        self.queue_depth = queue_depth
        self.tick = tick
        self.cohort: Any = None
        self.graph = -1
        self.needs_empty = False
        self.recorded: Any = None

    @property
    def lanes(self) -> tuple[PlanLane, ...]:
        """The submitted lanes, in slot order."""
        if not isinstance(self._lanes, tuple):
            self._lanes = self._lanes()
        return self._lanes

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """The recorded runner-ups, best first, barred ones last."""
        if not isinstance(self._alternatives, tuple):
            self._alternatives = self._alternatives()
        return self._alternatives

    @property
    def lane_epochs(self) -> tuple[int, ...]:
        """The lanes' request epochs when the plan was made."""
        if not isinstance(self._lane_epochs, tuple):
            self._lane_epochs = self._lane_epochs()
        return self._lane_epochs

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ScheduledPlan):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in PLAN_FIELDS)

    def __hash__(self) -> int:
        return hash((self.shape, self.planned_ns, self.tick))

    def __repr__(self) -> str:
        return f"ScheduledPlan({', '.join(f'{name}={getattr(self, name)!r}' for name in PLAN_FIELDS)})"

    def selection_value_rate(self) -> float:
        """The scaled score: value per ms, or undivided value where score_kind is WORK."""
        return self.score

    def selection_log_scale(self) -> float:
        """The natural logarithm of the common factor on every value of this decision."""
        return self.log_scale


PLAN_FIELDS = tuple(inspect.signature(ScheduledPlan).parameters)
"""The visible fields of a plan, in the order of its signature."""
