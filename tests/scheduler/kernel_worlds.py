"""Random arrays of one decision for tests of single kernels, with a view of them as plain Python values."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

import numpy as np

from scheduler import layout
from tests.scheduler.plain_kernels import plain

context = plain("context")

DEPTH = 4
CAPACITIES = (64, 128, 256)


def make_world(dice: random.Random, slots: int, graphs: list[dict[str, float]], dyadic: bool) -> NamedTuple:
    """A world of random decoding residents; `dyadic`: few distinct values and exact sums, so that much is equal."""
    width = context.scratch_width(slots, len(CAPACITIES))
    arrays = {
        "slots": layout.zeros(layout.SLOT, slots),
        "graphs": _graphs(graphs),
        "policy": layout.zeros(layout.POLICY, 1),
        "decision": layout.zeros(layout.DECISION, 1),
        "views": layout.zeros(layout.VIEW, slots),
        "candidates": layout.zeros(layout.CANDIDATE, 400),
        "pool": np.full((2, 20_000), -7, np.int64),
        "survival": np.zeros((slots, 2, DEPTH)),
        "yields": np.zeros((slots, 2, 3, DEPTH + 2)),
        "estimates": np.zeros((slots, 2, 2, DEPTH, 2)),
        "work": np.zeros((slots, len(CAPACITIES)), np.int64),
        "scratch": np.zeros((context.SCRATCH_ROWS, width), np.int64),
        "amounts": np.zeros((context.AMOUNT_ROWS, width)),
    }
    world = context.World(**arrays)
    _set_policy(dice, world, dyadic)
    for slot in range(slots):
        _set_decoder(dice, world, slot, dyadic)
        _set_acceptance(dice, world, slot, dyadic)
    return world


def ready(world: NamedTuple) -> NamedTuple:
    """The world after set_context; call it once slots and graphs are as wanted."""
    context.set_context(world)
    return world


def shape(kind: int, batch: int, rows: int = 0, **fields: int) -> dict[str, float]:
    """The fields of one GRAPH record. Without `width` it has one row per lane; `rows` 0: rectangular."""
    width, depth, prompt = fields.get("width", 1), fields.get("depth", 0), fields.get("prompt", 0)
    lane_width = min(depth + 1, width)
    rows = rows or (batch * width if kind >= layout.KIND_DECODE else 0)
    allocation = fields.get("allocation", layout.ALLOCATE_NONE)
    return {
        "kind": kind,
        "batch": batch,
        "depth": depth,
        "width": width,
        "rows": rows,
        "prompt": prompt,
        "prompt_rows": fields.get("prompt_rows", 1),
        "capacity_index": CAPACITIES.index(prompt) if prompt else -1,
        "lane_width": lane_width,
        "ragged": int(kind >= layout.KIND_DECODE and rows < batch * lane_width),
        "allocation": allocation,
        "estimator": layout.FORECAST if allocation == layout.ALLOCATE_DEVICE else layout.ACCEPTANCE,
        "usable": fields.get("usable", 1),
        "below": CAPACITIES.index(prompt) - 1 if prompt else -1,
        "physical": rows + prompt or batch,
        "duration_ns": fields.get("duration_ns", 0),
        "log_ms": math.log(fields["duration_ns"] / 1e6) if fields.get("duration_ns") else 0.0,
        "log_prompt": math.log(prompt) if prompt else 0.0,
        "observed_ns": fields.get("observed_ns", -1),
        "attempted_ns": fields.get("attempted_ns", -1),
    }


def _graphs(fields: list[dict[str, float]]) -> np.ndarray:
    graphs = layout.zeros(layout.GRAPH, len(fields))
    for g, of in enumerate(fields):
        for name, value in of.items():
            graphs[g][name] = value
    return graphs


def _set_policy(dice: random.Random, world: NamedTuple, dyadic: bool) -> None:
    policy = world.policy[0]
    for name, typical in (
        ("output_token_value", 64.0),
        ("token_fairness", 16.0),
        ("delivery_fairness", 4.0),
        ("decode_age_price", 0.125),
        ("terminal_value", 256.0),
        ("terminal_age_price", 1.0),
    ):
        policy[name] = dice.choice((0.0, typical)) if dyadic else typical * dice.random()
    policy["alpha"] = 1.0
    policy["ttl_ns"] = 30_000_000_000
    decision = world.decision[0]
    decision["now_ns"] = decision["start_ns"] = 60_000_000_000
    decision["free_pages"] = layout.UNBOUNDED
    decision["page_tokens"] = 16
    decision["free_snapshot_rows"] = 1


def _set_decoder(dice: random.Random, world: NamedTuple, slot: int, dyadic: bool) -> None:
    state = world.slots[slot]
    state["stage"] = layout.DECODE
    state["generation"] = 1
    state["prompt_tokens"] = state["consumed"] = state["segment_end"] = 100
    state["emitted"] = dice.randrange(1, 20)
    state["output_limit"] = state["emitted"] + dice.choice((1, 2, 3, 50, 50, 50))
    state["source"] = dice.choice((layout.LEARNED, layout.LEARNED, layout.COPY, layout.NO_SOURCE))
    state["drafts"] = {layout.LEARNED: layout.UNBOUNDED, layout.COPY: 2, layout.NO_SOURCE: 0}[int(state["source"])]
    state["last_served_tick"] = dice.randrange(1, 4)
    state["view_token_memory"] = dice.choice((1.0, 2.0, np.nan)) if dyadic else dice.random() * 4.0
    state["view_delivery_memory"] = dice.choice((1.0, 4.0, np.nan)) if dyadic else dice.random() * 9.0
    visible_ms = dice.choice((-1, 59_000, 59_744)) if dyadic else 59_000 + dice.random() * 1000.0
    state["view_visible_ns"] = -1 if visible_ms == -1 else int(visible_ms * 1e6)


def _set_acceptance(dice: random.Random, world: NamedTuple, slot: int, dyadic: bool) -> None:
    """Survival falls or stays; yields are its sums, the optimistic ones a little higher."""
    for estimator in range(2):
        survival, total, optimistic = 1.0, 0.0, 0.0
        world.yields[slot, estimator, :, 1] = 1.0
        for depth in range(1, DEPTH + 1):
            survival *= dice.choice((1.0, 1.0, 0.5, 0.5, 0.0)) if dyadic else dice.random() ** 0.5
            total += survival
            optimistic += min(1.0, survival + 0.25)
            world.survival[slot, estimator, depth - 1] = survival
            world.yields[slot, estimator, layout.YIELD_RAW, 1 + depth] = 1.0 + total
            world.yields[slot, estimator, layout.YIELD_SCORE, 1 + depth] = 1.0 + total
            world.yields[slot, estimator, layout.YIELD_OPTIMISTIC, 1 + depth] = 1.0 + optimistic
            for source in range(2):
                weight = float(dice.randrange(1, 4)) if dyadic else 1.0 + dice.random()
                world.estimates[slot, source, estimator, depth - 1] = survival, weight
