"""Probes: which candidate displaces the winner, against a plain search over the candidate table (S7, S8)."""

from __future__ import annotations

import random

import pytest

from scheduler import layout
from tests.scheduler.kernel_worlds import DEPTH, make_world, ready, shape
from tests.scheduler.plain_kernels import plain

probes, additive, ragged = plain("probes"), plain("additive"), plain("ragged")
precedes = plain("order").precedes
NOW = 60_000_000_000
TTL = 30_000_000_000


def random_shape(dice):
    fields = {
        "duration_ns": dice.choice((1_000_000, 1_000_000, 2_000_000, 3_210_000)),
        "observed_ns": NOW - dice.choice((0, TTL, TTL + 1, 40_000_000_000)),
        "attempted_ns": dice.choice((-1, NOW - 35_000_000_000, NOW - 1)),
        "allocation": dice.choice((layout.ALLOCATE_HOST, layout.ALLOCATE_DEVICE)),
    }
    batch, width = dice.randrange(1, 5), dice.randrange(1, DEPTH + 2)
    if dice.random() < 0.2:
        return shape(layout.KIND_DECODE, batch, **fields)
    rows = dice.choice((0, dice.randrange(1, batch * width + 1)))
    return shape(layout.KIND_SPECULATIVE, batch, rows, width=width, depth=width - 1, **fields)


def make_table(dice, dyadic):
    """A world whose candidate table holds one candidate of each shape; some are barred."""
    graphs = [random_shape(dice) for _ in range(dice.randrange(2, 9))]
    world = ready(make_world(dice, dice.randrange(1, 6), graphs, dyadic))
    lanes, work = additive.collect_lanes(world), ragged.new_ragged(world)
    for graph in range(len(graphs)):
        if world.graphs[graph]["ragged"] == 1:
            additive.append_ragged(world, graph, ragged.adaptive_ragged(world, work, graph), 1)
        else:
            additive.append_additive(world, lanes, graph)
    found = int(world.decision[0]["found"])
    for c in range(found):
        world.candidates[c]["barred"] = dice.choice((layout.NOT_BARRED,) * 5 + (layout.PRUNED,))
    winner = dice.randrange(found)
    world.candidates[winner]["barred"] = layout.NOT_BARRED
    return world, winner


def eligible(world):
    return [c for c in range(world.decision[0]["found"]) if world.candidates[c]["barred"] == layout.NOT_BARRED]


def graph_of(world, c):
    return world.graphs[world.candidates[c]["graph"]]


def lanes_of(world, c):
    row = world.candidates[c]
    return [(int(s), int(r)) for s, r in world.pool[:, row["first"] : row["first"] + row["lanes"]].T]


def first_of(world, candidates):
    """The first of several candidates in the total order, -1 of none."""
    best = -1
    for c in candidates:
        if best < 0 or precedes(world, c, best):
            best = c
    return best


def expected_refresh(world, winner):
    last = {}
    for c in eligible(world):
        graph = graph_of(world, c)
        if graph["duration_ns"] > 0 and NOW - graph["observed_ns"] > TTL:
            last[c] = max(int(graph["observed_ns"]), int(graph["attempted_ns"]))
    last = {c: when for c, when in last.items() if world.candidates[c]["graph"] != world.candidates[winner]["graph"]}
    return first_of(world, [c for c, when in last.items() if when == min(last.values())])


def optimistic_score(world, c):
    row, estimator = world.candidates[c], graph_of(world, c)["estimator"]
    token = 0.0
    for slot, rows in lanes_of(world, c):
        expected = float(world.yields[slot, estimator, layout.YIELD_OPTIMISTIC, rows])
        token += float(world.views[slot]["output_price"]) * expected
    work = ((token + float(row["delivery_value"])) + float(row["age_relief"])) + 0.0
    horizon_ms = int(row["horizon_ns"]) / 1e6
    return work / horizon_ms - horizon_ms / 2.0 * float(world.decision[0]["wait_price"])


def expected_learning(world, winner):
    offered = dict(lanes_of(world, winner)) if graph_of(world, winner)["kind"] != layout.KIND_DECODE else {}
    score = float(world.candidates[winner]["score"])
    ranked = []
    for c in eligible(world):
        graph = graph_of(world, c)
        weights = []
        for slot, rows in lanes_of(world, c):
            before = offered.get(slot, 1)
            if rows > before and world.views[slot]["left"] - rows >= 1:
                source = world.slots[slot]["source"]
                weights += [
                    float(world.estimates[slot, source, graph["estimator"], depth - 1, 1])
                    for depth in range(before, rows)
                ]
        speculative = graph["kind"] == layout.KIND_SPECULATIVE and graph["depth"] > 0
        optimistic = optimistic_score(world, c)
        if speculative and weights and optimistic > score:
            gain = (optimistic - score) / (int(graph["duration_ns"]) / 1e6)
            ranked.append((-gain, min(weights), int(graph["duration_ns"]), int(graph["physical"]), c))
    return min(ranked)[-1] if ranked else -1


