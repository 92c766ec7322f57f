"""The decoding lanes of one decision, sorted by value for one graph after another, with running sums (S4).

Dense rows of two arrays, since a catalog may have hundreds of shapes of one width: what depends on the width alone is
computed when it changes, and summed when the order changes.
"""

from __future__ import annotations

from collections import namedtuple

from scheduler import layout
from scheduler.kernels.context import (
    DECODER_AMOUNTS,
    DECODER_COUNTS,
    DECODER_STATE,
    decode_token,
    late_step,
    rows_of,
)
from scheduler.kernels.jit import allocating, inlined, inner
from scheduler.kernels.table import lane_hash, new_decode_pages

# lanes: how many, numbered in slot order; counts [LANE_COUNTS, more], amounts [LANE_AMOUNTS, more]: see below.
Decoders = namedtuple("Decoders", "lanes counts amounts")

# Rows of counts. By lane: slot, LRU tick, whether it must complete first, whether it is an active decoder; for the
# width at hand its rows, new pages and hash. ORDER: the lanes by (-value, LRU, -rows, slot). SUM_*: of the first 0, 1,
# .. n lanes in that order.
(
    SLOT,
    TICK,
    WAITS,
    ACTIVE,
    ROWS,
    PAGES,
    HASH,
    ORDER,
    SUM_ROWS,
    SUM_PAGES,
    SUM_HASH,
    SUM_WAITS,
    SUM_ACTIVE,
) = range(13)
LANE_COUNTS = 13

# Rows of amounts. By lane: age in ms, price of age, delivery price, and for the shape at hand token value and v.
AGE, WEIGHT, DELIVERY, TOKEN, VALUE, SUM_TOKEN, SUM_DELIVERY, SUM_RELIEF = range(8)
LANE_AMOUNTS = 8

# What a decision keeps in row `state` of the shapes before: the width, estimator and depth that lanes were valued for;
# how many lanes of the present order lie in the cohort pool, and where they begin.
WIDTH, ESTIMATOR, DEPTH, POOLED, POOLED_FIRST = range(5)


@allocating
def collect_decoders(world):
    """The selectable decoding lanes, in slot order, valued for no graph yet; and their state."""
    counts = world.scratch[DECODER_COUNTS : DECODER_COUNTS + LANE_COUNTS]
    amounts = world.amounts[DECODER_AMOUNTS : DECODER_AMOUNTS + LANE_AMOUNTS]
    world.scratch[DECODER_STATE, WIDTH] = -1
    for row in (SUM_ROWS, SUM_PAGES, SUM_HASH, SUM_WAITS, SUM_ACTIVE):
        counts[row, 0] = 0
    for row in (SUM_TOKEN, SUM_DELIVERY, SUM_RELIEF):
        amounts[row, 0] = 0.0
    k = 0
    for i in range(len(world.slots)):
        view = world.views[i]
        if view["selectable"] == 1:
            counts[SLOT, k] = i
            counts[TICK, k] = world.slots[i]["last_served_tick"]
            counts[WAITS, k] = view["waits"]
            counts[ACTIVE, k] = view["active"]
            counts[ORDER, k] = k
            amounts[AGE, k] = view["age_ms"]
            amounts[WEIGHT, k] = view["age_weight"]
            amounts[DELIVERY, k] = view["delivery_price"]
            k += 1
    return Decoders(k, counts, amounts)


