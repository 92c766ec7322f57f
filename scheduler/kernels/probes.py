"""Funded probes (S7, S8): which candidate displaces the ordinary winner to refresh a duration or to learn acceptance.

The caller has found the ordinary winner, whose duration is known; credit and open episodes are its business.
"""

from __future__ import annotations

import numpy as np

from scheduler import layout
from scheduler.kernels.jit import allocating, inner
from scheduler.kernels.order import precedes


@inner
def timing_refresh(world, winner):
    """The eligible candidate of a measured, stale shape whose last observation or attempt is longest ago; -1 without.

    Ties go to the total order. The winner's own shape is refreshed by running it.
    """
    best, best_ns = -1, 0
    for c in range(world.decision[0]["found"]):
        row = world.candidates[c]
        graph = world.graphs[row["graph"]]
        if row["barred"] != layout.NOT_BARRED or row["graph"] == world.candidates[winner]["graph"]:
            continue
        if graph["duration_ns"] == 0 or world.decision[0]["now_ns"] - graph["observed_ns"] <= world.policy[0]["ttl_ns"]:
            continue
        last_ns = max(graph["observed_ns"], graph["attempted_ns"])
        if best < 0 or last_ns < best_ns or (last_ns == best_ns and precedes(world, c, best)):
            best, best_ns = c, last_ns
    return best


@allocating
def acceptance_learning(world, winner):
    """The eligible SPECULATIVE candidate that gains most over the winner under optimistic yields; -1 without.

    It must give a lane, which has output left to use the observation, more rows than the winner does. Equal gains go
    to the smallest weight among the added depths, shorter T, fewer physical rows and the catalog's order.
    """
    winner_rows = _rows_in_winner(world, winner)
    score = world.candidates[winner]["score"]
    best, best_gain, best_weight = -1, 0.0, 0.0
    for c in range(world.decision[0]["found"]):
        row = world.candidates[c]
        graph = world.graphs[row["graph"]]
        if row["barred"] != layout.NOT_BARRED or row["known"] == 0:
            continue
        if graph["kind"] != layout.KIND_SPECULATIVE or graph["depth"] == 0:
            continue
        weight = _least_weight(world, row, winner_rows)
        if weight < 0.0:
            continue
        optimistic = _optimistic_score(world, row)
        if optimistic <= score:
            continue
        gain = (optimistic - score) / row["horizon_ms"]
        if best < 0 or gain > best_gain or (gain == best_gain and _comes_first(world, c, weight, best, best_weight)):
            best, best_gain, best_weight = c, gain, weight
    return best


@allocating
def _rows_in_winner(world, winner):
    """Each slot's rows as a decode lane of the winner, 1 where it has none [S]."""
    row = world.candidates[winner]
    rows = np.ones(len(world.slots), np.int64)
    kind = world.graphs[row["graph"]]["kind"]
    if kind == layout.KIND_SPECULATIVE or kind == layout.KIND_MIXED:
        for i in range(row["first"], row["first"] + row["lanes"] - row["prompts"]):
            rows[world.pool[0, i]] = world.pool[1, i]
    return rows


@inner
def _least_weight(world, row, winner_rows):
    """The smallest weight among the depths that qualifying lanes add to the winner's; -1.0 without such a lane."""
    estimator = world.graphs[row["graph"]]["estimator"]
    least = -1.0
    for i in range(row["first"], row["first"] + row["lanes"]):
        slot, rows = world.pool[0, i], world.pool[1, i]
        if rows <= winner_rows[slot] or world.views[slot]["left"] - rows < 1:
            continue
        for depth in range(winner_rows[slot], rows):
            weight = world.estimates[slot, world.slots[slot]["source"], estimator, depth - 1, layout.WEIGHT]
            if least < 0.0 or weight < least:
                least = weight
    return least


@inner
def _optimistic_score(world, row):
    """The candidate's score with optimistic yields instead of those that decisions use."""
    estimator = world.graphs[row["graph"]]["estimator"]
    token = 0.0
    for i in range(row["first"], row["first"] + row["lanes"]):
        slot, rows = world.pool[0, i], world.pool[1, i]
        token += world.views[slot]["output_price"] * world.yields[slot, estimator, layout.YIELD_OPTIMISTIC, rows]
    four = token + row["delivery_value"] + row["age_relief"] + row["terminal_relief"]
    work = four + row["prompt_wait_relief"] + row["decode_late_relief"]
    return work / row["horizon_ms"] - row["wait_cost"]


@inner
def _comes_first(world, a, weight_a, b, weight_b):
    """Of two candidates of equal gain, whether `a` is preferred; of equal ones the earlier stays."""
    x, y = world.candidates[a], world.candidates[b]
    if weight_a != weight_b:
        return weight_a < weight_b
    if x["horizon_ns"] != y["horizon_ns"]:
        return x["horizon_ns"] < y["horizon_ns"]
    return x["physical_rows"] < y["physical_rows"]
