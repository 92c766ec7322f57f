"""Candidates whose value is the sum of independent lane values (S4): the best lanes of a shape are its cohort.

DECODE, rectangular SPECULATIVE, MIXED and TERMINAL_SNAPSHOT. Ragged cohorts, found elsewhere, are priced here too.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from scheduler import layout
from scheduler.kernels.bars import bars_incomplete
from scheduler.kernels.context import (
    SERVED_A,
    SERVED_B,
    decode_relief,
    decode_token,
    decode_value,
    is_runnable,
    prompt_delivery,
    prompt_token,
    rows_of,
    terminal_row_value,
)
from scheduler.kernels.filling import fill_prompts, new_fills
from scheduler.kernels.jit import allocating, inlined, inner
from scheduler.kernels.order import sort_lanes
from scheduler.kernels.table import finish_candidate, price, push, start_candidate
from scheduler.kernels.waiting import collect_waiting, wait_relief

# The lanes of one decision. decoders, terminals, prompts: slots, the prompts in the order that the policy may have;
# value, rows: by slot, for the shape at hand; fills: the prompts of each mixed graph; waiting: every prompt that is not
# whole; sorted_for [2]: lane width and estimator that `decoders` was last sorted for.
Lanes = namedtuple("Lanes", "decoders terminals prompts value rows fills waiting sorted_for")


@allocating
def collect_lanes(world):
    """The lanes that generation, terminal and prefill graphs may serve, in slot order; ordered prompts in theirs."""
    fills = new_fills(world)
    waiting = collect_waiting(world)
    decoders, terminals, prompts = 0, 0, 0
    for i in range(len(world.slots)):
        decoders += world.views[i]["selectable"]
        terminals += world.views[i]["terminal"]
        prompts += 1 if _is_prompt(world.slots[i]) else 0
    lanes = Lanes(
        np.empty(decoders, np.int64),
        np.empty(terminals, np.int64),
        np.empty(prompts, np.int64),
        np.empty(len(world.slots)),
        np.empty(len(world.slots), np.int64),
        fills,
        waiting,
        np.full(2, -1, np.int64),
    )
    decoders, terminals, prompts = 0, 0, 0
    for i in range(len(world.slots)):
        if world.views[i]["selectable"] == 1:
            lanes.decoders[decoders] = i
            decoders += 1
        if world.views[i]["terminal"] == 1:
            lanes.terminals[terminals] = i
            terminals += 1
    for i in range(len(waiting.slots)):
        if _is_prompt(world.slots[waiting.slots[i]]):
            lanes.prompts[prompts] = waiting.slots[i]
            prompts += 1
    return lanes


@inlined
def _is_prompt(slot):
    return slot["stage"] == layout.PREFILL and is_runnable(slot) and slot["retiring"] == 0


@inlined
def append_additive(world, lanes, graph):
    """DECODE or rectangular SPECULATIVE: the first min(B, n) decoders by value."""
    if len(lanes.decoders) == 0:
        return
    _sort_decoders(world, lanes, graph)
    c = start_candidate(world, graph, -1)
    _take_decoders(world, lanes, c, min(world.graphs[graph]["batch"], len(lanes.decoders)))
    _keep(world, c)


@inner
def append_mixed(world, lanes, graph, solo_prompt):
    """MIXED without a prompt, and with as many prompts as rows are free, and with each number above.

    `solo_prompt`: the only C that may carry one, 0 for any.
    """
    shape, decoders = world.graphs[graph], len(lanes.decoders)
    if decoders > 0:
        append_additive(world, lanes, graph)
    if solo_prompt != 0 and shape["prompt"] != solo_prompt:
        return
    capacity, batch, fills = shape["capacity_index"], shape["batch"], lanes.fills
    most = min(fill_prompts(world, fills, lanes.prompts, capacity, decoders), shape["prompt_rows"], batch)
    if most == 0:
        return
    free = min(most, max(1, batch - decoders))
    if bars_incomplete(world.policy[0]):
        most = free
    for prompts in range(free, most + 1):
        c = start_candidate(world, graph, -1)
        _take_decoders(world, lanes, c, min(batch - prompts, decoders))
        for k in range(prompts):
            take_prompt(world, c, fills.slot[capacity, k], fills.tokens[capacity, k])
        world.candidates[c]["prompt_wait_relief"] = _wait_relief(world, lanes, capacity, prompts)
        _keep(world, c)


@inner
def _wait_relief(world, lanes, capacity, prompts):
    """prompt_wait_relief of the first prompts that fill a mixed graph of a capacity index; computed once."""
    fills = lanes.fills
    if np.isnan(fills.relief[capacity, prompts]):
        slots, tokens = fills.slot[capacity], fills.tokens[capacity]
        relief = wait_relief(world, lanes.waiting, slots, tokens, prompts)
        fills.relief[capacity, prompts] = relief
    return fills.relief[capacity, prompts]


@inner
def lone_relief(world, lanes, slot, tokens):
    """prompt_wait_relief of a candidate whose only prompt lane is `slot`."""
    slots, consumed = world.scratch[SERVED_A], world.scratch[SERVED_B]
    slots[0], consumed[0] = slot, tokens
    return wait_relief(world, lanes.waiting, slots, consumed, 1)


@inner
def append_terminal(world, lanes, graph):
    """TERMINAL_SNAPSHOT: the first min(B, n) terminal rows by value."""
    order = lanes.terminals
    if len(order) == 0:
        return
    c = start_candidate(world, graph, -1)
    row = world.candidates[c]
    for i in range(len(order)):
        lanes.value[order[i]] = terminal_row_value(world, order[i], row["horizon_ms"])
        lanes.rows[order[i]] = 1
    sort_lanes(world, order, len(order), lanes.value, lanes.rows, max(1, len(order) // 2))
    count = min(world.graphs[graph]["batch"], len(order))
    for i in range(count):
        push(world, order[i], 1)
        row["terminal_relief"] += lanes.value[order[i]]
    row["lanes"] = count
    row["served"] = count
    _keep(world, c)


@inlined
def append_ragged(world, graph, count, priced):
    """A ragged cohort of `count` lanes that already lies at the end of the pool; `priced` cohorts were compared."""
    if count == 0:
        return
    c = start_candidate(world, graph, -1)
    row = world.candidates[c]
    for i in range(row["first"], row["first"] + count):
        _add_decoder(world, row, world.pool[0, i], world.pool[1, i])
    row["lanes"] = count
    row["served"] = count
    world.decision[0]["pooled"] += count
    _keep(world, c)
    world.decision[0]["priced"] += priced - 1


@inlined
def _keep(world, c):
    price(world, c)
    finish_candidate(world, c)
    world.decision[0]["priced"] += 1


@inlined
def _sort_decoders(world, lanes, graph):
    """Sorts the decoders by (-v(rows), LRU, -rows, slot) for one shape at its own duration."""
    horizon_ms = world.graphs[graph]["duration_ns"] / 1e6
    order = lanes.decoders
    for i in range(len(order)):
        slot = order[i]
        rows = rows_of(world, slot, graph)
        lanes.rows[slot] = rows
        lanes.value[slot] = decode_value(world, slot, graph, rows, horizon_ms)
    width, estimator = world.graphs[graph]["lane_width"], world.graphs[graph]["estimator"]
    close = lanes.sorted_for[0] == width and lanes.sorted_for[1] == estimator
    sort_lanes(world, order, len(order), lanes.value, lanes.rows, 1 if close else max(1, len(order) // 2))
    lanes.sorted_for[0] = width
    lanes.sorted_for[1] = estimator


@inlined
def _take_decoders(world, lanes, c, count):
    """The first `count` sorted decoders become lanes of row `c`, their parts added in that order."""
    row = world.candidates[c]
    for i in range(count):
        slot = lanes.decoders[i]
        push(world, slot, lanes.rows[slot])
        _add_decoder(world, row, slot, lanes.rows[slot])
    row["lanes"] += count
    row["served"] += count


@inlined
def _add_decoder(world, row, slot, rows):
    row["token_value"] += decode_token(world, slot, row["graph"], rows)
    row["delivery_value"] += world.views[slot]["delivery_price"]
    row["age_relief"] += decode_relief(world, slot, row["horizon_ms"])


@inlined
def take_prompt(world, c, slot, tokens):
    """`slot` becomes the last prompt lane of row `c`, its parts added behind the others'."""
    row = world.candidates[c]
    push(world, slot, tokens)
    row["prompts"] += 1
    row["prompt_tokens"] += tokens
    row["token_value"] += prompt_token(world, slot, tokens)
    row["delivery_value"] += prompt_delivery(world, slot, tokens)
    row["lanes"] += 1
    row["served"] += 1
