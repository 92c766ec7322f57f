"""Prerequisite pairs: the kernel against every choice of cohorts for both graphs (S5)."""

from __future__ import annotations

import itertools
import random

import pytest

from scheduler import layout
from tests.scheduler.kernel_worlds import CAPACITIES, make_world, ready, shape
from tests.scheduler.plain_kernels import plain

append_prerequisites = plain("prerequisites").append_prerequisites
collect_lanes = plain("additive").collect_lanes
PREREQUISITE, FOLLOWING = 0, 1
PROMPT_KINDS = (layout.KIND_PREFILL, layout.KIND_SCORED_PREFILL, layout.KIND_MIXED)
STAGES = {
    layout.KIND_INIT: layout.INIT,
    layout.KIND_RESTORE: layout.RESTORE,
    layout.KIND_VISION: layout.VISION,
    layout.KIND_SNAPSHOT: layout.SNAPSHOT,
}
DURATIONS = (0, 1_000_000, 2_000_000, 3_500_000)


def following_shape(dice, kind):
    fields = {"duration_ns": dice.choice(DURATIONS), "allocation": dice.choice((0, 1, 2))}
    if kind in (layout.KIND_PREFILL, layout.KIND_SCORED_PREFILL):
        return shape(kind, 1, prompt=dice.choice(CAPACITIES), **fields)
    batch = dice.randrange(2, 5)
    if kind == layout.KIND_MIXED:
        return shape(kind, batch, prompt=dice.choice(CAPACITIES), width=dice.randrange(1, 4), depth=2, **fields)
    width = 1 if kind == layout.KIND_DECODE else dice.randrange(1, 4)
    rows = dice.choice((0, dice.randrange(1, batch * width + 1))) if kind == layout.KIND_SPECULATIVE else 0
    return shape(kind, batch, rows, width=width, depth=width - 1, **fields)


def make_pair(dice, kind, follower, dyadic=False):
    prerequisite = shape(kind, dice.randrange(1, 5), duration_ns=dice.choice(DURATIONS))
    terminal = shape(layout.KIND_TERMINAL_SNAPSHOT, 2, duration_ns=3_000_000)
    world = make_world(dice, dice.randrange(2, 8), [prerequisite, following_shape(dice, follower), terminal], dyadic)
    world.decision["free_snapshot_rows"] = dice.randrange(2)
    for slot in range(len(world.slots)):
        set_stage(dice, world, slot, STAGES[kind])
    return ready(world)


def set_stage(dice, world, slot, stage):
    """Some residents stay decoders; the others wait for the prerequisite, for prefill or to be retired."""
    state = world.slots[slot]
    state["stage"] = dice.choice((layout.DECODE, stage, stage, layout.PREFILL, layout.TERMINAL))
    state["terminal_since_ns"] = 59_000_000_000 + dice.randrange(900_000_000)
    state["scored"] = dice.random() < 0.4
    state["cancelled"] = dice.random() < 0.1
    if state["stage"] == stage and stage != layout.SNAPSHOT:
        state["images_left"] = dice.choice((0, 0, 1, 2)) + (stage == layout.VISION)
    if state["stage"] == layout.SNAPSHOT:
        state["window"], state["window_images"] = dice.random() < 0.2, 1
    prompt = state["window"] or dice.random() < 0.6
    if state["stage"] == layout.PREFILL or (state["stage"] == stage and prompt):
        state["consumed"], state["emitted"], state["view_visible_ns"] = 0, 0, -1
        state["prompt_tokens"] = dice.choice((50, 100, 300))
        for index, capacity in enumerate(CAPACITIES):
            world.work[slot, index] = min(capacity, dice.choice((int(state["prompt_tokens"]), 60)))
        world.work[slot].sort()


