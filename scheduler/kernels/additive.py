"""Candidates whose value is the sum of independent lane values (S4): the best lanes of a shape are its cohort.

DECODE, rectangular SPECULATIVE, MIXED and TERMINAL_SNAPSHOT. Ragged cohorts, found elsewhere, are priced here too.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from scheduler import layout
from scheduler.kernels.bars import bars_incomplete
from scheduler.kernels.context import (
    DECODER_STATE,
    SERVED_A,
    SERVED_B,
    decode_relief,
    decode_token,
    is_runnable,
    prompt_delivery,
    prompt_token,
    terminal_row_value,
)
from scheduler.kernels.decoders import (
    SUM_ACTIVE,
    SUM_HASH,
    SUM_PAGES,
    SUM_ROWS,
    SUM_WAITS,
    collect_decoders,
    sort_decoders,
    take_decoders,
)
from scheduler.kernels.filling import fill_prompts, new_fills
from scheduler.kernels.jit import allocating, inlined, inner
from scheduler.kernels.lateness import late_relief_of
from scheduler.kernels.order import sort_lanes
from scheduler.kernels.table import (
    finish_candidate,
    graph_hash,
    lane_hash,
    needs_empty,
    new_prompt_pages,
    price,
    push,
    score,
    start_candidate,
)
from scheduler.kernels.waiting import collect_waiting, wait_relief

# The lanes of one decision. decoders, terminals, prompts: slots, the prompts in the order that the policy may have;
# value, rows: by slot, for the shape at hand; sorted, state: decoders of additive shapes; fills: the prompts of each
# mixed graph; waiting: every prompt that is not whole.
Lanes = namedtuple("Lanes", "decoders terminals prompts value rows sorted state fills waiting")


@allocating
def collect_lanes(world):
    """The lanes that generation, terminal and prefill graphs may serve, in slot order; ordered prompts in theirs."""
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
        collect_decoders(world),
        world.scratch[DECODER_STATE],
        new_fills(world),
        waiting,
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
    sort_decoders(world, lanes.sorted, lanes.state, graph)
    c = start_candidate(world, graph, -1)
    count = min(world.graphs[graph]["batch"], len(lanes.decoders))
    take_decoders(world, lanes.sorted, lanes.state, c, count, True)
    _keep_additive(world, lanes.sorted, c, count)


@inner
def append_mixed(world, lanes, graph, solo_prompt):
    """MIXED without a prompt, and with as many prompts as rows are free, and with each number above.

    `solo_prompt`: the only C that may carry one, 0 for any.
    """
    shape, decoders = world.graphs[graph], len(lanes.decoders)
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
        count = min(batch - prompts, decoders)
        take_decoders(world, lanes.sorted, lanes.state, c, count, False)
        for k in range(prompts):
            take_prompt(world, c, fills.slot[k, capacity], fills.tokens[k, capacity])
        world.candidates[c]["prompt_wait_relief"] = _wait_relief(world, lanes, capacity, prompts)
        _keep_additive(world, lanes.sorted, c, count)


@inlined
def _keep_additive(world, decoders, c, count):
    """Prices and keeps row `c`, whose first `count` lanes are the best decoders and whose others are prompts.

    As price() and finish_candidate() do, but by the decoders' running sums.
    """
    row, decision = world.candidates[c], world.decision[0]
    row["decode_late_relief"] = late_relief_of(world, row, count, decoders.counts[SUM_ACTIVE, count])
    score(world, c)
    if decision["overflow"] == 1:
        return
    graph = world.graphs[row["graph"]]
    row["logical_rows"] = decoders.counts[SUM_ROWS, count] + row["prompt_tokens"]
    row["needs_empty"] = needs_empty(world, graph, decoders.counts[SUM_WAITS, count])
    hashed, pages = graph_hash(graph) + decoders.counts[SUM_HASH, count], decoders.counts[SUM_PAGES, count]
    for i in range(row["first"] + count, row["first"] + row["lanes"]):
        slot, tokens = world.pool[0, i], world.pool[1, i]
        hashed += lane_hash(slot, tokens)
        pages += new_prompt_pages(world, slot, tokens) if decision["free_pages"] < layout.UNBOUNDED else 0
    row["hash"] = hashed
    if pages > decision["free_pages"]:
        row["barred"] = layout.PAGES
    decision["found"] = c + 1
    decision["priced"] += 1


@inlined
def _wait_relief(world, lanes, capacity, prompts):
    """prompt_wait_relief of the first prompts that fill a mixed graph of a capacity index; computed once."""
    fills = lanes.fills
    if np.isnan(fills.relief[prompts, capacity]):
        slots, tokens = world.scratch[SERVED_A], world.scratch[SERVED_B]
        for k in range(prompts):
            slots[k], tokens[k] = fills.slot[k, capacity], fills.tokens[k, capacity]
        fills.relief[prompts, capacity] = wait_relief(world, lanes.waiting, slots, tokens, prompts)
    return fills.relief[prompts, capacity]


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
