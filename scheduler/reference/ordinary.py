"""Candidates of one graph: prefill, additive decoding and terminal ones (specification S4)."""

from __future__ import annotations

from scheduler.plans import BarredBy
from scheduler.reference.candidates import (
    Candidate,
    Use,
    best_decoders,
    decode_use,
    prompts,
    single,
    terminal_uses,
    unmeasured_duplicate,
)
from scheduler.reference.decision import Graph
from scheduler.reference.residents import Stage
from scheduler.reference.value import Context


def prefill_candidates(context: Context, graph: Graph) -> list[Candidate]:
    """One for each lane in PREFILL that the graph can serve, in slot order; in the policy's order the first alone."""
    uses = prompts(context, graph, context.by_order(context.stages[Stage.PREFILL]))
    found = []
    for use in uses[:1] if context.ordered else uses:
        duplicate = unmeasured_duplicate(context, graph, use)
        found.append(single(context, graph, [use], BarredBy.UNMEASURED if duplicate else BarredBy.NONE))
    return found


def additive_candidates(context: Context, graph: Graph) -> list[Candidate]:
    """The highest lane values that fit B: the best cohort where rows do not constrain each other."""
    ready = ranked_decoders(context, graph)
    return [single(context, graph, ready[: graph.shape.batch_capacity])] if ready else []


def terminal_candidates(context: Context, graph: Graph) -> list[Candidate]:
    """The most valuable terminal rows that fit B."""
    rows = terminal_uses(context, context.stages[Stage.TERMINAL], graph.duration_ms)
    return [single(context, graph, rows[: graph.shape.batch_capacity])] if rows else []


def ranked_decoders(context: Context, graph: Graph) -> list[Use]:
    """Every decoding lane in the graph, the best first."""
    lanes = context.decoding
    return best_decoders(
        [decode_use(context, graph, lane, context.rows(lane, graph), graph.duration_ms) for lane in lanes]
    )
