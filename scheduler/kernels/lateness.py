"""What a candidate does to the lateness of the active decoders (S4): the part decode_late_relief of its score."""

from __future__ import annotations

from scheduler import layout
from scheduler.kernels.context import ACTIVE, LATE_MARKS, SERVED, UNSERVED, late_square, late_step
from scheduler.kernels.jit import inner


@inner
def late_relief(world, row):
    """decode_late_relief of a candidate from its horizon and its decoding lanes, those of a following graph too."""
    decision, marks = world.decision[0], world.scratch[LATE_MARKS]
    if decision["late_horizon_ms"] != row["horizon_ms"]:
        _set_horizon(world, row["horizon_ms"])
    decision["late_marks"] += 1
    mark = decision["late_marks"]
    if world.graphs[row["graph"]]["kind"] >= layout.KIND_DECODE:
        _mark(world, row["first"], row["lanes"] - row["prompts"], mark)
    elif row["following"] >= 0 and world.graphs[row["following"]]["kind"] >= layout.KIND_DECODE:
        _mark(world, row["following_first"], row["following_lanes"] - row["following_prompts"], mark)
    total = 0.0
    for k in range(decision["decoders"]):
        served = marks[world.scratch[ACTIVE, k]] == mark
        total += world.late[SERVED, k] if served else world.late[UNSERVED, k]
    return 0.0 - decision["half_late_price"] * total


@inner
def _mark(world, first, count, mark):
    for i in range(first, first + count):
        world.scratch[LATE_MARKS, world.pool[0, i]] = mark


@inner
def _set_horizon(world, horizon_ms):
    """Fills world.late: what each active decoder adds to a total at this horizon, served or not."""
    decision = world.decision[0]
    decision["late_horizon_ms"] = horizon_ms
    gap_ms, fresh = decision["gap_ms"], late_step(0.0, decision)
    for k in range(decision["decoders"]):
        age_ms = world.views[world.scratch[ACTIVE, k]]["age_ms"]
        meanwhile = late_square(age_ms + horizon_ms - gap_ms) - late_square(age_ms - gap_ms)
        before = late_step(age_ms, decision)
        world.late[SERVED, k] = meanwhile + (fresh - before)
        world.late[UNSERVED, k] = meanwhile + (late_step(age_ms + horizon_ms, decision) - before)
