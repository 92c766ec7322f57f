"""Chains of several prerequisites, ranked by each lane's own continuation (specification S5)."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.plans import Role
from scheduler.reference.candidates import Candidate, Use, decode_use, prompt_use, reliefs_of
from scheduler.reference.decision import Graph
from scheduler.reference.value import NOTHING, Context, Lane, Parts, generation_graphs, total_of
from scheduler.shapes import GraphKind


class _Continuation(NamedTuple):
    """What a lane does after its chain: its value in some inference graph, and F with the chain, None while unknown."""

    parts: Parts
    further_ns: int | None

    def factor(self, graph: Graph, known: bool) -> float:
        """T/(T+F) behind the prerequisite `graph`; 1 for undivided work."""
        if self.further_ns is None or not known:
            return 1.0
        return graph.duration_ms / ((graph.duration_ns + self.further_ns) / 1e6)


def multistage_candidates(context: Context, graph: Graph, stage: list[Lane]) -> list[Candidate]:
    """The first B lanes by contribution, where some lane of the stage has more prerequisites before it.

    Lookahead is bounded: V*T/(T+F) stands for everything that follows. An unknown duration of T, of a kind in a
    chain, or of all graphs that may end it makes the candidate undivided work.
    """
    if not any(lane.resident.chain() for lane in stage):
        return []
    options = {lane.slot: _continuations(context, lane, graph.duration_ms) for lane in stage}
    lanes = [lane for lane in stage if options[lane.slot]]
    if not lanes:
        return []
    known = graph.known and all(any(o.further_ns is not None for o in options[lane.slot]) for lane in lanes)
    if not known:
        options = {lane.slot: _continuations(context, lane, 0.0) for lane in lanes}
    best = {lane.slot: _best(graph, options[lane.slot], known) for lane in lanes}
    rank = {slot: option.parts.value * option.factor(graph, known) for slot, option in best.items()}
    cohort = sorted(lanes, key=lambda lane: (-rank[lane.slot], lane.tick, lane.slot))[: graph.shape.batch_capacity]
    sums = total_of(best[lane.slot].parts.times(best[lane.slot].factor(graph, known)) for lane in cohort)
    horizon_ms = graph.duration_ms if known else 0.0
    scored = context.score(sums, horizon_ms if known else None, reliefs_of(context, (), horizon_ms))
    uses = tuple(Use(lane, Role(graph.shape.kind.value), 1, 0, 0, NOTHING) for lane in cohort)
    return [Candidate(graph, uses, known, graph.duration_ns if known else 0, *scored)]


def _continuations(context: Context, lane: Lane, horizon_ms: float) -> list[_Continuation]:
    """Every graph that may end the lane's chain, in catalog order. It serves nobody yet, so no lateness is spared."""
    chain_ns = _chain_ns(context, lane)
    found = []
    for graph in _inference_graphs(context, lane):
        use = _inference(context, graph, lane, horizon_ms)
        if use is not None:
            further = chain_ns + graph.duration_ns if chain_ns is not None and graph.known else None
            found.append(_Continuation(use.parts._replace(late=0.0), further))
    return found


def _best(graph: Graph, options: list[_Continuation], known: bool) -> _Continuation:
    """The highest V*T/(T+F), first in catalog order on a tie; graphs of unknown duration only for undivided work."""
    usable = [option for option in options if option.further_ns is not None or not known]
    return max(usable, key=lambda option: option.parts.value * option.factor(graph, known))


def _chain_ns(context: Context, lane: Lane) -> int | None:
    """The smallest known durations of the chain's kinds, summed; None when one has none."""
    total = 0
    for kind in lane.resident.chain():
        known = [graph.duration_ns for graph in context.decision.graphs if graph.shape.kind is kind and graph.known]
        if not known:
            return None
        total += min(known)
    return total


def _inference_graphs(context: Context, lane: Lane) -> list[Graph]:
    """Shapes that can end the lane's chain: generation ones when its prompt is whole, else of its kind of prefill."""
    if lane.resident.prompt_whole:
        return generation_graphs(context.decision)
    prefill = GraphKind.SCORED_PREFILL if lane.resident.spec.scored else GraphKind.PREFILL
    kinds = {prefill} if lane.resident.spec.scored else {prefill, GraphKind.MIXED}
    return [graph for graph in context.decision.graphs if graph.usable and graph.shape.kind in kinds]


def _inference(context: Context, graph: Graph, lane: Lane, horizon_ms: float) -> Use | None:
    """The lane's share of `graph` when its chain has ended, None when it would have none."""
    if lane.resident.prompt_whole:
        rows = context.rows(lane, graph)
        return decode_use(context, graph, lane, rows, horizon_ms) if rows >= 1 else None
    work = lane.resident.work(graph.shape.prefill_capacity)
    return prompt_use(context, lane, work) if work > 0 else None
