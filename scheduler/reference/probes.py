"""Funded probes: a stale alternative, or a wider round than the ordinary one (specification S7, S8)."""

from __future__ import annotations

from scheduler.plans import CostState, Reason, Role
from scheduler.reference.candidates import Candidate, Use
from scheduler.reference.extents import physical_rows, uses_forecast
from scheduler.reference.value import Context, Parts, Reliefs, total_of
from scheduler.shapes import GraphKind


def probe(context: Context, candidates: list[Candidate], winner: Candidate) -> tuple[Candidate, Reason] | None:
    """What full credit puts in the place of a known winner of reason ORDINARY, None without a probe."""
    if not winner.known:
        return None
    found = timing_refresh(candidates, winner) if context.decision.timing_full else None
    if found is not None:
        return found, Reason.TIMING_REFRESH
    learns = context.decision.acceptance_full and not context.decision.fixed_width
    found = acceptance_learning(context, candidates, winner) if learns else None
    return (found, Reason.ACCEPTANCE_LEARNING) if found is not None else None


def timing_refresh(candidates: list[Candidate], winner: Candidate) -> Candidate | None:
    """The eligible stale alternative that was least recently observed or attempted, then in the total order."""
    stale = [c for c in candidates if c.eligible and c.known and c.graph.state is CostState.STALE]
    others = [c for c in stale if c.graph.shape != winner.graph.shape]
    return min(others, key=lambda c: (_last_try(c), c.order), default=None)


def _last_try(candidate: Candidate) -> int:
    graph = candidate.graph
    return max(-1 if time is None else time for time in (graph.observed_ns, graph.attempted_ns))


def acceptance_learning(context: Context, candidates: list[Candidate], winner: Candidate) -> Candidate | None:
    """The round with the largest optimistic gain per ms that offers some lane more drafts than the winner does.

    Ties: least weight among the added depths, shorter, physically smaller, catalog order.
    """
    winner_rows = {use.lane.slot: use.rows for use in winner.uses if use.role is Role.DECODE}
    found = []
    for candidate in candidates:
        shape = candidate.graph.shape
        if not (candidate.eligible and candidate.known and shape.kind is GraphKind.SPECULATIVE and shape.draft_depth):
            continue
        weights = _added_weights(candidate, winner_rows)
        optimistic = _optimistic_score(context, candidate)
        if weights and optimistic > winner.score:
            gain = (optimistic - winner.score) / candidate.graph.duration_ms
            size = candidate.graph.duration_ns, physical_rows(shape), candidate.graph.position
            found.append(((-gain, min(weights), *size), candidate))
    return min(found, key=lambda entry: entry[0], default=(None, None))[1]


def _added_weights(candidate: Candidate, winner_rows: dict[int, int]) -> list[float]:
    """Weights at the depths that the candidate offers beyond the winner, of lanes that have output left to use them."""
    forecast = uses_forecast(candidate.graph.shape)
    weights = []
    for use in candidate.uses:
        resident, rows = use.lane.resident, winner_rows.get(use.lane.slot, 1)
        if use.rows > rows and resident.left - use.rows >= 1:
            weights += [resident.weight(depth, forecast) for depth in range(rows, use.rows)]
    return weights


def _optimistic_score(context: Context, candidate: Candidate) -> float:
    """The candidate's score under every lane's optimistic yield."""
    graph = candidate.graph

    def parts(use: Use) -> Parts:
        expected = use.lane.resident.yield_optimistic(use.rows, uses_forecast(graph.shape))
        return context.decode_parts_with(use.lane, expected, graph.duration_ms)

    reliefs = Reliefs(candidate.parts.prompt_wait_relief, candidate.parts.decode_late_relief)
    return context.score(total_of(parts(use) for use in candidate.uses), graph.duration_ms, reliefs).score
