"""The total order between two candidates, and lanes sorted by value (S4)."""

from __future__ import annotations

from scheduler.kernels.context import MARKS, SERVED_A, SERVED_B
from scheduler.kernels.jit import inlined, inner


@inlined
def precedes(world, a, b):
    """Whether candidate row `a` comes strictly before row `b` in the total order. Barred or not plays no part."""
    x, y = world.candidates[a], world.candidates[b]
    if x["known"] != y["known"]:
        return x["known"] < y["known"]
    if x["score"] != y["score"]:
        return x["score"] > y["score"]
    if x["horizon_ns"] != y["horizon_ns"]:
        return x["horizon_ns"] < y["horizon_ns"]
    if x["served"] != y["served"]:
        return x["served"] > y["served"]
    if x["served"] == 1:
        return _precedes_alone(world, x, y)
    return _precedes_on_tie(world, x, y)


@inlined
def _precedes_alone(world, x, y):
    """The rest of the order for candidates that serve one request each, as all prefills do."""
    first, second = world.pool[0, x["first"]], world.pool[0, y["first"]]
    tick_x, tick_y = world.slots[first]["last_served_tick"], world.slots[second]["last_served_tick"]
    if tick_x != tick_y:
        return tick_x < tick_y
    by_graphs = _by_graphs(x, y)
    return by_graphs < 0 if by_graphs != 0 else first < second


@inner
def _precedes_on_tie(world, x, y):
    """The rest of the order: LRU ticks, padding, size, catalog positions, slots."""
    first, second = world.scratch[SERVED_A], world.scratch[SERVED_B]
    served = _served_slots(world, x, first)
    _served_slots(world, y, second)
    _sort_by_tick(world, first, served)
    _sort_by_tick(world, second, served)
    for i in range(served):
        tick_x, tick_y = world.slots[first[i]]["last_served_tick"], world.slots[second[i]]["last_served_tick"]
        if tick_x != tick_y:
            return tick_x < tick_y
    by_graphs = _by_graphs(x, y)
    if by_graphs != 0:
        return by_graphs < 0
    _sort(first, served)
    _sort(second, served)
    for i in range(served):
        if first[i] != second[i]:
            return first[i] < second[i]
    return False


@inlined
def _by_graphs(x, y):
    """Negative when x's graphs come first, positive when y's do: padding, physical rows, catalog positions."""
    padding_x, padding_y = x["physical_rows"] - x["logical_rows"], y["physical_rows"] - y["logical_rows"]
    if padding_x != padding_y:
        return padding_x - padding_y
    if x["physical_rows"] != y["physical_rows"]:
        return x["physical_rows"] - y["physical_rows"]
    if x["graph"] != y["graph"]:
        return x["graph"] - y["graph"]
    return x["following"] - y["following"]


@inner
def _served_slots(world, row, out):
    """Writes the slots of all requests that a candidate serves, each once, in no order; returns how many."""
    n = 0
    for i in range(row["first"], row["first"] + row["lanes"]):
        out[n] = world.pool[0, i]
        n += 1
    submitted, marks = n, world.scratch[MARKS]
    for i in range(row["following_first"], row["following_first"] + row["following_lanes"]):
        marks[world.pool[0, i]] = 1
    for i in range(submitted):
        marks[out[i]] = 0
    for i in range(row["following_first"], row["following_first"] + row["following_lanes"]):
        if marks[world.pool[0, i]] == 1:
            out[n] = world.pool[0, i]
            n += 1
    return n


@inner
def _sort_by_tick(world, slots, n):
    """Sorts the first n slots by LRU tick (Shell's method: short, and quick enough for what is rarely needed)."""
    gap = n // 2
    while gap > 0:
        for i in range(gap, n):
            slot, j = slots[i], i
            tick = world.slots[slot]["last_served_tick"]
            while j >= gap and world.slots[slots[j - gap]]["last_served_tick"] > tick:
                slots[j] = slots[j - gap]
                j -= gap
            slots[j] = slot
        gap //= 2


@inner
def _sort(values, n):
    """Sorts the first n values, ascending."""
    gap = n // 2
    while gap > 0:
        for i in range(gap, n):
            value, j = values[i], i
            while j >= gap and values[j - gap] > value:
                values[j] = values[j - gap]
                j -= gap
            values[j] = value
        gap //= 2


@inlined
def sort_lanes(world, order, n, value, rows, gap):
    """Sorts order[:n] (slots) by (-value, LRU, -rows, slot). value and rows are indexed by slot.

    `gap`: 1 where the order is nearly right already, as after a shape of the same width; n // 2 for any.
    """
    while gap > 0:
        for i in range(gap, n):
            slot, j = order[i], i
            while j >= gap and _lane_precedes(world, slot, order[j - gap], value, rows):
                order[j] = order[j - gap]
                j -= gap
            order[j] = slot
        gap //= 2


@inlined
def _lane_precedes(world, a, b, value, rows):
    if value[a] != value[b]:
        return value[a] > value[b]
    if world.slots[a]["last_served_tick"] != world.slots[b]["last_served_tick"]:
        return world.slots[a]["last_served_tick"] < world.slots[b]["last_served_tick"]
    if rows[a] != rows[b]:
        return rows[a] > rows[b]
    return a < b