class Plain:
    """The same world in plain words."""

    def __init__(self, world):
        self.world, self.shape, self.first = world, world.graphs[FOLLOWING], world.graphs[PREREQUISITE]
        self.known = self.first["duration_ns"] > 0 and self.shape["duration_ns"] > 0
        total_ns = int(self.first["duration_ns"]) + int(self.shape["duration_ns"])
        self.horizon = total_ns / 1e6 if self.known else 0.0
        self.first_ms = int(self.first["duration_ns"]) / 1e6 if self.known else 0.0
        self.stage = STAGES[int(self.first["kind"])]
        self.members = self.in_stage(self.stage)
        immediate = [slot for slot in self.members if self.chain(slot) == 0]
        whole = {slot for slot in immediate if self.state(slot)["consumed"] == self.state(slot)["prompt_tokens"]}
        self.new = [slot for slot in immediate if slot in whole]
        self.own_prompts = [slot for slot in immediate if slot not in whole]
        self.ready = self.in_stage(layout.DECODE)
        self.prompts = self.in_stage(layout.PREFILL)
        snapshot = self.first["kind"] == layout.KIND_SNAPSHOT
        self.terminals = self.in_stage(layout.TERMINAL) if snapshot else []

    def state(self, slot):
        return self.world.slots[slot]

    def in_stage(self, stage):
        slots = [i for i, s in enumerate(self.world.slots) if s["stage"] == stage and s["cancelled"] == 0]
        if stage == layout.SNAPSHOT and self.world.decision[0]["free_snapshot_rows"] == 0:
            slots = [slot for slot in slots if not self.state(slot)["window"]]
        return slots

    def chain(self, slot):
        state = self.state(slot)
        if state["stage"] == layout.SNAPSHOT:
            return int(state["window"]) * (1 + int(state["window_images"]))
        return int(state["images_left"]) - (state["stage"] == layout.VISION)

    def decode_value(self, slot):
        view = self.world.views[slot]
        rows = min(int(self.shape["lane_width"]), int(view["limit"]))
        if self.shape["ragged"]:
            rows = min(rows, max(1, int(self.shape["rows"]) // int(self.shape["batch"])))
        token = view["output_price"] * self.world.yields[slot, self.shape["estimator"], layout.YIELD_SCORE, rows]
        return float(token + view["delivery_price"] + view["age_weight"] * (view["age_ms"] + self.horizon))

    def prompt_value(self, slot):
        """0 or less: the lane cannot be the prompt."""
        view, tokens = self.world.views[slot], int(self.world.work[slot, self.shape["capacity_index"]])
        if tokens == 0 or self.state(slot)["scored"] != (self.shape["kind"] == layout.KIND_SCORED_PREFILL):
            return -1.0
        finishes = self.state(slot)["consumed"] + tokens == self.state(slot)["prompt_tokens"]
        return float(view["prompt_price"] * tokens + finishes * (view["output_price"] + view["delivery_price"]))

    def score(self, new, old, prompt, terminals):
        decision = self.world.decision[0]
        work = sum(map(self.decode_value, (*new, *old))) + (self.prompt_value(prompt) if prompt is not None else 0.0)
        for slot in terminals:
            view = self.world.views[slot]
            age = float(view["terminal_age_ms"]) + self.first_ms
            work += float(decision["terminal_value"]) + float(view["terminal_weight"]) * age
        if not self.known:
            return work
        saved = len(terminals) * decision["terminal_age_price"] * (self.horizon**2 - self.first_ms**2)
        cost = self.horizon / 2 * decision["wait_price"] - saved / (2 * self.horizon)
        return float(work / self.horizon - cost)

    def best(self, prompts, own, decoders):
        """The best score over every choice of cohorts, None without one. `own`: the prompt comes from the stage."""
        lanes = int(self.shape["batch"])
        if self.shape["ragged"]:
            lanes = min(lanes, int(self.shape["rows"]))
        scores = []
        for prompt in prompts or [None]:
            for new, old in itertools.product(subsets(self.new), subsets(self.ready)):
                if len(new) + (own and prompt is not None) == 0 or ((new or old) and not decoders):
                    continue
                if len(new) + len(old) + (prompt is not None) > lanes:
                    continue
                left = int(self.first["batch"]) - len(new) - own
                scores += [self.score(new, old, prompt, done) for done in subsets(self.terminals) if len(done) <= left]
        return max(scores, default=None)


def subsets(slots):
    return list(itertools.chain.from_iterable(itertools.combinations(slots, n) for n in range(len(slots) + 1)))


def found_candidates(world):
    append_prerequisites(world, collect_lanes(world), PREREQUISITE)
    return [world.candidates[c] for c in range(world.decision[0]["found"])]


def check_cohorts(world, plain_world, row):
    """The lanes of a pair are consistent: no slot twice, capacities respected, what is free is filled."""
    first = [int(slot) for slot in world.pool[0, row["first"] : row["first"] + row["lanes"]]]
    after = following_slots(world, row)
    assert len(set(first)) == len(first)
    assert len(set(after)) == len(after)
    assert row["served"] == len({*first, *after})
    assert len(first) == min(world.graphs[PREREQUISITE]["batch"], len(plain_world.members) + len(plain_world.terminals))
    assert set(first) <= {*plain_world.members, *plain_world.terminals}
    assert set(after) <= {*plain_world.new, *plain_world.ready, *plain_world.own_prompts, *plain_world.prompts}


def following_slots(world, row):
    first = int(row["following_first"])
    return [int(slot) for slot in world.pool[0, first : first + int(row["following_lanes"])]]


def expected_cases(plain_world, kind):
    """(best score, whether its prompt is one of the stage) of each case that exists, in order."""
    own = [slot for slot in plain_world.own_prompts if plain_world.prompt_value(slot) >= 0.0]
    old = [slot for slot in plain_world.prompts if plain_world.prompt_value(slot) >= 0.0]
    if kind not in PROMPT_KINDS:
        return [plain_world.best([], False, True)]
    if kind != layout.KIND_MIXED:
        return [plain_world.best(own, True, False) if own else None]
    return [
        plain_world.best([], False, True),
        plain_world.best(old, False, True) if old else None,
        plain_world.best(own, True, True) if own else None,
    ]


@pytest.mark.parametrize("follower", [*PROMPT_KINDS, layout.KIND_DECODE, layout.KIND_SPECULATIVE])
@pytest.mark.parametrize("kind", list(STAGES))
def test_every_pair_has_the_best_cohorts_of_all(kind, follower):
    dice = random.Random(f"pair {kind} {follower}")
    found = 0
    for _ in range(90):
        world = make_pair(dice, kind, follower)
        plain_world = Plain(world)
        world.graphs[FOLLOWING]["below"] = -1
        pairs = [row for row in found_candidates(world) if row["following"] == FOLLOWING]
        expected = [score for score in expected_cases(plain_world, follower) if score is not None]
        assert [float(row["score"]) for row in pairs] == pytest.approx(expected, rel=1e-12)
        found += len(pairs)
        for row in pairs:
            assert row["known"] == plain_world.known
            check_cohorts(world, plain_world, row)
    assert found >= 5


def test_equal_pairs_serve_more_requests_and_then_the_least_recently_used():
    """All values are 0: every k scores alike, so that the total order alone decides."""
    dice = random.Random("ties")
    for _ in range(40):
        world = make_pair(dice, layout.KIND_SNAPSHOT, layout.KIND_DECODE)
        for name in ("output_price", "delivery_price", "age_weight", "terminal_weight"):
            world.views[name] = 0.0
        for name in ("terminal_value", "terminal_age_price", "wait_price"):
            world.decision[name] = 0.0
        plain_world = Plain(world)
        pairs = [row for row in found_candidates(world) if row["following"] == FOLLOWING]
        for row in pairs:
            assert row["score"] == 0.0
            assert row["served"] == max(served_by(plain_world, new) for new in range(1, len(plain_world.new) + 1))


def served_by(plain_world, new):
    """Requests served with `new` newly ready decoders, 0 where they do not fit."""
    batch, lanes = int(plain_world.first["batch"]), int(plain_world.shape["batch"])
    if new > min(batch, lanes):
        return 0
    others = len(plain_world.members) - new + len(plain_world.terminals)
    return new + min(lanes - new, len(plain_world.ready)) + min(batch - new, others)


def test_a_lane_that_a_smaller_capacity_serves_as_well_comes_last_and_bars_the_pair():
    world = make_pair(random.Random("barred"), layout.KIND_INIT, layout.KIND_PREFILL)
    for slot, work in enumerate(world.work[:2]):
        state = world.slots[slot]
        state["stage"], state["images_left"], state["scored"], state["cancelled"] = layout.INIT, 0, 0, 0
        state["consumed"], state["prompt_tokens"] = 0, 300
        work[:] = (64, 128, 256) if slot == 1 else (64, 128, 128)
    world.slots["cancelled"][2:] = 1
    following = world.graphs[FOLLOWING]
    following["prompt"], following["capacity_index"], following["below"], following["duration_ns"] = 256, 2, 1, 0
    ready(world)
    world.views["prompt_price"][:2] = (9.0, 1.0)
    (row,) = [row for row in found_candidates(world) if row["following"] == FOLLOWING]
    assert (following_slots(world, row), row["barred"]) == ([1], layout.NOT_BARRED)
    world.slots["cancelled"][1] = 1
    (row,) = [row for row in found_candidates(ready(world)) if row["following"] == FOLLOWING]
    assert (following_slots(world, row), row["barred"]) == ([0], layout.UNMEASURED)


def test_snapshot_alone_takes_the_best_terminal_rows_and_then_lanes_of_its_stage():
    dice = random.Random("alone")
    found = 0
    for _ in range(60):
        world = make_pair(dice, layout.KIND_SNAPSHOT, layout.KIND_DECODE)
        plain_world = Plain(world)
        first_ms = int(world.graphs[PREREQUISITE]["duration_ns"]) / 1e6
        value = {slot: terminal_value(world, slot, first_ms) for slot in plain_world.terminals}
        by_value = sorted(value, key=lambda slot: (-value[slot], tick(world, slot), slot))
        others = sorted(plain_world.members, key=lambda slot: (tick(world, slot), slot))
        batch = int(world.graphs[PREREQUISITE]["batch"])
        alone = [row for row in found_candidates(world) if row["following"] < 0 and row["terminal_relief"] > 0.0]
        assert len(alone) == (1 if by_value else 0)
        for row in alone:
            lanes = [*by_value, *others][:batch]
            found += 1
            assert [int(slot) for slot in world.pool[0, row["first"] :][: row["lanes"]]] == lanes
            total = sum(value.get(slot, 0.0) for slot in lanes)
            rate = total / first_ms - first_ms / 2 * float(world.decision[0]["wait_price"]) if first_ms else total
            assert float(row["score"]) == pytest.approx(rate, rel=1e-12)
    assert found >= 20


def terminal_value(world, slot, horizon_ms):
    view = world.views[slot]
    age = float(view["terminal_age_ms"]) + horizon_ms
    return float(world.decision[0]["terminal_value"]) + float(view["terminal_weight"]) * age


def tick(world, slot):
    return int(world.slots[slot]["last_served_tick"])
