"""The plan of the submitted candidate, and the runner-ups that are recorded with it (specification S4)."""

from __future__ import annotations

from scheduler.plans import Alternative, BarredBy, PlanLane, Reason, Role, ScheduledPlan
from scheduler.reference.candidates import Candidate, Use
from scheduler.reference.extents import STATE_KINDS, uses_forecast
from scheduler.reference.value import LN2, Context
from scheduler.shapes import Allocation

RECORDED_ALTERNATIVES = 4


def make_plan(chosen: Candidate, candidates: list[Candidate], reason: Reason, context: Context) -> ScheduledPlan:
    """Freezes `chosen` with its lanes in slot order, parts, cost and runner-ups."""
    decision, graph, uses = context.decision, chosen.graph, chosen.in_slot_order
    others = sorted((c for c in candidates if c is not chosen), key=lambda c: (not c.eligible, c.order))
    credits = {
        Reason.TIMING_REFRESH: decision.timing_credit_ns,
        Reason.ACCEPTANCE_LEARNING: decision.acceptance_credit_ns,
    }
    return ScheduledPlan(
        shape=graph.shape,
        lanes=tuple(_plan_lane(chosen, use) for use in uses),
        reason=reason,
        score_kind=chosen.score_kind,
        score=chosen.score,
        log_scale=-context.exponent * LN2,
        parts=chosen.parts,
        selected_cost_ns=graph.duration_ns,
        observation_age_ns=None if graph.observed_ns is None else decision.now_ns - graph.observed_ns,
        cost_state=graph.state,
        exploration_credit_ns=credits.get(reason, 0),
        ledgers=decision.ledgers,
        alternatives=_alternatives(chosen, others, decision.queue_depth > 0),
        margin=_margin(chosen, others),
        candidates=sum(candidate.priced for candidate in candidates),
        active_decoders=context.active_decoders,
        logical_rows=chosen.logical_rows,
        planned_ns=decision.now_ns,
        lane_epochs=tuple(use.lane.resident.epoch for use in uses),
        following=chosen.following.shape if chosen.following else None,
        queue_depth=decision.queue_depth,
        tick=decision.tick,
    )


def _plan_lane(candidate: Candidate, use: Use) -> PlanLane:
    """The frozen record of one lane. Lanes that only prepare a later graph earn nothing themselves."""
    lane, resident = use.lane, use.lane.resident
    query_length = _query_length(candidate, use)
    return PlanLane(
        handle=resident.handle,
        request_id=resident.spec.request_id,
        role=use.role,
        query_length=query_length,
        ceiling=use.ceiling,
        prompt_tokens=use.prompt_tokens,
        expected_tokens=_expected_tokens(candidate, use),
        token_price=lane.token_price,
        delivery_price=lane.delivery_price,
        age_ms=lane.age_ms,
        sigma_ms=lane.sigma_ms,
        value=use.parts.value,
        terminal_value=use.parts.terminal,
        proposal_source=resident.source if use.role is Role.DECODE and query_length > 1 else None,
    )


def _query_length(candidate: Candidate, use: Use) -> int:
    """Rows of the lane: prompt tokens, allocated rows, or under device allocation the ceiling; 1 for state rows."""
    if use.role is Role.PREFILL:
        return use.prompt_tokens
    device = candidate.graph.shape.allocation is Allocation.DEVICE
    return use.ceiling if use.role is Role.DECODE and device else use.rows


def _expected_tokens(candidate: Candidate, use: Use) -> float:
    """Expected output, without the exponent alpha, which belongs to scores."""
    if candidate.graph.shape.kind in STATE_KINDS:
        return 0.0
    if use.role is Role.PREFILL:
        return float(use.ceiling)
    return use.lane.resident.yield_raw(use.rows, uses_forecast(candidate.graph.shape))


def _alternatives(chosen: Candidate, others: list[Candidate], queued: bool) -> tuple[Alternative, ...]:
    """The best of every other kind, then the best by score, distinct in shape and cohort."""
    first_of_kind: list[Candidate] = []
    kinds = {chosen.graph.shape.kind}
    for candidate in others:
        if candidate.graph.shape.kind not in kinds:
            kinds.add(candidate.graph.shape.kind)
            first_of_kind.append(candidate)
    seen = {_identity(chosen)}
    recorded: list[Candidate] = []
    for candidate in [*first_of_kind, *others]:
        if _identity(candidate) not in seen and len(recorded) < RECORDED_ALTERNATIVES:
            seen.add(_identity(candidate))
            recorded.append(candidate)
    return tuple(_alternative(rank, candidate, queued) for rank, candidate in enumerate(recorded, start=1))


def _identity(candidate: Candidate) -> tuple[int, tuple[int, ...]]:
    return candidate.graph.position, tuple(use.lane.slot for use in candidate.in_slot_order)


def _alternative(rank: int, candidate: Candidate, queued: bool) -> Alternative:
    waits = queued and candidate.eligible and candidate.needs_empty
    return Alternative(
        rank=rank,
        shape=candidate.graph.shape,
        score_kind=candidate.score_kind,
        score=candidate.score,
        parts=candidate.parts,
        active_rows=len(candidate.uses),
        request_ids=tuple(use.lane.resident.spec.request_id for use in candidate.in_slot_order),
        selected_cost_ns=candidate.graph.duration_ns,
        cost_state=candidate.graph.state,
        barred_by=BarredBy.NEEDS_EMPTY_WINDOW if waits else candidate.barred_by,
        following=candidate.following.shape if candidate.following else None,
    )


def _margin(chosen: Candidate, others: list[Candidate]) -> float | None:
    """(score - best eligible other's) / |score|; None without another of the same score kind."""
    runner_up = next((c for c in others if c.eligible and c.known is chosen.known), None)
    if runner_up is None or chosen.score == 0.0:
        return None
    return (chosen.score - runner_up.score) / abs(chosen.score)
