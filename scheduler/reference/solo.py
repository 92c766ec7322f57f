"""Solo chunking: when one prompt is alone, its remaining segment alone says which graph runs."""

from __future__ import annotations

from scheduler.reference.decision import Decision
from scheduler.reference.residents import Stage
from scheduler.shapes import GraphKind


def solo_capacity(decision: Decision) -> int | None:
    """The prompt capacity that the rule picks, or None when it does not apply or its graph could not run.

    The largest while the segment fills it, else the smallest that covers the rest.
    """
    deterministic = decision.policy.prefill_chunking == "deterministic"
    if not deterministic or decision.queue_depth or len(decision.residents) != 1:
        return None
    resident = decision.residents[0]
    if resident.stage is not Stage.PREFILL or not resident.selectable:
        return None
    kind = GraphKind.SCORED_PREFILL if resident.spec.scored else GraphKind.PREFILL
    graphs = [graph for graph in decision.graphs if graph.shape.kind is kind]
    if not graphs:
        return None
    capacities = [graph.shape.prefill_capacity for graph in graphs]
    remaining = resident.prompt.segment_end(resident.consumed) - resident.consumed
    chosen = min((c for c in capacities if c >= remaining), default=max(capacities))
    graph = next(graph for graph in graphs if graph.shape.prefill_capacity == chosen)
    return chosen if graph.known and resident.work(chosen) > 0 else None
