"""The total order, lane sorting and pruning of candidates, against obvious twins (specification S4)."""

from __future__ import annotations

import functools
import itertools
import random

import numpy as np
import pytest

from scheduler import layout
from tests.scheduler.kernel_worlds import make_world, ready, shape
from tests.scheduler.plain_kernels import plain

SLOTS = 6
CASES = range(60)
PREFILLS = (layout.KIND_PREFILL, layout.KIND_SCORED_PREFILL)
GRAPHS = [
    shape(layout.KIND_INIT, 2, duration_ns=1_000_000),
    shape(layout.KIND_INIT, 4, duration_ns=1_000_000),
    shape(layout.KIND_PREFILL, 1, prompt=64, duration_ns=1_000_000),
    shape(layout.KIND_PREFILL, 1, prompt=128, duration_ns=1_000_000),
    shape(layout.KIND_SPECULATIVE, 4, duration_ns=1_000_000),
    shape(layout.KIND_SPECULATIVE, 2, width=3, depth=2, duration_ns=1_000_000),
    shape(layout.KIND_SPECULATIVE, 4, width=3, depth=2, duration_ns=2_000_000),
    shape(layout.KIND_SPECULATIVE, 4, rows=6, width=3, depth=2, duration_ns=1_000_000),
    shape(layout.KIND_SPECULATIVE, 4, rows=6, width=3, depth=2, allocation=layout.ALLOCATE_DEVICE),
    shape(layout.KIND_MIXED, 2, prompt=64),
    shape(layout.KIND_MIXED, 4, prompt=128),
    shape(layout.KIND_MIXED, 4, prompt=128, prompt_rows=2),
]


def random_candidates(seed, count=14):
    """A world whose table holds candidates of few distinct values, cohorts and shapes: much is equal."""
    dice = random.Random(seed)
    world = ready(make_world(dice, SLOTS, GRAPHS, dyadic=True))
    table = plain("table")
    for _ in range(count):
        graph = dice.randrange(len(GRAPHS))
        following = dice.choice((2, 3, 5, 6, 9, 10, 11)) if graph < 2 else -1
        c = table.start_candidate(world, graph, following)
        row = world.candidates[c]
        served = push_lanes(dice, world, row, graph, "")
        row["following_first"] = world.decision[0]["pooled"]
        if following >= 0:
            served |= push_lanes(dice, world, row, following, "following_")
        row["served"] = len(served)
        row["known"] = dice.choice((0, 1))
        row["score"] = dice.choice((1.0, 2.0))
        row["horizon_ns"] = dice.choice((1, 2)) * row["known"]
        table.finish_candidate(world, c)
    return world


def push_lanes(dice, world, row, graph, prefix):
    """One of two cohorts in any order, and prompt lanes where the graph takes some, in any order."""
    slots = [] if world.graphs[graph]["kind"] in PREFILLS else dice.sample(dice.choice(((0, 1), (1, 2))), 2)
    for slot in slots:
        plain("table").push(world, slot, 1 + slot % 2)
    prompts = []
    if world.graphs[graph]["prompt"]:
        mixed = world.graphs[graph]["kind"] == layout.KIND_MIXED
        prompts = dice.choice(((5,), (4,), (4, 5), (5, 4))) if mixed else (5,)
    for slot in prompts:
        tokens = dice.choice((32, 64)) if slot == 4 else 64
        plain("table").push(world, slot, tokens)
        if not prefix:
            row["prompt_tokens"] += tokens
    row[prefix + "lanes"] = len(slots) + len(prompts)
    row[prefix + "prompts"] = len(prompts)
    return {*slots, *prompts}


def lanes_of(world, row, prefix=""):
    first = int(row[prefix + "first"])
    end = first + int(row[prefix + "lanes"])
    return {int(s): int(r) for s, r in zip(world.pool[0, first:end], world.pool[1, first:end], strict=True)}


def served_slots(world, row):
    return sorted({*lanes_of(world, row), *lanes_of(world, row, "following_")})


def order_key(world, row):
    slots = served_slots(world, row)
    return (
        int(row["known"]),
        -float(row["score"]),
        int(row["horizon_ns"]),
        -len(slots),
        sorted(int(world.slots[s]["last_served_tick"]) for s in slots),
        int(row["physical_rows"] - row["logical_rows"]),
        int(row["physical_rows"]),
        int(row["graph"]),
        int(row["following"]),
        slots,
    )


