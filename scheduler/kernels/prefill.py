"""Prefill candidates: every lane with every graph of its kind (S4), and the solo chunking rule."""

from __future__ import annotations

from scheduler import layout
from scheduler.kernels.additive import lone_relief, take_prompt
from scheduler.kernels.context import is_runnable
from scheduler.kernels.jit import inlined, inner
from scheduler.kernels.table import finish_candidate, price, start_candidate
from scheduler.kernels.waiting import is_ordered


@inlined
def prefill_kind(slot):
    """The kind of graph that the slot's prompt runs on."""
    return layout.KIND_SCORED_PREFILL if slot["scored"] == 1 else layout.KIND_PREFILL


@inner
def append_prefill(world, lanes, graph, solo_prompt):
    """One candidate per lane in stage PREFILL with work on `graph`, in slot order; of ordered prompts the first alone.

    `solo_prompt`: the only C that competes, 0 for any. Barred UNMEASURED where the cost is unknown and a smaller graph
    of the kind consumes the same (S6); work does not fall with C, so the next smaller one decides.
    """
    shape = world.graphs[graph]
    if solo_prompt != 0 and shape["prompt"] != solo_prompt:
        return
    capacity, below = shape["capacity_index"], shape["below"]
    ordered = is_ordered(world.policy[0])
    for i in range(len(lanes.prompts)):
        slot = lanes.prompts[i]
        work = world.work[slot, capacity]
        if work == 0 or prefill_kind(world.slots[slot]) != shape["kind"]:
            continue
        c = start_candidate(world, graph, -1)
        take_prompt(world, c, slot, work)
        if shape["duration_ns"] == 0 and below >= 0 and world.work[slot, below] == work:
            world.candidates[c]["barred"] = layout.UNMEASURED
        world.candidates[c]["prompt_wait_relief"] = lone_relief(world, lanes, slot, work)
        price(world, c)
        finish_candidate(world, c)
        world.decision[0]["priced"] += 1
        if ordered:
            break


@inner
def solo_graph(world):
    """The graph of the solo chunking rule; -1 where the rule does not apply or bails.

    It applies when the only runnable resident is in stage PREFILL and nothing is in flight. The largest C of its kind
    while the segment holds it, else the smallest that covers the rest; measured durations never enter.
    """
    decision = world.decision[0]
    if world.policy[0]["deterministic"] == 0 or decision["runnable"] != 1 or decision["queue_depth"] != 0:
        return -1
    slot = 0
    while not is_runnable(world.slots[slot]):
        slot += 1
    state = world.slots[slot]
    if state["stage"] != layout.PREFILL or state["retiring"] == 1:
        return -1
    left, largest, covering = state["segment_end"] - state["consumed"], -1, -1
    for g in range(len(world.graphs)):
        if world.graphs[g]["kind"] != prefill_kind(state):
            continue
        capacity = world.graphs[g]["prompt"]
        if largest < 0 or capacity > world.graphs[largest]["prompt"]:
            largest = g
        if capacity >= left and (covering < 0 or capacity < world.graphs[covering]["prompt"]):
            covering = g
    if largest < 0:
        return -1
    chosen = largest if left >= world.graphs[largest]["prompt"] else covering
    if world.graphs[chosen]["duration_ns"] == 0 or world.work[slot, world.graphs[chosen]["capacity_index"]] == 0:
        return -1
    return chosen
