"""Mixed graphs: decoding lanes beside the prompts that fill what is left of a graph (specification S4, S12)."""

from __future__ import annotations

from scheduler.reference.candidates import Candidate, Use, prompt_use, prompts, ranked_prompts, single
from scheduler.reference.decision import Graph
from scheduler.reference.ordinary import additive_candidates, ranked_decoders
from scheduler.reference.residents import Resident, Stage
from scheduler.reference.value import Context, Lane


def mixed_candidates(context: Context, graph: Graph, prompt_too: bool = True) -> list[Candidate]:
    """Decoders alone, then the first prompts with the best decoders in the remaining rows.

    As many prompts as find a row without a decoder's giving way, at least one; then one more each time. Where every
    running answer should be served, no decoder gives way.
    """
    found = additive_candidates(context, graph)
    taken = prompts_taken(context, graph) if prompt_too else []
    if not taken:
        return found
    batch, decoders = graph.shape.batch_capacity, ranked_decoders(context, graph)
    fewest = min(len(taken), max(1, batch - len(decoders)))
    most = fewest if context.serves_all else len(taken)
    for count in range(fewest, most + 1):
        found.append(single(context, graph, [*decoders[: batch - count], *taken[:count]]))
    return found


def prompts_taken(context: Context, graph: Graph) -> list[Use]:
    """The prompts that fill the graph, in the order, each as far as the room left by those before it goes."""
    capacity = graph.shape.prefill_capacity
    room = capacity if context.prompt_limit is None else min(capacity, context.prompt_limit)
    taken: list[Use] = []
    for lane in _in_order(context, graph):
        tokens = _fill(context, lane.resident, room, capacity)
        if tokens > 0:
            taken.append(prompt_use(context, lane, tokens))
            room -= tokens
        if room == 0 or len(taken) == graph.shape.prompt_rows:
            break
    return taken


def _in_order(context: Context, graph: Graph) -> list[Lane]:
    """Ready prompts that are not scored: in the policy's order, else the best of this capacity first."""
    ready = context.stages[Stage.PREFILL]
    if context.ordered:
        return [lane for lane in context.by_order(ready) if not lane.resident.spec.scored]
    return [use.lane for use in ranked_prompts(prompts(context, graph, ready))]


def _fill(context: Context, resident: Resident, room: int, capacity: int) -> int:
    """Tokens that the prompt gives to `room`. In a part of a graph a block would need room of its own size.

    So one with blocks fills a part as it would fill the largest graph of the catalog that is no larger.
    """
    if room == capacity:
        return resident.work(capacity)
    if not resident.prompt.blocks:
        return min(room, resident.prompt.segment_end(resident.consumed) - resident.consumed)
    smaller = [c for c in context.prompt_capacities if c <= room]
    return resident.work(max(smaller)) if smaller else 0
