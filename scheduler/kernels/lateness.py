"""What a candidate does to the lateness of the active decoders (S4): the part decode_late_relief of its score."""

from __future__ import annotations

from scheduler import layout
from scheduler.kernels.context import ACTIVE, LATE_AGE, LATE_MARKS, SERVED, UNSERVED, late_square, late_step
from scheduler.kernels.jit import inlined, inner


@inner
def late_relief(world, row):
    """decode_late_relief of a candidate from its horizon and its decoding lanes, those of a following graph too.

    0.0 for one whose lanes did not fit the pool: they are not there to be read, and nothing of it counts.
    """
    if world.decision[0]["late"] == 0 or world.decision[0]["overflow"] == 1:
        return 0.0
    first, count = row["first"], row["lanes"] - row["prompts"]
    if world.graphs[row["graph"]]["kind"] < layout.KIND_DECODE:
        count = 0
        if row["following"] >= 0 and world.graphs[row["following"]]["kind"] >= layout.KIND_DECODE:
            first, count = row["following_first"], row["following_lanes"] - row["following_prompts"]
    active = 0
    for i in range(first, first + count):
        active += world.views[world.pool[0, i]]["active"]
    return _relief(world, row["horizon_ms"], first, count, active)


@inlined
def late_relief_of(world, row, count, active):
    """late_relief() of a candidate of one graph with `count` decoding lanes, of which so many are active decoders."""
    if world.decision[0]["late"] == 0 or world.decision[0]["overflow"] == 1:
        return 0.0
    return _relief(world, row["horizon_ms"], row["first"], count, active)


@inner
def _relief(world, horizon_ms, first, count, active):
    """Of a horizon and the decoding lanes in the pool's stretch [first, first + count), `active` of them active."""
    decision = world.decision[0]
    if decision["late_horizon_ms"] != horizon_ms:
        _set_horizon(world, horizon_ms)
    total = decision["late_none"]
    if active == decision["decoders"]:
        total = decision["late_all"]
    elif active > 0:
        total = _sum_marked(world, first, count)
    return 0.0 - decision["half_late_price"] * total


@inner
def _sum_marked(world, first, count):
    """The lateness that is added where only the decoders of a stretch of the pool are served."""
    decision, marks, active = world.decision[0], world.scratch[LATE_MARKS], world.scratch[ACTIVE]
    decision["late_marks"] += 1
    mark = decision["late_marks"]
    for i in range(first, first + count):
        marks[world.pool[0, i]] = mark
    served, unserved = world.amounts[SERVED], world.amounts[UNSERVED]
    total = 0.0
    for k in range(decision["decoders"]):
        total += served[k] if marks[active[k]] == mark else unserved[k]
    return total


@inner
def _set_horizon(world, horizon_ms):
    """Notes what each active decoder adds to a total at this horizon, served or not, and both totals."""
    decision = world.decision[0]
    gap_ms, sigma_ms, fresh = decision["gap_ms"], decision["sigma_ms"], late_step(0.0, decision)
    ages, served, unserved = world.amounts[LATE_AGE], world.amounts[SERVED], world.amounts[UNSERVED]
    count = decision["decoders"]
    for k in range(count):
        before = late_square(ages[k] - gap_ms)
        later = late_square(ages[k] + horizon_ms - gap_ms)
        step = late_square(ages[k] + sigma_ms - gap_ms) - before
        later_step = late_square(ages[k] + horizon_ms + sigma_ms - gap_ms) - later
        served[k] = (later - before) + (fresh - step)
        unserved[k] = (later - before) + (later_step - step)
    every, none = 0.0, 0.0
    for k in range(count):
        every += served[k]
        none += unserved[k]
    decision["late_horizon_ms"], decision["late_all"], decision["late_none"] = horizon_ms, every, none