@pytest.mark.parametrize("dyadic", [False, True], ids=["general", "tied"])
def test_a_refresh_takes_the_shape_that_was_tried_longest_ago(dyadic):
    dice = random.Random(f"refresh {dyadic}")
    found = set()
    for _ in range(400):
        world, winner = make_table(dice, dyadic)
        expected = expected_refresh(world, winner)
        assert probes.timing_refresh(world, winner) == expected
        found.add(expected)
    assert found >= {-1, 0, 3, 5}


@pytest.mark.parametrize("dyadic", [False, True], ids=["general", "tied"])
def test_learning_takes_the_largest_optimistic_gain(dyadic):
    dice = random.Random(f"learning {dyadic}")
    found = set()
    for _ in range(400):
        world, winner = make_table(dice, dyadic)
        expected = expected_learning(world, winner)
        assert probes.acceptance_learning(world, winner) == expected
        found.add(expected)
    assert found >= {-1, 0, 3, 5}


def test_output_that_ends_with_the_round_teaches_nothing():
    dice = random.Random("ending")
    graphs = [
        shape(layout.KIND_SPECULATIVE, 1, width=1, duration_ns=1_000_000),
        shape(layout.KIND_SPECULATIVE, 1, width=3, depth=2, duration_ns=1_000_000),
    ]
    for left, expected in ((3, -1), (4, 1)):
        world = make_world(dice, 1, graphs, dyadic=False)
        world.slots[0]["source"], world.slots[0]["drafts"] = layout.LEARNED, layout.UNBOUNDED
        world.slots[0]["output_limit"] = world.slots[0]["emitted"] + left
        ready(world)
        lanes = additive.collect_lanes(world)
        for graph in range(2):
            additive.append_additive(world, lanes, graph)
        assert world.candidates[1]["lanes"] == 1
        assert probes.acceptance_learning(world, 0) == expected


def test_a_candidate_no_better_than_the_winner_is_not_learnt_from():
    dice = random.Random("no better")
    graphs = [
        shape(layout.KIND_SPECULATIVE, 1, width=1, duration_ns=1_000_000),
        shape(layout.KIND_SPECULATIVE, 1, width=3, depth=2, duration_ns=9_000_000),
    ]
    world = make_world(dice, 1, graphs, dyadic=False)
    world.slots[0]["source"], world.slots[0]["drafts"] = layout.LEARNED, layout.UNBOUNDED
    world.slots[0]["output_limit"] = 100
    ready(world)
    lanes = additive.collect_lanes(world)
    for graph in range(2):
        additive.append_additive(world, lanes, graph)
    assert probes.acceptance_learning(world, 0) == -1


def test_equal_gains_go_to_the_smallest_weight_among_the_added_depths():
    """Host and device allocation expect the same here; only the weights of their estimators differ."""
    graphs = [
        shape(
            layout.KIND_SPECULATIVE, 1, width=width, depth=width - 1, allocation=allocation, duration_ns=1_000_000_000
        )
        for width, allocation in ((2, layout.ALLOCATE_HOST), (4, layout.ALLOCATE_HOST), (4, layout.ALLOCATE_DEVICE))
    ]
    world = make_world(random.Random("weights"), 1, graphs, dyadic=False)
    world.slots[0]["source"], world.slots[0]["drafts"] = layout.LEARNED, layout.UNBOUNDED
    world.slots[0]["output_limit"] = 100
    world.yields[0, 1] = world.yields[0, 0]
    world.yields[0, :, layout.YIELD_OPTIMISTIC, 4] = 4.0
    world.estimates[0, layout.LEARNED, layout.ACCEPTANCE, :3, 1] = (1.0, 5.0, 6.0)
    world.estimates[0, layout.LEARNED, layout.FORECAST, :3, 1] = (9.0, 3.0, 9.0)
    ready(world)
    lanes = additive.collect_lanes(world)
    for graph in range(3):
        additive.append_additive(world, lanes, graph)
    assert probes.acceptance_learning(world, 0) == 2
    world.estimates[0, layout.LEARNED, layout.FORECAST, 1, 1] = 5.5
    assert probes.acceptance_learning(world, 0) == 1
