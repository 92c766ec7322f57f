"""Prerequisites (S5): pairs of a prerequisite graph and the inference graph that it enables, and SNAPSHOT alone.

For two fixed shapes lane values add up, so the best cohorts for k newly ready decoders are the k best of them, the best
ready decoders in the following graph's other rows, the best terminal rows and then any lanes of the stage in the
prerequisite's other rows. Every k is priced; the best by the total order is the pair's candidate.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from scheduler import layout
from scheduler.kernels.additive import lone_relief
from scheduler.kernels.context import (
    decode_relief,
    decode_token,
    decode_value,
    is_runnable,
    prompt_delivery,
    prompt_lane_value,
    prompt_token,
    rows_of,
    terminal_row_value,
)
from scheduler.kernels.filling import first_prompt
from scheduler.kernels.jit import allocating, inner
from scheduler.kernels.multistage import append_multistage, images, restores
from scheduler.kernels.order import precedes, sort_lanes
from scheduler.kernels.table import finish_candidate, price, push, start_candidate, undivided
from scheduler.kernels.waiting import is_ordered

# The lanes that one prerequisite shape is about, as slots. members: selectable lanes of its stage by (LRU, slot); new,
# prompts: of these the immediate ones whose inference is DECODE, PREFILL; terminals: terminal rows (SNAPSHOT only), by
# value at the shape's duration; taken [S]: 1 while a slot is a lane of the candidate that is built.
Stage = namedtuple("Stage", "members new prompts terminals taken")

_NONE, _READY, _OWN = range(3)
"""Where a following MIXED graph's prompt row comes from."""


@allocating
def append_prerequisites(world, lanes, graph):
    """All candidates of an INIT, RESTORE, VISION or SNAPSHOT shape: pairs by following shape, alone, multistage.

    Sorts lanes.decoders for its own purposes.
    """
    stage = _collect_stage(world, lanes, world.graphs[graph]["kind"])
    if len(stage.members) == 0 and len(stage.terminals) == 0:
        return
    for following in range(len(world.graphs)):
        kind = world.graphs[following]["kind"]
        if kind == layout.KIND_PREFILL or kind == layout.KIND_SCORED_PREFILL:
            _append_prefill_pair(world, lanes, stage, graph, following)
        elif kind >= layout.KIND_DECODE and world.graphs[following]["usable"] == 1:
            _append_generation_pairs(world, lanes, stage, graph, following)
    if len(stage.terminals) > 0:
        _append_alone(world, lanes, stage, graph)
    append_multistage(world, stage.members, graph)


@inner
def stage_before(kind):
    """The stage that graphs of a prerequisite kind serve."""
    if kind == layout.KIND_INIT:
        return layout.INIT
    if kind == layout.KIND_RESTORE:
        return layout.RESTORE
    return layout.VISION if kind == layout.KIND_VISION else layout.SNAPSHOT


@inner
def _is_member(world, slot, stage):
    """A selectable lane of a stage; a window's snapshot needs a free row."""
    state = world.slots[slot]
    if state["stage"] != stage or not is_runnable(state) or state["retiring"] == 1:
        return False
    return stage != layout.SNAPSHOT or state["window"] == 0 or world.decision[0]["free_snapshot_rows"] > 0


@inner
def _is_immediate(state):
    """Whether inference follows the slot's present stage at once: no image, window or restore comes between."""
    return restores(state) + images(state) == 0


