"""Candidates of one graph: prefill, additive decoding, mixed and terminal ones (specification S4)."""

from __future__ import annotations

from scheduler.plans import BarredBy
from scheduler.reference.candidates import (
    Candidate,
    Use,
    best_decoders,
    best_prompt,
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
    """One for each lane in PREFILL that the graph can serve, in slot order."""
    found = []
    for use in prompts(context, graph, context.stages[Stage.PREFILL]):
        duplicate = unmeasured_duplicate(context, graph, use)
        found.append(single(context, graph, [use], BarredBy.UNMEASURED if duplicate else BarredBy.NONE))
    return found


def additive_candidates(context: Context, graph: Graph) -> list[Candidate]:
    """The highest lane values that fit B: the best cohort where rows do not constrain each other."""
    ready = _ranked_decoders(context, graph)
    return [single(context, graph, ready[: graph.shape.batch_capacity])] if ready else []


def mixed_candidates(context: Context, graph: Graph, prompt_too: bool = True) -> list[Candidate]:
    """Decoders alone, then the best prompt row with the best decoders in the remaining rows."""
    found = additive_candidates(context, graph)
    prompt = best_prompt(prompts(context, graph, context.stages[Stage.PREFILL])) if prompt_too else None
    if prompt is not None:
        ready = _ranked_decoders(context, graph)
        found.append(single(context, graph, [*ready[: graph.shape.batch_capacity - 1], prompt]))
    return found


def terminal_candidates(context: Context, graph: Graph) -> list[Candidate]:
    """The most valuable terminal rows that fit B."""
    rows = terminal_uses(context, context.stages[Stage.TERMINAL], graph.duration_ms)
    return [single(context, graph, rows[: graph.shape.batch_capacity])] if rows else []


def _ranked_decoders(context: Context, graph: Graph) -> list[Use]:
    lanes = context.decoding
    return best_decoders(
        [decode_use(context, graph, lane, context.rows(lane, graph), graph.duration_ms) for lane in lanes]
    )
