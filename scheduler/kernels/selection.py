"""Selection: the ordinary winner, the probe that may displace it, and what is recorded beside it (S4, S7, S8)."""

from __future__ import annotations

import numpy as np

from scheduler import layout
from scheduler.kernels.context import MARKS
from scheduler.kernels.jit import allocating, inlined, inner
from scheduler.kernels.order import precedes

ORDINARY, DISCOVERY, TIMING_REFRESH, ACCEPTANCE_LEARNING, SOLO_PREFILL, TOKEN_BUDGET = range(6)
"""Reasons, in the order of scheduler.plans.Reason."""

_KINDS = 10


@inner
def ordinary_winner(world):
    """The first eligible candidate in the total order, -1 without one."""
    found = world.decision[0]["found"]
    winner = found  # none yet
    for c in range(found):
        if world.candidates[c]["barred"] == layout.NOT_BARRED and (winner == found or precedes(world, c, winner)):
            winner = c
    return winner if winner < found else -1


@inner
def winner_reason(world, winner):
    """DISCOVERY, SOLO_PREFILL, TOKEN_BUDGET for work that a policy's budget limits, or else ORDINARY."""
    graph = world.graphs[world.candidates[winner]["graph"]]
    if graph["duration_ns"] == 0:
        return DISCOVERY
    prefill = graph["kind"] == layout.KIND_PREFILL or graph["kind"] == layout.KIND_SCORED_PREFILL
    if prefill and world.decision[0]["solo_graph"] >= 0:
        return SOLO_PREFILL
    limited = graph["kind"] >= layout.KIND_PREFILL  # the kinds before it prepare and keep states
    return TOKEN_BUDGET if limited and world.policy[0]["token_budget"] > 0 else ORDINARY


@inner
def runner_up(world, chosen):
    """The best other eligible candidate of the same score kind, -1 without one: what the margin is measured to."""
    found, known = world.decision[0]["found"], world.candidates[chosen]["known"]
    best = found  # none yet
    for c in range(found):
        row = world.candidates[c]
        if c == chosen or row["barred"] != layout.NOT_BARRED or row["known"] != known:
            continue
        if best == found or precedes(world, c, best):
            best = c
    return best if best < found else -1


@inner
def choose_alternatives(world, chosen, out):
    """Writes the rows of up to len(out) alternatives: the best of every other kind, then the best, all distinct.

    Returns how many. Distinct in shape and in the set of submitted slots, from the chosen one too.
    """
    kinds = _best_of_kinds(world, chosen, out)
    count = kinds
    if count == len(out):
        return count
    for c in range(world.decision[0]["found"]):
        if count == len(out) and not _ranks_before(world, c, out[count - 1]):
            continue
        if not _is_taken(world, c, chosen, out, kinds):
            count = _insert(world, c, out, kinds, count)
    return count


@inner
def _insert(world, c, out, first, count):
    """Puts `c` in its place among out[first:count], which are ranked; its equal there, or else the last, makes room."""
    at = count
    for i in range(first, count):
        if _is_same(world, c, out[i]):
            at = i
    if at < count and not _ranks_before(world, c, out[at]):
        return count
    if at == count and count == len(out):
        at = count - 1
    elif at == count:
        count += 1
    while at > first and _ranks_before(world, c, out[at - 1]):
        out[at] = out[at - 1]
        at -= 1
    out[at] = c
    return count


@allocating
def _best_of_kinds(world, chosen, out):
    """The best candidate of each kind but the chosen one's, in ranking order; as many as `out` holds."""
    best = np.full(_KINDS, -1, np.int64)
    own = world.graphs[world.candidates[chosen]["graph"]]["kind"]
    for c in range(world.decision[0]["found"]):
        kind = world.graphs[world.candidates[c]["graph"]]["kind"]
        if kind != own and (best[kind] < 0 or _ranks_before(world, c, best[kind])):
            best[kind] = c
    count = 0
    while count < len(out):
        first = -1
        for kind in range(_KINDS):
            if best[kind] >= 0 and (first < 0 or _ranks_before(world, best[kind], best[first])):
                first = kind
        if first < 0:
            break
        out[count] = best[first]
        best[first] = -1
        count += 1
    return count


@inlined
def _ranks_before(world, a, b):
    """The total order with the barred ones behind all others."""
    barred_a = world.candidates[a]["barred"] != layout.NOT_BARRED
    barred_b = world.candidates[b]["barred"] != layout.NOT_BARRED
    if barred_a != barred_b:
        return barred_b
    return precedes(world, a, b)


@inner
def _is_taken(world, c, chosen, out, count):
    """Whether `c` has the shape and slots of the chosen one or of one taken before."""
    if _is_same(world, c, chosen):
        return True
    for i in range(count):
        if _is_same(world, c, out[i]):
            return True
    return False


@inner
def _is_same(world, a, b):
    """Same shape and same submitted slots."""
    if a == b:
        return True
    x, y = world.candidates[a], world.candidates[b]
    if x["graph"] != y["graph"] or x["lanes"] != y["lanes"] or x["prompts"] != y["prompts"]:
        return False
    marks = world.scratch[MARKS]
    for i in range(x["first"], x["first"] + x["lanes"]):
        marks[world.pool[0, i]] = 0
    for i in range(y["first"], y["first"] + y["lanes"]):
        marks[world.pool[0, i]] = 1
    for i in range(x["first"], x["first"] + x["lanes"]):
        if marks[world.pool[0, i]] == 0:
            return False
    return True
