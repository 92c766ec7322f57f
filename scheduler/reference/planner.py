"""The plain planner: every candidate by the rules, pruned, ordered, probed, and frozen into a plan (S4 to S8, S10)."""

from __future__ import annotations

from scheduler.plans import Reason
from scheduler.policy import PolicyConfig
from scheduler.reference.bars import with_bars
from scheduler.reference.candidates import Candidate
from scheduler.reference.decision import CandidateTuple, Decision, Graph, Outcome
from scheduler.reference.extents import PREFILL_KINDS, PREREQUISITE_KINDS, STATE_KINDS, is_ragged
from scheduler.reference.mixed import mixed_candidates
from scheduler.reference.ordinary import additive_candidates, prefill_candidates, terminal_candidates
from scheduler.reference.prerequisites import prerequisite_candidates
from scheduler.reference.probes import probe
from scheduler.reference.pruning import pruned
from scheduler.reference.ragged import ragged_candidates
from scheduler.reference.selection import make_plan
from scheduler.reference.solo import solo_capacity
from scheduler.reference.value import Context
from scheduler.shapes import GraphKind


def plan(decision: Decision) -> Outcome:
    """The best choice of this moment. The plan is None without an eligible candidate, and while the choice must wait.

    A winner (or probe) that needs an empty window waits for the frame in flight: nothing of lower value displaces it.
    """
    if not decision.residents:
        return Outcome(None, ())
    context = Context.of(decision)
    candidates, solo = _competing(context)
    candidates = with_bars(context, candidates)
    readable = tuple(readable_candidate(candidate) for candidate in candidates)
    eligible = [candidate for candidate in candidates if candidate.eligible]
    if not eligible:
        return Outcome(None, readable)
    winner = min(eligible, key=lambda candidate: candidate.order)
    reason = _reason(winner, solo, decision.policy)
    probed = probe(context, candidates, winner) if reason is Reason.ORDINARY else None
    chosen, reason = probed or (winner, reason)
    if decision.queue_depth and chosen.needs_empty:
        return Outcome(None, readable)
    return Outcome(make_plan(chosen, candidates, reason, context), readable)


def readable_candidate(candidate: Candidate) -> CandidateTuple:
    """The candidate in plain values, as all_candidates() lists it."""
    uses = candidate.in_slot_order
    return (
        candidate.graph.shape.label,
        candidate.following.shape.label if candidate.following else None,
        tuple(use.lane.slot for use in uses),
        tuple(use.rows + use.prompt_tokens for use in uses),
        candidate.known,
        candidate.score,
        candidate.barred_by.value,
        candidate.needs_empty,
    )


def _competing(context: Context) -> tuple[list[Candidate], bool]:
    """All candidates, and whether solo chunking limits them. Where all of its own are barred, the catalog competes."""
    capacity = solo_capacity(context.decision)
    if capacity is not None:
        found = _candidates(context, capacity)
        if any(c.eligible and c.graph.shape.kind in PREFILL_KINDS for c in found):
            return found, True
    return _candidates(context, None), False


def _candidates(context: Context, solo: int | None) -> list[Candidate]:
    """Every candidate in catalog order; with `solo` only prompt rows of this capacity."""
    found: list[Candidate] = []
    for graph in context.decision.graphs:
        if graph.usable:
            found += _of_graph(context, graph, solo)
    return pruned(found)


def _of_graph(context: Context, graph: Graph, solo: int | None) -> list[Candidate]:
    kind = graph.shape.kind
    capacity_competes = solo is None or graph.shape.prefill_capacity == solo
    if kind in PREFILL_KINDS:
        return prefill_candidates(context, graph) if capacity_competes else []
    if kind is GraphKind.MIXED:
        return mixed_candidates(context, graph, capacity_competes)
    if kind is GraphKind.TERMINAL_SNAPSHOT:
        return terminal_candidates(context, graph)
    if kind in PREREQUISITE_KINDS:
        return prerequisite_candidates(context, graph)
    if is_ragged(graph.shape):
        return ragged_candidates(context, graph)
    return additive_candidates(context, graph)


def _reason(winner: Candidate, solo: bool, policy: PolicyConfig) -> Reason:
    if not winner.graph.known:
        return Reason.DISCOVERY
    if solo and winner.graph.shape.kind in PREFILL_KINDS:
        return Reason.SOLO_PREFILL
    limited = winner.graph.shape.kind not in STATE_KINDS
    return Reason.TOKEN_BUDGET if limited and policy.token_budget else Reason.ORDINARY
