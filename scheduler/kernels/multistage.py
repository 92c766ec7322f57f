"""Chains of more than one prerequisite (S5): lanes ranked by the value of their own continuation.

A lane whose inference, worth V, lies F ms behind the prerequisite's own T ms contributes V*T/(T + F). F is the lane's
chain of further prerequisites, each at the smallest measured duration of its kind, and the inference graph that makes
the most of it.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from scheduler import layout
from scheduler.kernels.context import (
    decode_relief,
    decode_token,
    prompt_delivery,
    prompt_token,
    rows_of,
)
from scheduler.kernels.jit import allocating, inner
from scheduler.kernels.order import sort_lanes
from scheduler.kernels.table import finish_candidate, price, push, start_candidate

# By slot [S]: a lane's contribution, its parts, whether any inference graph serves it, and zeros to sort by.
Contributions = namedtuple("Contributions", "total token delivery relief rows")


@allocating
def append_multistage(world, members, graph):
    """The multistage candidate of a prerequisite shape, where a selectable lane of its stage has a chain."""
    chained = False
    for i in range(len(members)):
        chained = chained or restores(world.slots[members[i]]) + images(world.slots[members[i]]) > 0
    if not chained:
        return
    restore_ns = _least_duration(world, layout.KIND_RESTORE)
    vision_ns = _least_duration(world, layout.KIND_VISION)
    known = _all_known(world, members, graph, restore_ns, vision_ns)
    slots = len(world.slots)
    found = Contributions(np.empty(slots), np.empty(slots), np.empty(slots), np.empty(slots), np.zeros(slots, np.int64))
    order = np.empty(len(members), np.int64)
    count = 0
    for i in range(len(members)):
        state = world.slots[members[i]]
        chain_ns = restores(state) * restore_ns + images(state) * vision_ns
        if _contribute(world, members[i], graph, chain_ns, known, found):
            order[count] = members[i]
            count += 1
    if count == 0:
        return
    sort_lanes(world, order, count, found.total, found.rows, max(1, count // 2))
    _append(world, graph, order, min(count, world.graphs[graph]["batch"]), known, found)


@inner
def restores(state):
    """RESTORE executions between a lane's present stage and inference (specification "Requests", chain)."""
    return 1 if state["stage"] == layout.SNAPSHOT and state["window"] == 1 else 0


@inner
def images(state):
    """VISION executions between a lane's present stage and inference."""
    if state["stage"] == layout.SNAPSHOT:
        return state["window_images"] if state["window"] == 1 else 0
    return state["images_left"] - (1 if state["stage"] == layout.VISION else 0)


@inner
def _least_duration(world, kind):
    """The smallest measured duration of a kind in ns, 0 without."""
    least = 0
    for g in range(len(world.graphs)):
        duration_ns = world.graphs[g]["duration_ns"]
        if world.graphs[g]["kind"] == kind and duration_ns > 0 and (least == 0 or duration_ns < least):
            least = duration_ns
    return least


@inner
def _serves(world, slot, g):
    """Whether graph `g` is an inference graph that can serve the lane once its prerequisites are done."""
    shape, state = world.graphs[g], world.slots[slot]
    mixed = shape["kind"] == layout.KIND_MIXED and shape["usable"] == 1
    if state["consumed"] < state["prompt_tokens"]:
        wanted = layout.KIND_SCORED_PREFILL if state["scored"] == 1 else layout.KIND_PREFILL
        fits = shape["kind"] == wanted or (mixed and state["scored"] == 0)
        return fits and world.work[slot, shape["capacity_index"]] > 0
    generation = shape["kind"] == layout.KIND_DECODE or shape["kind"] == layout.KIND_SPECULATIVE
    return (mixed or (generation and shape["usable"] == 1)) and world.views[slot]["left"] >= 1


@inner
def _all_known(world, members, graph, restore_ns, vision_ns):
    """Whether T, every chain and an inference graph of every lane are measured."""
    if world.graphs[graph]["duration_ns"] == 0:
        return False
    for i in range(len(members)):
        state = world.slots[members[i]]
        served, measured = False, False
        for g in range(len(world.graphs)):
            if _serves(world, members[i], g):
                served = True
                measured = measured or world.graphs[g]["duration_ns"] > 0
        chain = (restores(state) == 0 or restore_ns > 0) and (images(state) == 0 or vision_ns > 0)
        if served and not (measured and chain):
            return False
    return True


@inner
def _contribute(world, slot, graph, chain_ns, known, found):
    """Sets a lane's best contribution; False where no graph serves it. `known`: weigh by T/(T + F), measured F only."""
    own_ns = world.graphs[graph]["duration_ns"]
    horizon_ms = own_ns / 1e6 if known else 0.0
    decodes = world.slots[slot]["consumed"] >= world.slots[slot]["prompt_tokens"]
    served = False
    for g in range(len(world.graphs)):
        if not _serves(world, slot, g) or (known and world.graphs[g]["duration_ns"] == 0):
            continue
        factor = 1.0
        if known:
            factor = horizon_ms / ((own_ns + chain_ns + world.graphs[g]["duration_ns"]) / 1e6)
        if decodes:
            token = decode_token(world, slot, g, rows_of(world, slot, g))
            delivery = world.views[slot]["delivery_price"]
            relief = decode_relief(world, slot, horizon_ms)
        else:
            tokens = world.work[slot, world.graphs[g]["capacity_index"]]
            token, delivery, relief = prompt_token(world, slot, tokens), prompt_delivery(world, slot, tokens), 0.0
        total = (token + delivery + relief) * factor
        if not served or total > found.total[slot]:
            found.total[slot] = total
            found.token[slot] = token * factor
            found.delivery[slot] = delivery * factor
            found.relief[slot] = relief * factor
            served = True
    return served


@inner
def _append(world, graph, order, count, known, found):
    c = start_candidate(world, graph, -1)
    row = world.candidates[c]
    if not known:
        row["known"] = 0
        row["horizon_ns"] = 0
        row["horizon_ms"] = 0.0
    for i in range(count):
        push(world, order[i], 1)
        row["token_value"] += found.token[order[i]]
        row["delivery_value"] += found.delivery[order[i]]
        row["age_relief"] += found.relief[order[i]]
    row["lanes"] = count
    row["served"] = count
    price(world, c)
    finish_candidate(world, c)
    world.decision[0]["priced"] += 1
