"""Adaptive ragged rounds: the kernel against a plain evaluation of every prefix of every ordering (S4)."""

from __future__ import annotations

import random

import pytest

from scheduler import layout
from tests.scheduler.kernel_worlds import DEPTH, make_world, ready, shape
from tests.scheduler.plain_kernels import plain

adaptive_ragged, new_ragged = plain("ragged").adaptive_ragged, plain("ragged").new_ragged


def ragged_shape(dice: random.Random, batch: int, allocation: int) -> dict[str, int]:
    width = dice.randrange(2, DEPTH + 2)
    return shape(
        layout.KIND_SPECULATIVE,
        batch,
        dice.randrange(1, batch * width),
        width=width,
        depth=dice.randrange(width - 1, DEPTH + 1),
        allocation=allocation,
        duration_ns=dice.choice((0, 1_000_000, 2_500_000, 7_654_321)),
    )


def lane_parts(world, slot, graph, rows):
    view, of = world.views[slot], world.graphs[graph]
    horizon_ms = int(of["duration_ns"]) / 1e6
    expected = float(world.yields[slot, of["estimator"], layout.YIELD_SCORE, rows])
    token = float(view["output_price"]) * expected
    relief = float(view["age_weight"]) * (float(view["age_ms"]) + horizon_ms)
    return token, float(view["delivery_price"]), relief


def lane_value(world, slot, graph, rows):
    token, delivery, relief = lane_parts(world, slot, graph, rows)
    return token + delivery + relief


def rows_of(world, slot, graph):
    return int(min(world.graphs[graph]["lane_width"], world.views[slot]["limit"]))


def score(world, graph, cohort):
    """The score of (slot, rows) pairs, summed in their order."""
    sums = [0.0, 0.0, 0.0]
    for slot, rows in cohort:
        for part, value in enumerate(lane_parts(world, slot, graph, rows)):
            sums[part] += value
    work = ((sums[0] + sums[1]) + sums[2]) + 0.0
    horizon_ms = int(world.graphs[graph]["duration_ns"]) / 1e6
    return work / horizon_ms - horizon_ms / 2.0 * float(world.decision[0]["wait_price"]) if horizon_ms else work


def divide_rows(world, graph, cohort):
    """Rows of each slot: one each, the others by survival, depth and slot."""
    estimator = world.graphs[graph]["estimator"]
    frontier = [
        (-float(world.survival[slot, estimator, depth - 1]), depth, slot)
        for slot in cohort
        for depth in range(1, rows_of(world, slot, graph))
    ]
    rows = dict.fromkeys(cohort, 1)
    for _, _, slot in sorted(frontier)[: int(world.graphs[graph]["rows"]) - len(cohort)]:
        rows[slot] += 1
    return [(slot, rows[slot]) for slot in cohort]


def plain_adaptive(world, graph):
    slots = [slot for slot in range(len(world.slots)) if world.views[slot]["selectable"] == 1]
    most = min(int(world.graphs[graph]["batch"]), int(world.graphs[graph]["rows"]), len(slots))
    orderings = (
        lambda slot: lane_value(world, slot, graph, rows_of(world, slot, graph)),
        lambda slot: lane_value(world, slot, graph, 1),
        lambda slot: lane_value(world, slot, graph, rows_of(world, slot, graph)) / rows_of(world, slot, graph),
    )
    best, best_score = [], None
    for value in orderings:
        ordered = sorted(slots, key=lambda slot: (-value(slot), int(world.slots[slot]["last_served_tick"]), slot))
        for lanes in range(1, most + 1):
            cohort = divide_rows(world, graph, ordered[:lanes])
            found = score(world, graph, cohort)
            if best_score is None or found > best_score or (found == best_score and lanes > len(best)):
                best, best_score = cohort, found
    return best


def found_cohort(world, ragged, graph, search):
    count = search(world, ragged, graph)
    first = int(world.decision[0]["pooled"])
    return [(int(world.pool[0, first + k]), int(world.pool[1, first + k])) for k in range(count)]


@pytest.mark.parametrize("dyadic", [False, True], ids=["general", "tied"])
@pytest.mark.parametrize("allocation", [layout.ALLOCATE_HOST, layout.ALLOCATE_DEVICE], ids=["host", "device"])
def test_every_shape_gets_the_best_prefix_of_three_orderings(dyadic, allocation):
    dice = random.Random(f"adaptive {dyadic} {allocation}")
    sizes = set()
    for _ in range(250):
        graphs = [ragged_shape(dice, batch, allocation) for batch in (1, 2, 3, 5, 8)]
        world = ready(make_world(dice, dice.randrange(1, 11), graphs, dyadic))
        ragged = new_ragged(world)
        for graph in dice.sample(range(5), 5):  # what one shape leaves behind must not show in the next
            expected = plain_adaptive(world, graph)
            assert found_cohort(world, ragged, graph, adaptive_ragged) == expected
            sizes.add(len(expected))
    assert {1, 2, 3, 5} <= sizes


@pytest.mark.parametrize("dyadic", [False, True], ids=["general", "tied"])
def test_shapes_that_share_their_rows_share_prefixes_only_where_the_lanes_come_in_the_same_order(dyadic):
    dice = random.Random(f"shared {dyadic}")
    for _ in range(150):
        width, rows = dice.randrange(2, DEPTH + 2), dice.randrange(3, 9)
        graphs = [
            shape(
                layout.KIND_SPECULATIVE,
                batch,
                rows,
                width=width,
                depth=width - 1,
                allocation=dice.choice((layout.ALLOCATE_HOST, layout.ALLOCATE_DEVICE)),
                duration_ns=dice.choice((0, 1_000_000, 900_000_000)),  # relief may turn the order of lanes
            )
            for batch in (5, 7, 6, 8, 5, 6)
        ]
        graphs = [graph for graph in graphs if graph["ragged"]]
        world = ready(make_world(dice, dice.randrange(4, 11), graphs, dyadic))
        ragged = new_ragged(world)
        for graph in range(len(graphs)):
            assert found_cohort(world, ragged, graph, adaptive_ragged) == plain_adaptive(world, graph)


def test_large_cohorts_share_one_ranking_over_many_shapes():
    dice = random.Random("large")
    graphs = [ragged_shape(dice, batch, layout.ALLOCATE_HOST) for batch in (16, 32, 64)]
    for dyadic in (False, True):
        world = ready(make_world(dice, 70, graphs, dyadic))
        ragged = new_ragged(world)
        for graph in range(3):
            assert found_cohort(world, ragged, graph, adaptive_ragged) == plain_adaptive(world, graph)


def test_no_lane_makes_no_cohort():
    dice = random.Random("none")
    world = make_world(dice, 3, [ragged_shape(dice, 4, layout.ALLOCATE_HOST)], False)
    world.slots["cancelled"] = 1
    ready(world)
    assert adaptive_ragged(world, new_ragged(world), 0) == 0


def test_a_full_pool_is_an_overflow():
    dice = random.Random("full")
    world = ready(make_world(dice, 3, [ragged_shape(dice, 4, layout.ALLOCATE_HOST)], False))
    world.decision["pooled"] = world.pool.shape[1]
    assert adaptive_ragged(world, new_ragged(world), 0) == 0
    assert world.decision[0]["overflow"] == 1
