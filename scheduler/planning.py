"""Plans: the kernel's arrays, one call of it per decision, and the ScheduledPlan made of what it wrote (S4, S10)."""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scheduler import layout
from scheduler.frames import LANE_ROW, row_reader
from scheduler.kernels.loader import load_kernels
from scheduler.plans import (
    Alternative,
    BarredBy,
    CostState,
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

_BLOCK_SLOTS = 2048
"""Slots for which the output arrays of coming plans are allocated at a time."""

_REASONS, _ROLES, _COST_STATES = tuple(Reason), tuple(Role), tuple(CostState)
_BARRED = (
    BarredBy.NONE,
    BarredBy.PRUNED,
    BarredBy.UNMEASURED,
    BarredBy.PAGES,
    BarredBy.CADENCE,
    BarredBy.TOKEN_BUDGET,
)
_INPUTS = 8
"""Fields at the start of DECISION that Planner fills, all int64."""
_NO_NAMES: tuple[str, ...] = ()


def _places(dtype: np.dtype[np.void], names: str) -> list[int]:
    """Where the named fields stand in a record."""
    return [(dtype.names or _NO_NAMES).index(name) for name in names.split()]


_EXPONENT, _DECODERS, _PRICED, _CHOSEN, _RUNNER_UP, _RUNNER_UP_SCORE = _places(
    layout.DECISION, "exponent decoders priced chosen runner_up runner_up_score"
)
_REASON, _OVERFLOW, _ALTERNATIVES, _RECORDED_SLOTS, _FOUND = _places(
    layout.DECISION, "reason overflow alternatives recorded_slots found"
)
_GRAPH, _FOLLOWING, _KNOWN, _LANES, _SCORE, _LOGICAL, _BARRED_AS, _NEEDS_EMPTY = _places(
    layout.CANDIDATE, "graph following known lanes score logical_rows barred needs_empty"
)
_PARTS = slice(*_places(layout.CANDIDATE, "token_value logical_rows"))  # the seven sums lie side by side
_HORIZON_MS, _SELECTED, _OBSERVED, _COST_STATE = _places(
    layout.CANDIDATE, "horizon_ms selected_ns observed_ns cost_state"
)
assert _places(layout.DECISION, "exponent") == [_INPUTS]

CandidateTuple = tuple[str, str | None, tuple[int, ...], tuple[int, ...], bool, float, str, bool]
"""(shape label, following label, cohort slots ascending, rows in that order, known, score, barred_by, needs_empty)."""


Row = tuple[Any, ...]
"""One record of a structured array, as Python numbers."""


_CANDIDATE, _LANE, _DETAIL = row_reader(layout.CANDIDATE), LANE_ROW, row_reader(layout.LANE_DETAIL)
_SLOT_BYTES = 8
_PLAN_BYTES = layout.RECORDED * layout.CANDIDATE.itemsize
"""Of the candidates that one plan keeps."""
_GIVEN = struct.Struct("q" * _INPUTS)
assert _CANDIDATE.size == layout.CANDIDATE.itemsize


def _candidate_rows(records: Records) -> Iterator[Row]:
    """layout.CANDIDATE records, at least one, as rows."""
    return _CANDIDATE.iter_unpack(records.view(np.int64).data.cast("B"))


def _bytes(records: npt.NDArray[Any]) -> memoryview:
    return records.view(np.int64).data.cast("B")


class _Outputs(NamedTuple):
    """What the kernel fills for one plan, which keeps it: layout.CANDIDATE [RECORDED], int64 [RECORDED * S],
    layout.LANE [S] and layout.LANE_DETAIL [S].
    """

    candidates: Records
    slots: npt.NDArray[np.int64]
    lanes: Records
    details: Records


def _parts(row: Row) -> PlanParts:
    token, delivery, relief, terminal, prompt_wait, late, wait = row[_PARTS]
    horizon_ms = row[_HORIZON_MS] if row[_KNOWN] else None
    return PlanParts(token, delivery, relief, terminal, wait, horizon_ms, prompt_wait, late)


@dataclasses.dataclass(slots=True)
class RecordedRows:
    """What the kernel wrote about one plan, from which its lanes and alternatives are made when they are read.

    lanes: how many; alternatives: how many candidates follow the submitted one. outputs.slots: all their submitted
    slots, one after another, `slots` in all.
    blocks: the bytes that outputs.lanes, details, candidates and slots are parts of, this plan's after `place` others.
    tenants: who held each slot, the same ones while `admissions` is the same. shapes: the catalog's.
    """

    outputs: _Outputs
    blocks: tuple[memoryview, memoryview, memoryview, memoryview]
    place: int
    lanes: int
    alternatives: int
    slots: int
    admissions: int
    tenants: list[Tenant | None]
    shapes: tuple[GraphShape, ...]
    queue_depth: int

    def request_id(self, slot: int) -> str:
        tenant = self.tenants[slot]
        assert tenant is not None, "a lane's slot is held"
        return tenant.spec.request_id

    def request_ids(self) -> list[str]:
        """Of the recorded slots, each once, in the order in which they first appear."""
        tenants: list[Any] = self.tenants
        return [tenants[slot].spec.request_id for slot in dict.fromkeys(self.outputs.slots[: self.slots].tolist())]

    def make_lanes(self) -> tuple[PlanLane, ...]:
        lanes, details, _, _ = self.as_bytes()
        tenants: list[Any] = self.tenants  # a lane's slot is held
        # Every plan's lanes are read: so without a call for each, and by position.
        return tuple([
            PlanLane(
                RequestHandle(slot, generation),
                tenants[slot].spec.request_id,
                _ROLES[role],
                rows,
                ceiling,
                prompt_tokens,
                expected,
                token_price,
                delivery_price,
                age_ms,
                sigma_ms,
                value,
                terminal_value,
                PROPOSAL_SOURCES[source] if source != layout.NO_SOURCE else None,
            )
            for (slot, generation, _, rows, ceiling, prompt_tokens, source, expected), (
                role, token_price, delivery_price, age_ms, sigma_ms, value, terminal_value
            ) in zip(_LANE.iter_unpack(lanes), _DETAIL.iter_unpack(details), strict=True)
        ])  # fmt: skip

    def as_bytes(self) -> tuple[memoryview, memoryview, memoryview, memoryview]:
        """Native records, lane after lane and candidate after candidate, the submitted one first: layout.LANE,
        layout.LANE_DETAIL, layout.CANDIDATE, and the submitted slots of all candidates as int64.
        """
        lanes, details, candidates, slots = self.blocks
        first = self.place * len(self.outputs.lanes)
        lane, detail, slot = first * _LANE.size, first * _DETAIL.size, first * layout.RECORDED * _SLOT_BYTES
        candidate = self.place * _PLAN_BYTES
        return (
            lanes[lane : lane + self.lanes * _LANE.size],
            details[detail : detail + self.lanes * _DETAIL.size],
            candidates[candidate : candidate + (1 + self.alternatives) * _CANDIDATE.size],
            slots[slot : slot + self.slots * _SLOT_BYTES],
        )

    def lane_epochs(self) -> tuple[int, ...]:
        return tuple(self.outputs.lanes["epoch"][: self.lanes].tolist())

    def make_alternatives(self) -> tuple[Alternative, ...]:
        found: list[Alternative] = []
        slots, first = self.outputs.slots, 0
        for rank, row in enumerate(_candidate_rows(self.outputs.candidates[: 1 + self.alternatives])):
            end = first + row[_LANES]
            if rank > 0:
                found.append(self._alternative(rank, row, slots[first:end].tolist()))
            first = end
        return tuple(found)

    def _alternative(self, rank: int, row: Row, slots: list[int]) -> Alternative:
        return Alternative(
            rank=rank,
            shape=self.shapes[row[_GRAPH]],
            score_kind=ScoreKind.RATE if row[_KNOWN] else ScoreKind.WORK,
            score=row[_SCORE],
            parts=_parts(row),
            active_rows=len(slots),
            request_ids=tuple(self.request_id(slot) for slot in slots),
            selected_cost_ns=row[_SELECTED],
            cost_state=_COST_STATES[row[_COST_STATE]],
            barred_by=barred_by(row, self.queue_depth),
            following=self.shapes[row[_FOLLOWING]] if row[_FOLLOWING] >= 0 else None,
        )


def barred_by(row: Row, queue_depth: int) -> BarredBy:
    """Why a losing candidate could not have been submitted."""
    barred = _BARRED[row[_BARRED_AS]]
    if barred is BarredBy.NONE and row[_NEEDS_EMPTY] and queue_depth > 0:
        return BarredBy.NEEDS_EMPTY_WINDOW
    return barred


class Planner:
    """Decides for one scheduler. Its arrays are allocated once; the tables grow when a decision does not fit.

    Only what a plan keeps (its recorded candidates and lanes) is allocated anew for the next plan.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._kernel = load_kernels().plan
        self._decision = layout.zeros(layout.DECISION, 1)
        # The outcome as plain numbers: reading fields of a record one by one takes longer than the whole as a list.
        self._integers = self._decision.view(np.int64)
        self._floats = self._decision.view(np.float64)
        self._inputs = self._integers.data.cast("B")
        self._views = layout.zeros(layout.VIEW, state.request_slots)
        self._candidates = layout.zeros(layout.CANDIDATE, FIRST_CANDIDATES)
        self._pool = np.zeros((2, FIRST_POOL), np.int64)
        self._spare: list[_Outputs] = []
        self._renew_outputs()
        self._collect_arguments()

    def _renew_outputs(self) -> None:
        """Arrays for the next plan to keep, from a block of them: making structured arrays takes microseconds."""
        if not self._spare:
            slots = self._state.request_slots
            plans = max(1, _BLOCK_SLOTS // slots)
            candidates = np.empty((plans, layout.RECORDED), layout.CANDIDATE)
            recorded_slots = np.empty((plans, layout.RECORDED * slots), np.int64)
            lanes, details = np.empty((plans, slots), layout.LANE), np.empty((plans, slots), layout.LANE_DETAIL)
            self._spare = list(map(_Outputs, candidates, recorded_slots, lanes, details))
            self._blocks = (_bytes(lanes), _bytes(details), _bytes(candidates), _bytes(recorded_slots))
        self._outputs = self._spare.pop()

    def _collect_arguments(self) -> None:
        state, acceptance = self._state, self._state.acceptance
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
        )

    def plan_decision(self, start_ns: int) -> ScheduledPlan | None:
        """The best choice for a frame that begins at `start_ns`, or None when nothing may be submitted now."""
        state = self._state
        resources, ledgers = state.resources, state.ledgers
        depth = len(state.queue)
        idle = ledgers.episode is None
        _GIVEN.pack_into(
            self._inputs,
            0,
            state.now_ns,
            start_ns,
            depth,
            resources.free_pages,
            resources.page_tokens,
            resources.free_snapshot_rows,
            idle and ledgers.timing.full,
            idle and ledgers.acceptance.full,
        )
        self._kernel(*self._arguments, *self._outputs)
        outcome = self._integers.tolist()
        while outcome[_OVERFLOW]:
            self._candidates = layout.zeros(layout.CANDIDATE, 2 * len(self._candidates))
            self._pool = np.zeros((2, 2 * self._pool.shape[1]), np.int64)
            self._collect_arguments()
            self._kernel(*self._arguments, *self._outputs)
            outcome = self._integers.tolist()
        return self._plan(outcome, depth) if outcome[_CHOSEN] >= 0 else None

    def _plan(self, outcome: list[int], depth: int) -> ScheduledPlan:
        """The plan of what the kernel wrote; it keeps the output arrays."""
        state = self._state
        shapes = state.catalog.shapes
        outputs, place = self._outputs, len(self._spare)
        blocks = self._blocks
        row: Row = _CANDIDATE.unpack_from(blocks[2], place * _PLAN_BYTES)
        self._renew_outputs()
        recorded = RecordedRows(
            outputs,
            blocks,
            place,
            row[_LANES],
            outcome[_ALTERNATIVES],
            outcome[_RECORDED_SLOTS],
            state.admissions,
            state.tenants,
            shapes,
            depth,
        )
        reason = _REASONS[outcome[_REASON]]
        plan = ScheduledPlan(
            shapes[row[_GRAPH]],
            recorded.make_lanes,
            reason,
            ScoreKind.RATE if row[_KNOWN] else ScoreKind.WORK,
            row[_SCORE],
            -outcome[_EXPONENT] * LN2,
            _parts(row),
            row[_SELECTED],
            state.now_ns - row[_OBSERVED] if row[_SELECTED] else None,
            _COST_STATES[row[_COST_STATE]],
            state.ledgers.credit_ns(reason),
            state.ledgers.balances(),
            recorded.make_alternatives,
            self._margin(row[_SCORE]) if outcome[_RUNNER_UP] >= 0 else None,
            outcome[_PRICED],
            outcome[_DECODERS],
            row[_LOGICAL],
            state.now_ns,
            recorded.lane_epochs,
            shapes[row[_FOLLOWING]] if row[_FOLLOWING] >= 0 else None,
            depth,
            state.tick,
        )
        plan.cohort = outputs.lanes[: row[_LANES]]
        plan.graph = row[_GRAPH]
        plan.needs_empty = row[_NEEDS_EMPTY] == 1
        plan.recorded = recorded
        return plan

    def _margin(self, score: float) -> float | None:
        """(score - runner-up's score) / |score|; None for a score of 0."""
        return (score - float(self._floats[_RUNNER_UP_SCORE])) / abs(score) if score else None

    def forget(self) -> None:
        """plan() answered None without a decision: all_candidates() has nothing to show."""
        self._integers[_FOUND] = 0

    def all_candidates(self) -> tuple[CandidateTuple, ...]:
        """Every candidate of the last decision, in catalog order of the submitted shape."""
        found = int(self._decision["found"][0])
        return tuple(self._readable(row) for row in self._candidates[:found])

    def _readable(self, row: np.void) -> CandidateTuple:
        shapes = self._state.catalog.shapes
        first = int(row["first"])
        end = first + int(row["lanes"])
        lanes = dict(zip(self._pool[0, first:end].tolist(), self._pool[1, first:end].tolist(), strict=True))
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
