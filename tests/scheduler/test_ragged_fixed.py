"""Fixed ragged rounds: the kernel against every cohort that fits, and large ones against a plain table (S4)."""

from __future__ import annotations

import itertools
import random

import pytest

from scheduler import layout
from tests.scheduler.kernel_worlds import DEPTH, make_world, ready, shape
from tests.scheduler.plain_kernels import plain

fixed_ragged, new_ragged = plain("fixed_ragged").fixed_ragged, plain("ragged").new_ragged


def ragged_shape(dice: random.Random, batch: int, width: int) -> dict[str, int]:
    rows = dice.randrange(1, batch * width)
    duration_ns = dice.choice((0, 1_000_000, 2_500_000))
    return shape(layout.KIND_SPECULATIVE, batch, rows, width=width, depth=width - 1, duration_ns=duration_ns)


def lanes_of(world, graph):
    """(slot, rows, value, tick) of each selectable lane."""
    horizon_ms = int(world.graphs[graph]["duration_ns"]) / 1e6
    lanes = []
    for slot, view in enumerate(world.views):
        if view["selectable"] == 1:
            rows = int(min(world.graphs[graph]["lane_width"], view["limit"]))
            token = float(view["output_price"]) * float(world.yields[slot, 0, layout.YIELD_SCORE, rows])
            relief = float(view["age_weight"]) * (float(view["age_ms"]) + horizon_ms)
            value = token + float(view["delivery_price"]) + relief
            lanes.append((slot, rows, value, int(world.slots[slot]["last_served_tick"])))
    return lanes


def final_order(cohort):
    """What the best cohort has the least of. Totals are added from 0.0 in slot order."""
    total = 0.0
    for _, _, value, _ in cohort:
        total += value
    rows = sum(lane[1] for lane in cohort)
    return -total, -len(cohort), sorted(lane[3] for lane in cohort), -rows, [lane[0] for lane in cohort]


def best_of_all(world, graph):
    batch, rows = int(world.graphs[graph]["batch"]), int(world.graphs[graph]["rows"])
    lanes = lanes_of(world, graph)
    cohorts = itertools.chain.from_iterable(itertools.combinations(lanes, n) for n in range(1, batch + 1))
    fitting = [cohort for cohort in cohorts if sum(lane[1] for lane in cohort) <= rows]
    return [lane[:2] for lane in min(fitting, key=final_order, default=())]


def best_by_table(world, graph):
    batch, most_rows = int(world.graphs[graph]["batch"]), int(world.graphs[graph]["rows"])
    cells = {(0, 0): ()}
    for lane in lanes_of(world, graph):
        for (count, rows), cohort in list(cells.items()):
            place = count + 1, rows + lane[1]
            grown = (*cohort, lane)
            fits = place[0] <= batch and place[1] <= most_rows
            # Cells still hold the cohorts without this lane: a place is only ever filled from a smaller count.
            if fits and (place not in cells or final_order(grown) < final_order(cells[place])):
                cells[place] = grown
    del cells[0, 0]
    return [lane[:2] for lane in min(cells.values(), key=final_order, default=())]


def found_cohort(world, graph):
    count = fixed_ragged(world, new_ragged(world), graph)
    return [(int(slot), int(rows)) for slot, rows in world.pool[:, :count].T]


@pytest.mark.parametrize("dyadic", [False, True], ids=["general", "tied"])
def test_the_cohort_is_the_best_of_all_that_fit(dyadic):
    dice = random.Random(f"fixed {dyadic}")
    sizes = set()
    for _ in range(400):
        graphs = [ragged_shape(dice, batch, dice.randrange(2, DEPTH + 2)) for batch in (1, 2, 4, 8)]
        world = ready(make_world(dice, dice.randrange(1, 9), graphs, dyadic))
        for graph in range(4):
            expected = best_of_all(world, graph)
            assert found_cohort(world, graph) == expected
            sizes.add(len(expected))
    assert {0, 1, 2, 4} <= sizes


@pytest.mark.parametrize("dyadic", [False, True], ids=["general", "tied"])
def test_large_cohorts_agree_with_a_plain_table(dyadic):
    dice = random.Random(f"large fixed {dyadic}")
    graphs = [ragged_shape(dice, 16, 3), ragged_shape(dice, 64, 2)]
    world = ready(make_world(dice, 70, graphs, dyadic))
    for graph in range(2):
        assert found_cohort(world, graph) == best_by_table(world, graph)


def test_where_everything_fits_all_lanes_are_taken():
    dice = random.Random("all")
    world = make_world(dice, 64, [shape(layout.KIND_SPECULATIVE, 64, 127, width=2, depth=1)], False)
    world.slots["output_limit"] = world.slots["emitted"] + 1
    assert [slot for slot, _ in found_cohort(ready(world), 0)] == list(range(64))


def test_a_full_pool_is_an_overflow():
    dice = random.Random("full")
    world = ready(make_world(dice, 3, [ragged_shape(dice, 4, 2)], False))
    world.decision["pooled"] = world.pool.shape[1]
    assert fixed_ragged(world, new_ragged(world), 0) == 0
    assert world.decision[0]["overflow"] == 1
