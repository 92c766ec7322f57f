"""A committed plan as its journal record. Every-step code.

`PlanRecords.record` copies the scheduler's rows as they are; `plan_committed` makes an object of everything and is the
plain twin, which also serves plans that have no rows (the reference scheduler's).
"""

from __future__ import annotations

import functools
import struct

import msgspec

from scheduler import layout
from scheduler.plans import Alternative, PlanLane, PlanParts, Reason, ScheduledPlan
from scheduler.shapes import GraphShape
from service.journal.packed import LAYOUT, LITTLE_ENDIAN
from service.journal.records import (
    AlternativeRecord,
    LaneRecord,
    PackedPlan,
    PartsRecord,
    PlanCommitted,
    ShapeRecord,
    encoder,
)

MOST_CACHED = 4096
"""Sets of graphs whose shapes are kept as they are written. They are forgotten all at once when there are more."""

_REASON = {reason: number for number, reason in enumerate(Reason)}
_GRAPHS = struct.Struct(f"2q{layout.CANDIDATE.itemsize - 16}x")
"""The first two columns of a candidate: its graph and the one that follows, -1 without."""

Graphs = tuple[tuple[int, int], ...]


class PlanRecords:
    """Makes the records of one engine's plans."""

    def __init__(self) -> None:
        self._shapes: dict[Graphs, msgspec.Raw] = {}
        self._admissions = -1
        self._slots = b""
        self._request_ids: list[str] = []

    def record(
        self, plan: ScheduledPlan, fence: int, frame_slot: int, committed_ns: int, plan_ns: int, policy_version: int
    ) -> PackedPlan | PlanCommitted:
        """The record of `plan`, committed at `fence` into frame slot 0 or 1, before anyone else gets its slots."""
        recorded = plan.recorded
        if recorded is None or not LITTLE_ENDIAN:
            return plan_committed(plan, fence, frame_slot, committed_ns, plan_ns, policy_version)
        lanes, details, candidates, slots = recorded.as_bytes()
        graphs = tuple(_GRAPHS.iter_unpack(candidates))
        shapes = self._shapes.get(graphs)
        if shapes is None:
            shapes = self._list_shapes(graphs, recorded.shapes)
        request_ids = self._request_ids
        if recorded.admissions != self._admissions or slots != self._slots:
            request_ids = self._request_ids = recorded.request_ids()
            self._admissions, self._slots = recorded.admissions, bytes(slots)
        return PackedPlan(
            LAYOUT,
            fence,
            committed_ns,
            plan.planned_ns,
            plan_ns,
            _REASON[plan.reason],
            frame_slot,
            plan.queue_depth,
            policy_version,
            plan.log_scale,
            plan.margin,
            plan.candidates,
            plan.active_decoders,
            plan.exploration_credit_ns,
            msgspec.structs.astuple(plan.ledgers),
            shapes,
            request_ids,
            slots,
            lanes,
            details,
            candidates,
        )

    def _list_shapes(self, graphs: Graphs, shapes: tuple[GraphShape, ...]) -> msgspec.Raw:
        """Every graph that is named, as it is written."""
        if len(self._shapes) >= MOST_CACHED:
            self._shapes.clear()
        places = sorted({place for pair in graphs for place in pair if place >= 0})
        entries = [(place, shapes[place].label, shape_record(shapes[place])) for place in places]
        encoded = self._shapes[graphs] = msgspec.Raw(encoder.encode(entries))
        return encoded


@functools.cache  # a catalog's shapes, never more
def shape_record(shape: GraphShape) -> ShapeRecord:
    """The shape by value."""
    return ShapeRecord(
        shape.kind.value,
        shape.batch_capacity,
        shape.draft_depth,
        shape.target_width,
        shape.target_rows,
        shape.prefill_capacity,
        shape.speculation_enabled,
        shape.allocation.value,
        shape.prompt_rows,
    )


def plan_committed(
    plan: ScheduledPlan, fence: int, frame_slot: int, committed_ns: int, plan_ns: int, policy_version: int
) -> PlanCommitted:
    """The record of `plan`, committed at `fence` into frame slot 0 or 1."""
    ledgers = plan.ledgers
    following = plan.following
    log_scale = plan.log_scale
    return PlanCommitted(
        fence=fence,
        committed_ns=committed_ns,
        shape=shape_record(plan.shape),
        reason=plan.reason.value,
        score_kind=plan.score_kind.value,
        score=plan.score,
        log_scale=log_scale,
        parts=_parts(plan.parts),
        selected_cost_ns=plan.selected_cost_ns,
        observation_age_ns=plan.observation_age_ns,
        cost_state=plan.cost_state.value,
        active_decoders=plan.active_decoders,
        logical_rows=plan.logical_rows,
        margin=plan.margin,
        candidates=plan.candidates,
        exploration_credit_ms=plan.exploration_credit_ns / 1e6,
        timing_credit_ms=ledgers.timing_credit_ms,
        timing_spent_ms=ledgers.timing_spent_ms,
        timing_ordinary_ms=ledgers.timing_ordinary_ms,
        acceptance_credit_ms=ledgers.acceptance_credit_ms,
        acceptance_spent_ms=ledgers.acceptance_spent_ms,
        acceptance_ordinary_ms=ledgers.acceptance_ordinary_ms,
        discovery_ms=ledgers.discovery_ms,
        queue_depth=plan.queue_depth,
        frame_slot=frame_slot,
        policy_version=policy_version,
        plan_us=plan_ns / 1e3,
        following_kind=None if following is None else following.kind.value,
        following_shape=None if following is None else following.label,
        lanes=[_lane(lane) for lane in plan.lanes],
        alternatives=[_alternative(other, log_scale) for other in plan.alternatives],
    )


def _parts(parts: PlanParts) -> PartsRecord:
    return PartsRecord(
        parts.token_value,
        parts.delivery_value,
        parts.age_relief,
        parts.terminal_relief,
        parts.wait_cost,
        parts.horizon_ms,
        parts.prompt_wait_relief,
        parts.decode_late_relief,
    )


def _lane(lane: PlanLane) -> LaneRecord:
    return LaneRecord(
        lane.request_id,
        lane.handle.slot,
        lane.handle.generation,
        lane.role.value,
        lane.prompt_tokens,
        lane.query_length,
        lane.ceiling,
        lane.proposal_source,
        lane.token_price,
        lane.delivery_price,
        lane.age_ms,
        lane.sigma_ms,
        lane.expected_tokens,
        lane.terminal_value,
        lane.value,
    )


def _alternative(other: Alternative, log_scale: float) -> AlternativeRecord:
    return AlternativeRecord(
        other.rank,
        shape_record(other.shape),
        other.score_kind.value,
        other.score,
        _parts(other.parts),
        log_scale,
        None if other.following is None else other.following.label,
        None if other.following is None else other.following.kind.value,
        other.active_rows,
        list(other.request_ids),
        other.selected_cost_ns,
        other.cost_state.value,
        other.barred_by.value,
    )
