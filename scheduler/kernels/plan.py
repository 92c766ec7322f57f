"""The planner's entry: one decision from the scheduler's arrays (S4, S5, S7, S8, S10)."""

from __future__ import annotations

import numpy as np
from numba import void

from scheduler import layout
from scheduler.kernels import jit
from scheduler.kernels.additive import append_additive, append_mixed, append_ragged, append_terminal, collect_lanes
from scheduler.kernels.bars import set_bars
from scheduler.kernels.context import AMOUNT_ROWS, SCRATCH_ROWS, World, scratch_width, set_context
from scheduler.kernels.fixed_ragged import fixed_ragged
from scheduler.kernels.jit import allocating, entry, inlined, inner
from scheduler.kernels.prefill import append_prefill, solo_graph
from scheduler.kernels.prerequisites import append_prerequisites
from scheduler.kernels.probes import acceptance_learning, timing_refresh
from scheduler.kernels.pruning import prune
from scheduler.kernels.ragged import adaptive_ragged, new_ragged
from scheduler.kernels.record import record_candidate, record_lanes
from scheduler.kernels.selection import (
    ACCEPTANCE_LEARNING,
    ORDINARY,
    TIMING_REFRESH,
    choose_alternatives,
    ordinary_winner,
    runner_up,
    winner_reason,
)


@inner
def _find_candidates(world):
    """All candidates; where solo chunking leaves only barred ones, those of the whole catalog."""
    decision = world.decision[0]
    decision["solo_graph"] = solo_graph(world)
    _append_all(world)
    if decision["solo_graph"] >= 0 and decision["overflow"] == 0 and not _has_eligible_prefill(world):
        decision["solo_graph"] = -1
        decision["found"] = 0
        decision["pooled"] = 0
        decision["priced"] = 0
        _append_all(world)
    if decision["overflow"] == 0:
        prune(world)
        set_bars(world)


@inner
def _has_eligible_prefill(world):
    for c in range(world.decision[0]["found"]):
        kind = world.graphs[world.candidates[c]["graph"]]["kind"]
        prefill = kind == layout.KIND_PREFILL or kind == layout.KIND_SCORED_PREFILL
        if prefill and world.candidates[c]["barred"] == layout.NOT_BARRED:
            return True
    return False


@allocating
def _append_all(world):
    """Every shape's candidates, in catalog order."""
    lanes = collect_lanes(world)
    ragged = new_ragged(world)
    solo = world.decision[0]["solo_graph"]
    solo_prompt = world.graphs[solo]["prompt"] if solo >= 0 else 0
    for g in range(len(world.graphs)):
        kind = world.graphs[g]["kind"]
        if kind == layout.KIND_PREFILL or kind == layout.KIND_SCORED_PREFILL:
            append_prefill(world, lanes, g, solo_prompt)
        elif kind == layout.KIND_TERMINAL_SNAPSHOT:
            append_terminal(world, lanes, g)
        elif kind < layout.KIND_PREFILL:
            append_prerequisites(world, lanes, g)
        elif world.graphs[g]["usable"] == 1:
            _append_generation(world, lanes, ragged, g, solo_prompt)


@inlined
def _append_generation(world, lanes, ragged, graph, solo_prompt):
    shape = world.graphs[graph]
    if shape["kind"] == layout.KIND_MIXED:
        append_mixed(world, lanes, graph, solo_prompt)
    elif shape["ragged"] == 0:
        append_additive(world, lanes, graph)
    elif world.policy[0]["fixed_width"] > 0:
        append_ragged(world, graph, fixed_ragged(world, ragged, graph), 1)
    else:
        most = min(shape["batch"], shape["rows"], len(lanes.decoders))
        append_ragged(world, graph, adaptive_ragged(world, ragged, graph), 3 * most)


@inner
def _choose(world):
    """The ordinary winner, or a funded probe; chosen stays -1 without one, and when it must wait for the queue."""
    decision = world.decision[0]
    winner = ordinary_winner(world)
    decision["winner"] = winner
    if winner < 0:
        return
    decision["reason"] = winner_reason(world, winner)
    probe = -1
    if world.candidates[winner]["known"] == 1:
        if decision["timing_full"] == 1 and decision["reason"] == ORDINARY:
            probe = timing_refresh(world, winner)
            if probe >= 0:
                decision["reason"] = TIMING_REFRESH
        learns = world.policy[0]["fixed_width"] == 0 and world.policy[0]["token_budget"] == 0
        if probe < 0 and decision["acceptance_full"] == 1 and learns:
            probe = acceptance_learning(world, winner)
            if probe >= 0:
                decision["reason"] = ACCEPTANCE_LEARNING
    chosen = probe if probe >= 0 else winner
    if decision["queue_depth"] == 0 or world.candidates[chosen]["needs_empty"] == 0:
        decision["chosen"] = chosen


@entry(
    void(
        jit.slots_type,
        jit.graphs_type,
        jit.policy_type,
        jit.decision_type,
        jit.views_type,
        jit.candidates_type,
        jit.ints_2d,
        jit.floats_5d,
        jit.floats_3d,
        jit.floats_4d,
        jit.ints_2d,
        jit.candidates_type,
        jit.ints,
        jit.records(layout.LANE),
        jit.records(layout.LANE_DETAIL),
    )
)
def plan(
    slots, graphs, policy, decision, views, candidates, pool, estimates, survival, yields, work, recorded,
    recorded_slots, lanes, details,
):  # fmt: skip
    """Decides once; decision[0] holds the inputs and takes the outcome.

    slots, views [S]; graphs [G]; policy, decision [1]; candidates [N] and pool [2, M]: tables, any contents; estimates,
    survival, yields and work [S, C]: see kernels.context; recorded [RECORDED]: what is submitted (index 0) and its
    alternatives; recorded_slots [RECORDED * S]: their submitted slots, one after another, each ascending; lanes,
    details [S]: the submitted lanes.
    decision["chosen"] is -1 when nothing can run now; decision["overflow"] is 1 when a table was too small and
    nothing else counts.
    """
    width = scratch_width(len(slots), work.shape[1])
    scratch = np.empty((SCRATCH_ROWS, width), np.int64)
    amounts = np.empty((AMOUNT_ROWS, width))
    world = World(
        slots, graphs, policy, decision, views, candidates, pool, estimates, survival, yields, work, scratch, amounts
    )
    set_context(world)
    _find_candidates(world)
    if decision[0]["overflow"] == 1:
        return
    _choose(world)
    chosen = decision[0]["chosen"]
    if chosen < 0 or decision[0]["overflow"] == 1:
        return
    decision[0]["runner_up"] = runner_up(world, chosen)
    if decision[0]["runner_up"] >= 0:
        decision[0]["runner_up_score"] = candidates[decision[0]["runner_up"]]["score"]
    others = np.empty(len(recorded), np.int64)
    others[0] = chosen
    count = 1 + choose_alternatives(world, chosen, others[1:])
    for i in range(count):
        recorded[i] = candidates[others[i]]
        record_candidate(world, others[i], recorded[i], recorded_slots)
    decision[0]["alternatives"] = count - 1
    record_lanes(world, chosen, lanes, details)