@pytest.mark.parametrize("seed", CASES)
def test_the_total_order_is_the_lexicographic_order_of_its_parts(seed):
    world = random_candidates(seed)
    precedes = plain("order").precedes
    rows = world.candidates[: int(world.decision[0]["found"])]
    assert len(rows) == 14
    for a, b in itertools.product(range(len(rows)), repeat=2):
        assert bool(precedes(world, a, b)) == (order_key(world, rows[a]) < order_key(world, rows[b])), (a, b)


@pytest.mark.parametrize("gap", [1, 3])
def test_lanes_sort_by_value_then_ticks_then_rows_then_slot(gap):
    dice = random.Random(5)
    for _ in range(100):
        world = ready(make_world(dice, 9, GRAPHS, dyadic=True))
        value = np.array([dice.choice((1.0, 2.0)) for _ in range(9)])
        rows = np.array([dice.choice((1, 2)) for _ in range(9)])
        order = np.array(dice.sample(range(9), 7))
        expected = sorted(order.tolist(), key=lambda s: (-value[s], world.slots[s]["last_served_tick"], -rows[s], s))
        plain("order").sort_lanes(world, order, 7, value, rows, gap)
        assert order.tolist() == expected


def extents(graph):
    return tuple(int(graph[name]) for name in ("batch", "width", "rows", "prompt", "prompt_rows"))


def is_smaller(x, y):
    same = all(x[name] == y[name] for name in ("kind", "depth", "allocation"))
    pairs = list(zip(extents(x), extents(y), strict=True))
    return same and all(b <= a for a, b in pairs) and any(b < a for a, b in pairs)


def is_redundant(world, x, y):
    """Candidate y serves what x does with a smaller submitted graph, or a smaller following one that is no prefill."""
    graphs = world.graphs

    def same(prefix):
        return lanes_of(world, x, prefix) == lanes_of(world, y, prefix)

    if not (same("") and same("following_")):
        return False
    if x["following"] == y["following"]:
        return is_smaller(graphs[x["graph"]], graphs[y["graph"]])
    if x["graph"] != y["graph"] or x["following"] < 0 or y["following"] < 0:
        return False
    prefill = graphs[x["following"]]["kind"] in PREFILLS
    return not prefill and is_smaller(graphs[x["following"]], graphs[y["following"]])


def test_a_candidate_is_pruned_exactly_when_another_serves_the_same_with_less_padding():
    pruned = 0
    for seed in CASES:
        world = random_candidates(seed, count=40)
        rows = world.candidates[: int(world.decision[0]["found"])].copy()
        eligible = [r for r in rows if r["barred"] == 0 and world.graphs[r["graph"]]["kind"] not in PREFILLS]
        redundant = functools.partial(is_redundant, world)
        expected = [
            any(redundant(x, y) for y in eligible) if world.graphs[x["graph"]]["kind"] not in PREFILLS else False
            for x in rows
        ]
        plain("pruning").prune(world)
        found = world.candidates[: len(rows)]["barred"] == layout.PRUNED
        assert found.tolist() == expected
        pruned += sum(expected)
    assert pruned > 100


@pytest.mark.parametrize("seed", CASES)
def test_alternatives_are_the_best_of_each_other_kind_and_then_the_best_that_differ(seed):
    world = random_candidates(seed, count=24)
    dice = random.Random(seed)
    rows = world.candidates[: int(world.decision[0]["found"])]
    for row in rows:
        row["barred"] = dice.choice((0, 0, layout.PRUNED))
    chosen = dice.randrange(len(rows))
    out = np.empty(4, np.int64)
    count = plain("selection").choose_alternatives(world, chosen, out)
    assert out[:count].tolist() == expected_alternatives(world, rows, chosen)


def expected_alternatives(world, rows, chosen):
    ranking = sorted(
        (c for c in range(len(rows)) if c != chosen), key=lambda c: (rows[c]["barred"] != 0, order_key(world, rows[c]))
    )

    def kind(c):
        return int(world.graphs[rows[c]["graph"]]["kind"])

    def identity(c):
        return int(rows[c]["graph"]), frozenset(lanes_of(world, rows[c]))

    kinds, first = {kind(chosen)}, []
    for c in ranking:
        if kind(c) not in kinds:
            kinds.add(kind(c))
            first.append(c)
    seen, taken = {identity(chosen)}, []
    for c in [*first, *ranking]:
        if identity(c) not in seen and len(taken) < 4:
            seen.add(identity(c))
            taken.append(c)
    return taken
