"""Plans: the kernel's arrays, one call of it per decision, and the ScheduledPlan made of what it wrote (S4, S10)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler import layout
from scheduler.kernels.loader import load_kernels
from scheduler.plans import (
    Alternative,
    BarredBy,
    CostState,
    LedgerBalances,
    PlanLane,
    PlanParts,
    Reason,
    Role,
    ScheduledPlan,
    ScoreKind,
)
from scheduler.records import PROPOSAL_SOURCES, RequestHandle
from scheduler.shapes import GraphShape
from scheduler.state import Records, SchedulerState, Tenant

LN2 = math.log(2.0)
FIRST_CANDIDATES = 512
FIRST_POOL = 16384
"""Sizes that the tables start with; they are doubled whenever a decision does not fit."""

_REASONS, _ROLES = tuple(Reason), tuple(Role)
_BARRED = (BarredBy.NONE, BarredBy.PRUNED, BarredBy.UNMEASURED, BarredBy.PAGES)
_INPUTS = 8
"""Fields at the start of DECISION that Planner fills, all int64."""
assert layout.DECISION.names is not None
assert layout.DECISION.names[_INPUTS] == "exponent"
assert layout.CANDIDATE.names is not None
_OF_DECISION = {name: i for i, name in enumerate(layout.DECISION.names)}
_OF_CANDIDATE = {name: i for i, name in enumerate(layout.CANDIDATE.names)}
_EXPONENT, _DECODERS, _PRICED, _CHOSEN, _RUNNER_UP, _REASON, _OVERFLOW, _FOUND, _ALTERNATIVES, _SLOTS = (
    _OF_DECISION[name]
    for name in (
        "exponent",
        "decoders",
        "priced",
        "chosen",
        "runner_up",
        "reason",
        "overflow",
        "found",
        "alternatives",
        "recorded_slots",
    )
)
_GRAPH, _FOLLOWING, _KNOWN, _LANES, _SCORE, _LOGICAL, _BARRED_AS, _NEEDS_EMPTY, _TOKEN, _HORIZON_MS, _WAIT = (
    _OF_CANDIDATE[name]
    for name in (
        "graph",
        "following",
        "known",
        "lanes",
        "score",
        "logical_rows",
        "barred",
        "needs_empty",
        "token_value",
        "horizon_ms",
        "wait_cost",
    )
)
assert layout.CANDIDATE.names[_TOKEN : _WAIT + 1] == (
    "token_value",
    "delivery_value",
    "age_relief",
    "terminal_relief",
    "wait_cost",
)

CandidateTuple = tuple[str, str | None, tuple[int, ...], tuple[int, ...], bool, float, str, bool]
"""(shape label, following label, cohort slots ascending, rows in that order, known, score, barred_by, needs_empty)."""


Row = tuple[Any, ...]
"""One record of a structured array, as Python numbers."""


def _parts(row: Row) -> PlanParts:
    token, delivery, relief, terminal, wait = row[_TOKEN : _WAIT + 1]
    return PlanParts(token, delivery, relief, terminal, wait, row[_HORIZON_MS] if row[_KNOWN] else None)


@dataclasses.dataclass(frozen=True, slots=True)
class _Recorded:
    """Copies of what the kernel wrote about one plan, from which its lanes and alternatives are made when read.

    `graphs`: (shape, duration in ns, cost state) of each recorded candidate. `tenants`: who held each slot.
    """

    rows: list[Row]
    graphs: list[tuple[GraphShape, int, CostState, GraphShape | None]]
    slots: npt.NDArray[np.int64]
    lanes: Records
    details: Records
    tenants: list[Tenant | None]
    queue_depth: int

    def request_id(self, slot: int) -> str:
        tenant = self.tenants[slot]
        assert tenant is not None, "a lane's slot is held"
        return tenant.spec.request_id

    def make_lanes(self) -> tuple[PlanLane, ...]:
        return tuple(
            self._lane(lane, detail) for lane, detail in zip(self.lanes.tolist(), self.details.tolist(), strict=True)
        )

    def _lane(self, lane: Row, detail: Row) -> PlanLane:
        slot, generation, _, rows, ceiling, prompt_tokens, source, expected = lane
        role, token_price, delivery_price, age_ms, sigma_ms, value, terminal_value = detail
        return PlanLane(
            handle=RequestHandle(int(slot), int(generation)),
            request_id=self.request_id(int(slot)),
            role=_ROLES[int(role)],
            query_length=int(rows),
            ceiling=int(ceiling),
            prompt_tokens=int(prompt_tokens),
            expected_tokens=expected,
            token_price=token_price,
            delivery_price=delivery_price,
            age_ms=age_ms,
            sigma_ms=sigma_ms,
            value=value,
            terminal_value=terminal_value,
            proposal_source=PROPOSAL_SOURCES[int(source)] if source != layout.NO_SOURCE else None,
        )

    def lane_epochs(self) -> tuple[int, ...]:
        return tuple(self.lanes["epoch"].tolist())

    def make_alternatives(self) -> tuple[Alternative, ...]:
        """The slots of all recorded candidates lie one after another, the submitted one's first."""
        found = []
        slots = self.slots.tolist()
        first = int(self.rows[0][_LANES])
        for rank, (row, graph) in enumerate(zip(self.rows[1:], self.graphs[1:], strict=True), start=1):
            end = first + int(row[_LANES])
            found.append(self._alternative(rank, row, graph, slots[first:end]))
            first = end
        return tuple(found)

    def _alternative(
        self,
        rank: int,
        row: Row,
        graph: tuple[GraphShape, int, CostState, GraphShape | None],
        slots: list[int],
    ) -> Alternative:
        shape, duration_ns, state, following = graph
        return Alternative(
            rank=rank,
            shape=shape,
            score_kind=ScoreKind.RATE if row[_KNOWN] else ScoreKind.WORK,
            score=row[_SCORE],
            parts=_parts(row),
            active_rows=len(slots),
            request_ids=tuple(self.request_id(slot) for slot in slots),
            selected_cost_ns=duration_ns,
            cost_state=state,
            barred_by=barred_by(row, self.queue_depth),
            following=following,
        )


