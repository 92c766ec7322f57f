"""Selection: the winner among the candidates, and the runner-ups that are recorded with it (S4)."""

from __future__ import annotations

from scheduler.plans import Alternative, LedgerBalances, Reason, ScheduledPlan
from scheduler.reference.candidates import Candidate, plan_lane
from scheduler.reference.value import DecisionContext

RECORDED_ALTERNATIVES = 4


def ranked(candidates: list[Candidate]) -> list[Candidate]:
    """The candidates in the total order, the barred ones behind all others."""
    return sorted(candidates, key=lambda c: (not c.eligible, c.order()))


def make_plan(ranking: list[Candidate], context: DecisionContext, ledgers: LedgerBalances) -> ScheduledPlan | None:
    """Freezes the first of `ranking` with its lanes, parts, cost and runner-ups; None without an eligible one."""
    if not ranking or not ranking[0].eligible:
        return None
    winner, others = ranking[0], ranking[1:]
    estimate = winner.estimate
    return ScheduledPlan(
        shape=winner.shape,
        lanes=tuple(plan_lane(winner, i, context) for i in range(len(winner.lanes))),
        reason=Reason.ORDINARY if estimate.known else Reason.DISCOVERY,
        score_kind=winner.score_kind,
        score=winner.score,
        log_scale=context.log_scale,
        parts=winner.parts,
        selected_cost_ns=estimate.duration_ns,
        observation_age_ns=None if estimate.observed_ns is None else context.now_ns - estimate.observed_ns,
        cost_state=estimate.state,
        exploration_credit_ns=0,
        ledgers=ledgers,
        alternatives=_alternatives(winner, others),
        margin=_margin(winner, others),
        candidates=len(ranking),
        active_decoders=context.active_decoders,
        logical_rows=winner.logical_rows,
        planned_ns=context.now_ns,
        lane_epochs=tuple(lane.resident.epoch for lane in winner.lanes),
    )


def _alternatives(winner: Candidate, others: list[Candidate]) -> tuple[Alternative, ...]:
    """The best of every other kind, then the best by score, distinct in shape and cohort. Barred ones come last."""
    first_of_kind: list[Candidate] = []
    kinds = {winner.shape.kind}
    for candidate in others:
        if candidate.shape.kind not in kinds:
            kinds.add(candidate.shape.kind)
            first_of_kind.append(candidate)
    seen = {(winner.shape, winner.cohort)}
    chosen: list[Candidate] = []
    for candidate in [*first_of_kind, *others]:
        identity = (candidate.shape, candidate.cohort)
        if identity not in seen and len(chosen) < RECORDED_ALTERNATIVES:
            seen.add(identity)
            chosen.append(candidate)
    return tuple(_alternative(rank, candidate) for rank, candidate in enumerate(chosen, start=1))


def _alternative(rank: int, candidate: Candidate) -> Alternative:
    return Alternative(
        rank=rank,
        shape=candidate.shape,
        score_kind=candidate.score_kind,
        score=candidate.score,
        parts=candidate.parts,
        active_rows=len(candidate.lanes),
        request_ids=candidate.cohort,
        selected_cost_ns=candidate.estimate.duration_ns,
        cost_state=candidate.estimate.state,
        barred_by=candidate.barred_by,
    )


def _margin(winner: Candidate, others: list[Candidate]) -> float | None:
    """(winner's score - best eligible other's) / |winner's|; None without another of the same score kind."""
    runner_up = next((c for c in others if c.eligible and c.score_kind is winner.score_kind), None)
    if runner_up is None or winner.score == 0.0:
        return None
    return (winner.score - runner_up.score) / abs(winner.score)