@allocating
def _collect_stage(world, lanes, kind):
    """The lanes that graphs of a prerequisite kind can serve now."""
    stage = stage_before(kind)
    slots = len(world.slots)
    members, new, prompts = np.empty(slots, np.int64), np.empty(slots, np.int64), np.empty(slots, np.int64)
    count, new_count, prompt_count = 0, 0, 0
    for slot in range(slots):
        if not _is_member(world, slot, stage):
            continue
        state = world.slots[slot]
        members[count] = slot
        count += 1
        lanes.value[slot] = 0.0
        lanes.rows[slot] = 0
        if not _is_immediate(state):
            continue
        if state["consumed"] < state["prompt_tokens"]:
            prompts[prompt_count] = slot
            prompt_count += 1
        elif world.views[slot]["left"] >= 1:
            new[new_count] = slot
            new_count += 1
    sort_lanes(world, members, count, lanes.value, lanes.rows, max(1, count // 2))
    terminals = lanes.terminals if kind == layout.KIND_SNAPSHOT else lanes.terminals[:0]
    return Stage(members[:count], new[:new_count], prompts[:prompt_count], terminals, np.zeros(slots, np.int64))


@inner
def _sort_terminals(world, lanes, stage, horizon_ms):
    order = stage.terminals
    for i in range(len(order)):
        lanes.value[order[i]] = terminal_row_value(world, order[i], horizon_ms)
        lanes.rows[order[i]] = 1
    sort_lanes(world, order, len(order), lanes.value, lanes.rows, max(1, len(order) // 2))


@inner
def _repeats_smaller(world, slot, following):
    """Whether an unmeasured prefill graph would consume what a smaller one consumes too (S6). MIXED is not asked."""
    below = world.graphs[following]["below"]
    if world.graphs[following]["duration_ns"] > 0 or below < 0 or world.graphs[following]["kind"] == layout.KIND_MIXED:
        return False
    return world.work[slot, below] == world.work[slot, world.graphs[following]["capacity_index"]]


@inner
def _best_prompt(world, slots, following, scored, repeating):
    """The best prompt lane with work for a following graph, by (-v, LRU, -work, slot); -1 without.

    `repeating`: only lanes that an unmeasured graph serves no better than a smaller one, instead of the others.
    """
    capacity = world.graphs[following]["capacity_index"]
    best, best_value, best_tick, best_work = -1, 0.0, 0, 0
    for i in range(len(slots)):
        slot = slots[i]
        work, tick = world.work[slot, capacity], world.slots[slot]["last_served_tick"]
        if work == 0 or world.slots[slot]["scored"] != scored or _repeats_smaller(world, slot, following) != repeating:
            continue
        value = prompt_lane_value(world, slot, work)
        better = best < 0 or value > best_value
        if not better and value == best_value:  # of equal ones the first has the smaller slot
            better = tick < best_tick or (tick == best_tick and work > best_work)
        if better:
            best, best_value, best_tick, best_work = slot, value, tick, work
    return best


@inner
def _append_prefill_pair(world, lanes, stage, graph, following):
    """One immediate prompt lane; lanes for which the following graph is barred come last."""
    scored = 1 if world.graphs[following]["kind"] == layout.KIND_SCORED_PREFILL else 0
    barred = layout.NOT_BARRED
    prompt = _best_prompt(world, stage.prompts, following, scored, False)
    if prompt < 0:
        prompt = _best_prompt(world, stage.prompts, following, scored, True)
        barred = layout.UNMEASURED
    if prompt < 0:
        return
    _append_pair(world, lanes, stage, graph, following, 0, 0, prompt, _OWN, barred)


@inner
def _append_generation_pairs(world, lanes, stage, graph, following):
    """A following generation or MIXED graph: without a prompt; MIXED also with a ready prompt, or an own one."""
    new = len(stage.new)
    own, ready_prompt = -1, -1
    mixed = world.graphs[following]["kind"] == layout.KIND_MIXED
    if mixed:
        own = _best_prompt(world, stage.prompts, following, 0, False)
        ready_prompt = -1 if new == 0 else _ready_prompt(world, lanes, following)
    if new == 0 and own < 0:
        return
    batch, room = world.graphs[graph]["batch"], _room(world, following)
    _value_decoders(world, lanes, stage, graph, following)
    _append_best(world, lanes, stage, graph, following, 1, min(new, batch, room), room, -1, _NONE)
    if ready_prompt >= 0:
        _append_best(
            world, lanes, stage, graph, following, 1, min(new, batch, room - 1), room - 1, ready_prompt, _READY
        )
    if own >= 0:
        _append_best(world, lanes, stage, graph, following, 0, min(new, batch - 1, room - 1), room - 1, own, _OWN)


@inner
def _ready_prompt(world, lanes, following):
    """The ready prompt that a following MIXED graph would take: the first in the order, without one the best."""
    if is_ordered(world.policy[0]):
        return first_prompt(world, lanes.prompts, world.graphs[following]["capacity_index"], 0)
    return _best_prompt(world, lanes.prompts, following, 0, False)


@inner
def _room(world, following):
    """Lanes of a following generation graph; a ragged one must have a row for each."""
    batch = world.graphs[following]["batch"]
    return min(batch, world.graphs[following]["rows"]) if world.graphs[following]["ragged"] == 1 else batch


@inner
def _value_decoders(world, lanes, stage, graph, following):
    """Sorts new and ready decoders by their values at T + F."""
    shape = world.graphs[following]
    horizon_ms = 0.0
    if shape["duration_ns"] > 0 and world.graphs[graph]["duration_ns"] > 0:
        horizon_ms = (world.graphs[graph]["duration_ns"] + shape["duration_ns"]) / 1e6
    most = max(1, shape["rows"] // shape["batch"]) if shape["ragged"] == 1 else shape["lane_width"]
    _value_some(world, lanes, stage.new, following, most, horizon_ms)
    _value_some(world, lanes, lanes.decoders, following, most, horizon_ms)


@inner
def _value_some(world, lanes, order, following, most, horizon_ms):
    for i in range(len(order)):
        slot = order[i]
        rows = min(rows_of(world, slot, following), most)
        lanes.rows[slot] = rows
        lanes.value[slot] = decode_value(world, slot, following, rows, horizon_ms)
    sort_lanes(world, order, len(order), lanes.value, lanes.rows, max(1, len(order) // 2))


@inner
def _append_best(world, lanes, stage, graph, following, least, most, room, prompt, source):
    """The best pair over `least` to `most` newly ready decoders, ready ones filling `room`."""
    best = world.decision[0]["found"]
    for new in range(least, most + 1):
        pooled = world.decision[0]["pooled"]
        ready = min(room - new, len(lanes.decoders))
        _append_pair(world, lanes, stage, graph, following, new, ready, prompt, source, layout.NOT_BARRED)
        last = world.decision[0]["found"] - 1
        if last > best:
            if precedes(world, last, best):
                world.candidates[best] = world.candidates[last]
            else:
                world.decision[0]["pooled"] = pooled
            world.decision[0]["found"] = last


@inner
def _append_pair(world, lanes, stage, graph, following, new, ready, prompt, source, barred):
    """One priced pair: lanes of the prerequisite (new, own prompt, terminal rows, others), then of the following."""
    c = start_candidate(world, graph, following)
    row = world.candidates[c]
    row["barred"] = barred
    for i in range(new):
        _add_decoder(world, lanes, row, stage.new[i])
        _take(world, stage, row, stage.new[i])
    for i in range(ready):
        _add_decoder(world, lanes, row, lanes.decoders[i])
    if prompt >= 0:
        _add_prompt(world, lanes, row, prompt)
    if source == _OWN:
        _take(world, stage, row, prompt)
    saving_rows = _fill(world, lanes, stage, row)
    row["served"] = row["lanes"] + ready + (1 if source == _READY else 0)
    row["following_first"] = world.decision[0]["pooled"]
    for i in range(new):
        push(world, stage.new[i], lanes.rows[stage.new[i]])
    for i in range(ready):
        push(world, lanes.decoders[i], lanes.rows[lanes.decoders[i]])
    if prompt >= 0:
        push(world, prompt, world.work[prompt, world.graphs[following]["capacity_index"]])
        row["following_prompts"] = 1
    row["following_lanes"] = new + ready + row["following_prompts"]
    _price_pair(world, c, saving_rows)
    finish_candidate(world, c)
    world.decision[0]["priced"] += 1


@inner
def _add_decoder(world, lanes, row, slot):
    row["token_value"] += decode_token(world, slot, row["following"], lanes.rows[slot])
    row["delivery_value"] += world.views[slot]["delivery_price"]
    row["age_relief"] += decode_relief(world, slot, row["horizon_ms"])


@inner
def _add_prompt(world, lanes, row, slot):
    tokens = world.work[slot, world.graphs[row["following"]]["capacity_index"]]
    row["token_value"] += prompt_token(world, slot, tokens)
    row["delivery_value"] += prompt_delivery(world, slot, tokens)
    row["prompt_wait_relief"] = lone_relief(world, lanes, slot, tokens)


@inner
def _take(world, stage, row, slot):
    """`slot` becomes a lane of the prerequisite."""
    push(world, slot, 1)
    stage.taken[slot] = 1
    row["lanes"] += 1


@inner
def _fill(world, lanes, stage, row):
    """Terminal rows, then other lanes of the stage, in the prerequisite's free rows; how many terminal rows."""
    batch = world.graphs[row["graph"]]["batch"]
    horizon_ms = world.graphs[row["graph"]]["duration_ns"] / 1e6 if row["known"] == 1 else 0.0
    terminals = min(batch - row["lanes"], len(stage.terminals))
    if terminals > 0:
        _sort_terminals(world, lanes, stage, horizon_ms)
    for i in range(terminals):
        slot = stage.terminals[i]
        row["terminal_relief"] += terminal_row_value(world, slot, horizon_ms)
        _take(world, stage, row, slot)
    for i in range(len(stage.members)):
        if row["lanes"] < batch and stage.taken[stage.members[i]] == 0:
            _take(world, stage, row, stage.members[i])
    for i in range(len(stage.taken)):
        stage.taken[i] = 0
    return terminals


@inner
def _price_pair(world, c, terminals):
    """Score; terminal rows stop ageing at T instead of H = T + F."""
    price(world, c)
    row = world.candidates[c]
    if row["known"] == 0 or terminals == 0:
        return
    whole_ms = row["horizon_ms"]
    first_ms = world.graphs[row["graph"]]["duration_ns"] / 1e6
    saved = terminals * world.decision[0]["terminal_age_price"] * (whole_ms * whole_ms - first_ms * first_ms)
    row["wait_cost"] = whole_ms / 2.0 * world.decision[0]["wait_price"] - saved / (2.0 * whole_ms)
    row["score"] = undivided(row) / whole_ms - row["wait_cost"]


@inner
def _append_alone(world, lanes, stage, graph):
    """SNAPSHOT with terminal rows, the productive first stage of its pairs."""
    c = start_candidate(world, graph, -1)
    row = world.candidates[c]
    _fill(world, lanes, stage, row)
    row["served"] = row["lanes"]
    price(world, c)
    finish_candidate(world, c)
    world.decision[0]["priced"] += 1