def barred_by(row: Row, queue_depth: int) -> BarredBy:
    """Why a losing candidate could not have been submitted."""
    barred = _BARRED[int(row[_BARRED_AS])]
    if barred is BarredBy.NONE and row[_NEEDS_EMPTY] and queue_depth > 0:
        return BarredBy.NEEDS_EMPTY_WINDOW
    return barred


class Planner:
    """Decides for one scheduler. Its arrays are allocated once; the tables grow when a decision does not fit."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._kernel = load_kernels().plan
        slots = state.request_slots
        set_next_smaller(state.graphs)
        self._decision = layout.zeros(layout.DECISION, 1)
        self._inputs = self._decision.view(np.int64)[:_INPUTS]
        self._views = layout.zeros(layout.VIEW, slots)
        self._recorded = layout.zeros(layout.CANDIDATE, layout.RECORDED)
        self._recorded_slots = np.zeros(layout.RECORDED * slots, np.int64)
        self._lanes = layout.zeros(layout.LANE, slots)
        self._details = layout.zeros(layout.LANE_DETAIL, slots)
        self._allocate(FIRST_CANDIDATES, FIRST_POOL)

    def _allocate(self, candidates: int, pool: int) -> None:
        state, acceptance = self._state, self._state.acceptance
        self._candidates = layout.zeros(layout.CANDIDATE, candidates)
        self._pool = np.zeros((2, pool), np.int64)
        self._arguments = (
            state.slots,
            state.graphs,
            state.policy_row,
            self._decision,
            self._views,
            self._candidates,
            self._pool,
            acceptance.estimates,
            acceptance.survival,
            acceptance.yields,
            state.works,
            self._recorded,
            self._recorded_slots,
            self._lanes,
            self._details,
        )

    def plan_decision(self, start_ns: int) -> ScheduledPlan | None:
        """The best choice for a frame that begins at `start_ns`, or None when nothing may be submitted now."""
        state = self._state
        resources, ledgers = state.resources, state.ledgers
        depth = len(state.queue)
        idle = ledgers.episode is None
        self._inputs[:] = (
            state.now_ns,
            start_ns,
            depth,
            resources.free_pages,
            resources.page_tokens,
            resources.free_snapshot_rows,
            idle and ledgers.timing.full,
            idle and ledgers.acceptance.full,
        )
        self._kernel(*self._arguments)
        outcome = self._decision.tolist()[0]
        while outcome[_OVERFLOW]:
            self._allocate(2 * len(self._candidates), 2 * self._pool.shape[1])
            self._kernel(*self._arguments)
            outcome = self._decision.tolist()[0]
        return self._plan(tuple(outcome), depth) if outcome[_CHOSEN] >= 0 else None

    def _plan(self, outcome: Row, depth: int) -> ScheduledPlan:
        """Copies what the kernel wrote: its arrays belong to the next decision."""
        state = self._state
        count = 1 + int(outcome[_ALTERNATIVES])
        rows = self._recorded[:count].tolist()
        row = rows[0]
        lanes = int(row[_LANES])
        recorded = _Recorded(
            rows,
            [self._graph(other) for other in rows],
            self._recorded_slots[: int(outcome[_SLOTS])].copy(),
            self._lanes[:lanes].copy(),
            self._details[:lanes].copy(),
            state.tenants.copy(),
            depth,
        )
        shape, cost_ns, cost_state, following = recorded.graphs[0]
        reason = _REASONS[int(outcome[_REASON])]
        observed_ns = int(state.graphs["observed_ns"][int(row[_GRAPH])])
        plan = ScheduledPlan(
            shape,
            recorded.make_lanes,
            reason,
            ScoreKind.RATE if row[_KNOWN] else ScoreKind.WORK,
            row[_SCORE],
            -int(outcome[_EXPONENT]) * LN2,
            _parts(row),
            cost_ns,
            state.now_ns - observed_ns if cost_ns else None,
            cost_state,
            state.ledgers.credit_ns(reason),
            state.ledgers.balances(),
            recorded.make_alternatives,
            self._margin(row[_SCORE], int(outcome[_RUNNER_UP])),
            int(outcome[_PRICED]),
            int(outcome[_DECODERS]),
            int(row[_LOGICAL]),
            state.now_ns,
            recorded.lane_epochs,
            following,
            depth,
            state.tick,
        )
        plan.cohort = recorded.lanes
        plan.graph = int(row[_GRAPH])
        plan.needs_empty = bool(row[_NEEDS_EMPTY])
        return plan

    def _graph(self, row: Row) -> tuple[GraphShape, int, CostState, GraphShape | None]:
        catalog, position = self._state.catalog, int(row[_GRAPH])
        following = catalog.shapes[int(row[_FOLLOWING])] if row[_FOLLOWING] >= 0 else None
        state = catalog.state_at(position, self._state.now_ns)
        return catalog.shapes[position], catalog.duration_ns(position), state, following

    def _margin(self, score: float, runner_up: int) -> float | None:
        """(score - runner-up's score) / |score|; None without a runner-up, or a score of 0."""
        if runner_up < 0 or score == 0.0:
            return None
        return (score - float(self._candidates["score"][runner_up])) / abs(score)

    def forget(self) -> None:
        """plan() answered None without a decision: all_candidates() has nothing to show."""
        self._decision["found"] = 0

    def all_candidates(self) -> tuple[CandidateTuple, ...]:
        """Every candidate of the last decision, in catalog order of the submitted shape."""
        found = int(self._decision["found"][0])
        return tuple(self._readable(row) for row in self._candidates[:found])

    def _readable(self, row: np.void) -> CandidateTuple:
        shapes = self._state.catalog.shapes
        prompt = int(row["prompt_slot"])
        first = int(row["first"])
        end = first + int(row["lanes"]) - (prompt >= 0)
        lanes = dict(zip(self._pool[0, first:end].tolist(), self._pool[1, first:end].tolist(), strict=True))
        if prompt >= 0:
            lanes[prompt] = int(row["prompt_tokens"])
        slots = sorted(lanes)
        following = int(row["following"])
        return (
            shapes[int(row["graph"])].label,
            shapes[following].label if following >= 0 else None,
            tuple(slots),
            tuple(lanes[slot] for slot in slots),
            bool(row["known"]),
            float(row["score"]),
            _BARRED[int(row["barred"])].value,
            bool(row["needs_empty"]),
        )


def set_next_smaller(graphs: Records) -> None:
    """Fills `below` of every graph with a prompt: the capacity index of the next smaller C of its kind."""
    for graph in graphs:
        smaller = [
            int(other["capacity_index"])
            for other in graphs
            if other["kind"] == graph["kind"] and 0 < other["prompt"] < graph["prompt"]
        ]
        graph["below"] = max(smaller, default=-1)


__all__ = ["CandidateTuple", "LedgerBalances", "Planner"]
