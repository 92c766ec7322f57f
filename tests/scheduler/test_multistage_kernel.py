"""Chains of several prerequisites: the kernel against each lane's continuations in plain words (S5)."""

from __future__ import annotations

import random

import pytest

from scheduler import layout
from tests.scheduler.kernel_worlds import CAPACITIES, make_world, ready, shape
from tests.scheduler.plain_kernels import plain

append_multistage = plain("multistage").append_multistage
CHAIN_STAGES = {
    layout.KIND_INIT: layout.INIT,
    layout.KIND_VISION: layout.VISION,
    layout.KIND_SNAPSHOT: layout.SNAPSHOT,
}


def make_chain(dice, kind):
    """A prerequisite shape, RESTORE and VISION shapes, and inference shapes, most of them measured."""

    def duration():
        return dice.choice((0, 1_000_000, 2_000_000, 3_500_000, 5_000_000, 8_000_000, 1_234_567))

    graphs = [shape(kind, dice.randrange(1, 4), duration_ns=duration())]
    graphs += [shape(layout.KIND_RESTORE, 2, duration_ns=duration()), shape(layout.KIND_VISION, 1, duration_ns=4_000)]
    graphs += [shape(layout.KIND_PREFILL, 1, prompt=c, duration_ns=duration()) for c in CAPACITIES]
    graphs += [shape(layout.KIND_SCORED_PREFILL, 1, prompt=128, duration_ns=duration())]
    graphs += [shape(layout.KIND_DECODE, 2, duration_ns=duration(), usable=0)]
    graphs += [shape(layout.KIND_SPECULATIVE, 2, 3, width=2, depth=1, duration_ns=duration())]
    graphs += [shape(layout.KIND_MIXED, 2, prompt=64, width=3, depth=2, duration_ns=duration())]
    world = make_world(dice, dice.randrange(1, 6), graphs, dyadic=False)
    for slot, state in enumerate(world.slots):
        state["stage"] = CHAIN_STAGES[kind]
        state["images_left"] = dice.randrange(3) + (kind == layout.KIND_VISION)
        state["window"], state["window_images"] = dice.randrange(2), dice.randrange(3)
        state["scored"] = dice.random() < 0.3
        if dice.random() < 0.7:
            state["consumed"], state["prompt_tokens"] = 0, 200
            world.work[slot] = dice.choice(((64, 128, 200), (60, 60, 60), (0, 0, 0)))
    return ready(world)


def chain(state):
    if state["stage"] == layout.SNAPSHOT:
        return [layout.KIND_RESTORE] + [layout.KIND_VISION] * int(state["window_images"]) if state["window"] else []
    return [layout.KIND_VISION] * (int(state["images_left"]) - (state["stage"] == layout.VISION))


def parts_on(world, slot, graph, horizon_ms):
    """(token, delivery, relief) of a lane on an inference graph, None where it cannot run there."""
    state, view, kind = world.slots[slot], world.views[slot], graph["kind"]
    if state["consumed"] == state["prompt_tokens"]:
        if not graph["usable"] or kind < layout.KIND_DECODE:
            return None
        rows = int(min(graph["lane_width"], view["limit"]))
        token = float(view["output_price"]) * float(world.yields[slot, 0, layout.YIELD_SCORE, rows])
        return token, float(view["delivery_price"]), float(view["age_weight"]) * (float(view["age_ms"]) + horizon_ms)
    wanted = [layout.KIND_SCORED_PREFILL] if state["scored"] else [layout.KIND_PREFILL, layout.KIND_MIXED]
    tokens = int(world.work[slot, graph["capacity_index"]])
    if kind not in wanted or tokens == 0:
        return None
    token, delivery = float(view["prompt_price"]) * tokens, 0.0
    if tokens == state["prompt_tokens"]:
        token, delivery = token + float(view["output_price"]), float(view["delivery_price"])
    return token, delivery, 0.0


def continuations(world, slot, horizon_ms):
    """(parts, F in ns or None while unknown) of every graph that can serve the lane."""
    further = 0
    for kind in chain(world.slots[slot]):
        known = [int(g["duration_ns"]) for g in world.graphs if g["kind"] == kind and g["duration_ns"] > 0]
        further = None if further is None or not known else further + min(known)
    found = []
    for graph in world.graphs:
        parts = parts_on(world, slot, graph, horizon_ms)
        if parts is not None:
            measured = further is not None and graph["duration_ns"] > 0
            found.append((parts, further + int(graph["duration_ns"]) if measured else None))
    return found


def expected_candidate(world):
    """(known, lanes, token, delivery, relief) of the multistage candidate, None without one."""
    own_ns = int(world.graphs[0]["duration_ns"])
    lanes = {slot: continuations(world, slot, own_ns / 1e6) for slot in range(len(world.slots))}
    lanes = {slot: options for slot, options in lanes.items() if options}
    if not lanes or not any(chain(state) for state in world.slots):
        return None
    known = own_ns > 0 and all(any(f is not None for _, f in options) for options in lanes.values())
    best = {}
    for slot in lanes:
        choices = []
        for parts, further in continuations(world, slot, own_ns / 1e6 if known else 0.0):
            if known and further is None:
                continue
            factor = (own_ns / 1e6) / ((own_ns + further) / 1e6) if known else 1.0
            choices.append(((parts[0] + parts[1] + parts[2]) * factor, [part * factor for part in parts]))
        best[slot] = max(choices, key=lambda choice: choice[0])
    ticks = world.slots["last_served_tick"]
    order = sorted(best, key=lambda slot: (-best[slot][0], int(ticks[slot]), slot))[: int(world.graphs[0]["batch"])]
    sums = [0.0, 0.0, 0.0]
    for slot in order:
        sums = [total + part for total, part in zip(sums, best[slot][1], strict=True)]
    return (known, order, *sums)


@pytest.mark.parametrize("kind", list(CHAIN_STAGES))
def test_lanes_are_ranked_by_what_their_own_continuation_is_worth(kind):
    dice = random.Random(f"chain {kind}")
    seen = set()
    for _ in range(400):
        world = make_chain(dice, kind)
        members = plain("prerequisites")._collect_stage(world, plain("additive").collect_lanes(world), kind).members
        append_multistage(world, members, 0)
        expected = expected_candidate(world)
        seen.add(None if expected is None else expected[0])
        assert world.decision[0]["found"] == world.decision[0]["priced"] == (expected is not None)
        if expected is not None:
            row = world.candidates[0]
            lanes = [int(slot) for slot in world.pool[0, : row["lanes"]]]
            parts = [float(row[name]) for name in ("token_value", "delivery_value", "age_relief")]
            assert (bool(row["known"]), lanes, *parts) == expected
            assert row["horizon_ns"] == (world.graphs[0]["duration_ns"] if expected[0] else 0)
            assert (row["served"], row["following"]) == (len(lanes), -1)
    assert seen >= {True, False}
