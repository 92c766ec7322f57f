"""Which prompts ride in a mixed graph of each capacity, and how far each is read (S4, S12)."""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from scheduler import layout
from scheduler.kernels.context import (
    CAPACITIES,
    FILL_RELIEF,
    FILL_SLOTS,
    FILL_TOKENS,
    FILLED,
    MOST_PROMPTS,
    prompt_lane_value,
)
from scheduler.kernels.jit import allocating, inlined, inner
from scheduler.kernels.waiting import is_ordered

# The prompts that fill a mixed graph, by capacity index, found when first asked for; columns beyond C are not used.
# capacities: prompt tokens; count: prompts taken, -1 before they are looked for; slot, tokens [MOST_PROMPTS, C]: which,
# and what each consumes; relief [MOST_PROMPTS + 1, C]: the prompt_wait_relief of the first of them, NaN before it is
# asked for. A graph that carries fewer takes the first of them.
Fills = namedtuple("Fills", "capacities count slot tokens relief")

_NOT_LOOKED_FOR = -1


@allocating
def new_fills(world):
    """Nothing is filled yet."""
    scratch, relief = world.scratch, world.amounts[FILL_RELIEF : FILL_RELIEF + MOST_PROMPTS + 1]
    capacities, count = scratch[CAPACITIES], scratch[FILLED]
    for g in range(len(world.graphs)):
        if world.graphs[g]["prompt"] > 0:
            capacities[world.graphs[g]["capacity_index"]] = world.graphs[g]["prompt"]
    for c in range(world.work.shape[1]):
        count[c] = _NOT_LOOKED_FOR
        for k in range(MOST_PROMPTS + 1):
            relief[k, c] = np.nan
    return Fills(
        capacities,
        count,
        scratch[FILL_SLOTS : FILL_SLOTS + MOST_PROMPTS],
        scratch[FILL_TOKENS : FILL_TOKENS + MOST_PROMPTS],
        relief,
    )


@inner
def prompt_limit(world, decoders):
    """Prompt tokens that a graph may consume beside so many decoding lanes: under a token budget what these leave."""
    budget = world.policy[0]["token_budget"]
    if budget == 0:
        return layout.UNBOUNDED
    smallest = layout.UNBOUNDED
    for g in range(len(world.graphs)):
        if world.graphs[g]["prompt"] > 0:
            smallest = min(smallest, world.graphs[g]["prompt"])
    return max(smallest, budget - decoders)


@inner
def fill_prompts(world, fills, prompts, capacity, decoders):
    """How many of the ready `prompts` a mixed graph of a capacity index takes; fills.slot and tokens say which.

    They are taken in the order, each as far as the room that is left allows; one that cannot begin is passed over. The
    order is that of `prompts` or, where the policy has none, by value for this capacity. `decoders`: decoding lanes in
    all, which count against a token budget.
    """
    if fills.count[capacity] != _NOT_LOOKED_FOR:
        return fills.count[capacity]
    room, count, ordered = (
        min(fills.capacities[capacity], prompt_limit(world, decoders)),
        0,
        is_ordered(world.policy[0]),
    )
    slot = -1
    for i in range(len(prompts)):
        slot = prompts[i] if ordered else best_prompt(world, prompts, capacity, slot)
        if slot < 0 or room == 0 or count == MOST_PROMPTS:
            break
        if world.slots[slot]["scored"] == 1:
            continue
        tokens = _tokens(world, fills, slot, capacity, room)
        if tokens > 0:
            fills.slot[count, capacity] = slot
            fills.tokens[count, capacity] = tokens
            room -= tokens
            count += 1
    fills.count[capacity] = count
    return count


@inlined
def first_prompt(world, prompts, capacity, scored):
    """The first of the prompts in the order with work on a capacity index, of those scored or not; -1 without."""
    for i in range(len(prompts)):
        if world.work[prompts[i], capacity] > 0 and world.slots[prompts[i]]["scored"] == scored:
            return prompts[i]
    return -1


@inner
def _tokens(world, fills, slot, capacity, room):
    """Prompt tokens that the slot consumes in `room` tokens of a graph of a capacity index.

    Where its prompt has blocks that no chunk may end inside, only the works of whole capacities are known.
    """
    if room == fills.capacities[capacity]:
        return world.work[slot, capacity]
    if world.slots[slot]["blocks"] == 0:
        return min(room, world.slots[slot]["segment_end"] - world.slots[slot]["consumed"])
    fitting = capacity
    while fitting >= 0 and fills.capacities[fitting] > room:
        fitting -= 1
    return world.work[slot, fitting] if fitting >= 0 else 0


@inner
def best_prompt(world, prompts, capacity, behind):
    """The unscored prompt lane with work that is first by (-v, LRU, -work, slot); -1 without.

    `behind`: only those that this order has behind that slot, -1 for all.
    """
    last_value = 0.0
    if behind >= 0:
        last_value = prompt_lane_value(world, behind, world.work[behind, capacity])
    best, best_value = -1, 0.0
    for i in range(len(prompts)):
        slot = prompts[i]
        work = world.work[slot, capacity]
        if work == 0 or world.slots[slot]["scored"] == 1 or slot == behind:
            continue
        value = prompt_lane_value(world, slot, work)
        if behind >= 0 and _comes_first(world, capacity, slot, value, behind, last_value):
            continue
        if best < 0 or _comes_first(world, capacity, slot, value, best, best_value):
            best, best_value = slot, value
    return best


@inlined
def _comes_first(world, capacity, a, value_a, b, value_b):
    if value_a != value_b:
        return value_a > value_b
    tick_a, tick_b = world.slots[a]["last_served_tick"], world.slots[b]["last_served_tick"]
    if tick_a != tick_b:
        return tick_a < tick_b
    work_a, work_b = world.work[a, capacity], world.work[b, capacity]
    return work_a > work_b if work_a != work_b else a < b