@inner
def sort_decoders(world, decoders, state, graph):
    """Orders the lanes for one shape at its own duration, and adds them up in that order. `state`: see above."""
    shape, n = world.graphs[graph], decoders.lanes
    width, estimator, depth = shape["lane_width"], shape["estimator"], shape["depth"]
    moved, gap = False, 1
    if state[WIDTH] != width or state[ESTIMATOR] != estimator or state[DEPTH] != depth:
        state[WIDTH], state[ESTIMATOR], state[DEPTH] = width, estimator, depth
        _set_width(world, decoders, n, graph)
        moved, gap = True, max(1, n // 2)
    horizon_ms = shape["duration_ns"] / 1e6
    _set_values(world.decision[0], decoders, n, horizon_ms)
    while gap > 0:
        if _sort(decoders, n, gap):
            moved = True
        gap //= 2
    if moved:
        state[POOLED] = 0
        _add_up(decoders, n)
    order, sums = decoders.counts[ORDER], decoders.amounts[SUM_RELIEF]
    age, weight = decoders.amounts[AGE], decoders.amounts[WEIGHT]
    total = 0.0
    for k in range(n):
        total += weight[order[k]] * (age[order[k]] + horizon_ms)
        sums[k + 1] = total


@inlined
def _set_width(world, decoders, n, graph):
    """What each lane does on shapes of this width, estimator and depth."""
    counts = decoders.counts
    paged = world.decision[0]["free_pages"] < layout.UNBOUNDED
    for k in range(n):
        slot = counts[SLOT, k]
        rows = rows_of(world, slot, graph)
        counts[ROWS, k] = rows
        counts[HASH, k] = lane_hash(slot, rows)
        counts[PAGES, k] = new_decode_pages(world, graph, slot, rows) if paged else 0
        decoders.amounts[TOKEN, k] = decode_token(world, slot, graph, rows)


@inlined
def _set_values(decision, decoders, n, horizon_ms):
    """v of each lane at a horizon, as scheduler.kernels.context.decode_value has it."""
    amounts, active = decoders.amounts, decoders.counts[ACTIVE]
    age, weight, delivery = amounts[AGE], amounts[WEIGHT], amounts[DELIVERY]
    token, value = amounts[TOKEN], amounts[VALUE]
    for k in range(n):
        value[k] = token[k] + delivery[k] + weight[k] * (age[k] + horizon_ms)
    if decision["late"] == 1:
        half_price, fresh = decision["half_late_price"], late_step(0.0, decision)
        for k in range(n):
            late = half_price * (late_step(age[k] + horizon_ms, decision) - fresh)
            value[k] += late if active[k] == 1 else 0.0


@inlined
def _sort(decoders, n, gap):
    """One pass of Shell's method; whether anything moved. From one graph to the next the order hardly changes."""
    order, value, moved = decoders.counts[ORDER], decoders.amounts[VALUE], False
    for i in range(gap, n):
        lane, j = order[i], i
        while j >= gap and _precedes(decoders, value, lane, order[j - gap]):
            order[j] = order[j - gap]
            j -= gap
            moved = True
        order[j] = lane
    return moved


@inlined
def _precedes(decoders, value, a, b):
    if value[a] != value[b]:
        return value[a] > value[b]
    counts = decoders.counts
    if counts[TICK, a] != counts[TICK, b]:
        return counts[TICK, a] < counts[TICK, b]
    if counts[ROWS, a] != counts[ROWS, b]:
        return counts[ROWS, a] > counts[ROWS, b]
    return a < b


@inlined
def _add_up(decoders, n):
    """The sums that the horizon does not touch."""
    counts, amounts = decoders.counts, decoders.amounts
    for k in range(n):
        lane = counts[ORDER, k]
        amounts[SUM_TOKEN, k + 1] = amounts[SUM_TOKEN, k] + amounts[TOKEN, lane]
        amounts[SUM_DELIVERY, k + 1] = amounts[SUM_DELIVERY, k] + amounts[DELIVERY, lane]
        counts[SUM_ROWS, k + 1] = counts[SUM_ROWS, k] + counts[ROWS, lane]
        counts[SUM_PAGES, k + 1] = counts[SUM_PAGES, k] + counts[PAGES, lane]
        counts[SUM_HASH, k + 1] = counts[SUM_HASH, k] + counts[HASH, lane]
        counts[SUM_WAITS, k + 1] = counts[SUM_WAITS, k] + counts[WAITS, lane]
        counts[SUM_ACTIVE, k + 1] = counts[SUM_ACTIVE, k] + counts[ACTIVE, lane]


@inlined
def take_decoders(world, decoders, state, c, count, shared):
    """The first `count` lanes of the order become the lanes of row `c`, which has none, with their sums.

    `shared`: no lane will follow them, so that the pool's stretch of another candidate, with the same lanes, will do.
    """
    row, pool = world.candidates[c], world.pool
    row["token_value"] = decoders.amounts[SUM_TOKEN, count]
    row["delivery_value"] = decoders.amounts[SUM_DELIVERY, count]
    row["age_relief"] = decoders.amounts[SUM_RELIEF, count]
    row["lanes"] = count
    row["served"] = count
    first = world.decision[0]["pooled"]
    if shared and state[POOLED] >= count:
        row["first"] = state[POOLED_FIRST]
        row["following_first"] = state[POOLED_FIRST]
    elif first + count > pool.shape[1]:
        world.decision[0]["overflow"] = 1
    else:
        order, slots, rows = decoders.counts[ORDER], decoders.counts[SLOT], decoders.counts[ROWS]
        for k in range(count):
            pool[0, first + k] = slots[order[k]]
            pool[1, first + k] = rows[order[k]]
        world.decision[0]["pooled"] = first + count
        if count > state[POOLED]:
            state[POOLED], state[POOLED_FIRST] = count, first
