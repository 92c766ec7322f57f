"""What a plan keeps of its decision: the recorded candidates and the submitted lanes, copied out of the tables."""

from __future__ import annotations

from scheduler import layout
from scheduler.kernels.context import (
    MARKS,
    decode_value,
    finishes,
    prompt_lane_value,
    terminal_row_value,
)
from scheduler.kernels.jit import inner
from scheduler.kernels.table import ceiling_of, is_fresh

ROLE_PREFILL, ROLE_DECODE, ROLE_INIT, ROLE_RESTORE, ROLE_VISION, ROLE_SNAPSHOT, ROLE_TERMINAL = range(7)
"""Roles, in the order of scheduler.plans.Role."""
COST_UNKNOWN, COST_FRESH, COST_STALE = range(3)
"""In the order of scheduler.plans.CostState."""


@inner
def record_candidate(world, c, recorded, recorded_slots):
    """Adds to a copy of row `c` what is known of its cost, and its submitted slots, ascending, to those recorded."""
    graph = world.graphs[world.candidates[c]["graph"]]
    recorded["selected_ns"] = graph["duration_ns"]
    recorded["observed_ns"] = graph["observed_ns"]
    recorded["cost_state"] = COST_UNKNOWN
    if graph["duration_ns"] > 0:
        recorded["cost_state"] = COST_FRESH if is_fresh(world, graph) else COST_STALE
    _mark_rows(world, c)
    written = world.decision[0]["recorded_slots"]
    for slot in range(len(world.slots)):
        if world.scratch[MARKS, slot] > 0:
            recorded_slots[written] = slot
            written += 1
    world.decision[0]["recorded_slots"] = written


@inner
def record_lanes(world, c, lanes, details):
    """Writes the submitted lanes of row `c`, in slot order."""
    row = world.candidates[c]
    _mark_rows(world, c)
    n = 0
    for slot in range(len(world.slots)):
        rows = world.scratch[MARKS, slot]
        if rows == 0:
            continue
        lane, detail = lanes[n], details[n]
        lane["slot"] = slot
        lane["generation"] = world.slots[slot]["generation"]
        lane["epoch"] = world.slots[slot]["epoch"]
        lane["rows"] = rows
        lane["ceiling"] = 0
        lane["prompt_tokens"] = 0
        lane["source"] = layout.NO_SOURCE
        lane["expected_tokens"] = 0.0
        _set_detail(world, slot, detail)
        if _is_prompt_lane(world, row, slot):
            _set_prompt_lane(world, slot, lane, detail)
        elif world.graphs[row["graph"]]["kind"] >= layout.KIND_DECODE:
            _set_decode_lane(world, row, slot, lane, detail)
        else:
            _set_state_lane(world, row, slot, detail)
        n += 1


@inner
def _mark_rows(world, c):
    """scratch[MARKS]: for each slot its rows in the submitted graph (tokens of a prompt), 0 without."""
    row, marks = world.candidates[c], world.scratch[MARKS]
    for i in range(len(world.slots)):
        marks[i] = 0
    for i in range(row["first"], row["first"] + row["lanes"]):
        marks[world.pool[0, i]] = world.pool[1, i]


@inner
def _is_prompt_lane(world, row, slot):
    """Whether a lane consumes prompt tokens: a request in PREFILL runs on no other kind of lane."""
    return row["prompts"] > 0 and world.slots[slot]["stage"] == layout.PREFILL


@inner
def _set_detail(world, slot, detail):
    """Prices, age and sigma as the decision saw them."""
    view, decision = world.views[slot], world.decision[0]
    detail["token_price"] = view["token_price"]
    detail["delivery_price"] = view["delivery_price"]
    detail["age_ms"] = 0.0
    detail["sigma_ms"] = 0.0
    detail["value"] = 0.0
    detail["terminal_value"] = 0.0
    if view["active"] == 1:
        detail["age_ms"] = view["age_ms"]
        detail["sigma_ms"] = decision["sigma_ms"]
    elif world.slots[slot]["stage"] == layout.TERMINAL:
        detail["age_ms"] = view["terminal_age_ms"]
        detail["sigma_ms"] = decision["terminal_sigma_ms"]


@inner
def _set_prompt_lane(world, slot, lane, detail):
    tokens = lane["rows"]
    lane["prompt_tokens"] = tokens
    if finishes(world, slot, tokens):
        lane["ceiling"] = 1
        lane["expected_tokens"] = 1.0
    detail["role"] = ROLE_PREFILL
    detail["value"] = prompt_lane_value(world, slot, tokens)


@inner
def _set_decode_lane(world, row, slot, lane, detail):
    """Expected tokens come from the allocated rows; under device allocation the lane itself may use all it can."""
    graph, rows = row["graph"], lane["rows"]
    estimator = world.graphs[graph]["estimator"]
    lane["expected_tokens"] = world.yields[slot, estimator, layout.YIELD_RAW, rows]
    lane["rows"] = ceiling_of(world, graph, slot, rows)
    lane["ceiling"] = lane["rows"]
    if lane["rows"] > 1:
        lane["source"] = world.slots[slot]["source"]
    detail["role"] = ROLE_DECODE
    detail["value"] = decode_value(world, slot, graph, rows, row["horizon_ms"])


@inner
def _set_state_lane(world, row, slot, detail):
    """A state operation earns nothing by itself, but a terminal row retires."""
    stage = world.slots[slot]["stage"]
    if stage == layout.TERMINAL:
        duration_ms = world.graphs[row["graph"]]["duration_ns"] / 1e6 if row["known"] == 1 else 0.0
        detail["role"] = ROLE_TERMINAL
        detail["value"] = terminal_row_value(world, slot, duration_ms)
        detail["terminal_value"] = detail["value"]
    elif stage == layout.INIT:
        detail["role"] = ROLE_INIT
    elif stage == layout.RESTORE:
        detail["role"] = ROLE_RESTORE
    elif stage == layout.VISION:
        detail["role"] = ROLE_VISION
    else:
        detail["role"] = ROLE_SNAPSHOT
