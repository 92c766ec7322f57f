"""Service accounting and projection kernels (S9, S10) against slow twins."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_arrays import KernelArrays, generation_graph, same_bits

from scheduler import layout
from scheduler.policy import NEWCOMER_MEMORIES

TAU = 100.0
SLOTS = 3


def updated(memory, interval_ms, served, rate):
    """The entropy-dual update; None stands for a missing memory or rate."""
    if memory is None or rate is None:
        return memory
    if served == 0:
        new = memory + interval_ms / rate / TAU
    else:
        k = served / rate / TAU
        new = memory * math.exp(-k) + (interval_ms / served) * -math.expm1(-k)
    return min(max(new, 1e-12), 1e12)


def delivered(memory, interval_ms, rate):
    return interval_ms if memory is None else updated(memory, interval_ms, 1, rate)


class Twin:
    """Memories and visible times of the slots, with frames as dicts."""

    def __init__(self, token, delivery):
        self.token, self.delivery = list(token), list(delivery)
        self.visible = [-1] * SLOTS
        self.queue, self.done = [], None

    def complete(self, served, emitted, interval_ns, now_ns):
        frame = self.queue.pop(0)
        self.done = {"rates": frame["rates"], "before": list(self.delivery), "ms": interval_ns / 1e6}
        self.done.update(now=now_ns, waiting={s for s, n in emitted.items() if n}, emitted=emitted, credited=set())
        for s in range(SLOTS) if interval_ns else ():
            token_rate, delivery_rate = frame["rates"]
            self.token[s] = updated(self.token[s], interval_ns / 1e6, served.get(s, 0), token_rate)
            self.delivery[s] = updated(self.delivery[s], interval_ns / 1e6, 0, delivery_rate)

    def publish(self, slot, time):
        if not self.done["emitted"].get(slot):
            return
        self.visible[slot] = time
        self.done["waiting"].discard(slot)
        if slot not in self.done["credited"] and self.done["ms"]:
            self.delivery[slot] = delivered(self.done["before"][slot], self.done["ms"], self.done["rates"][1])
        self.done["credited"].add(slot)

    def views(self):
        token, delivery, visible = list(self.token), list(self.delivery), list(self.visible)
        for s in self.done["waiting"] if self.done else ():
            visible[s] = self.done["now"]
            if self.done["ms"]:
                delivery[s] = delivered(self.done["before"][s], self.done["ms"], self.done["rates"][1])
        for frame in self.queue:
            ms, (token_rate, delivery_rate) = frame["cost_ns"] / 1e6, frame["rates"]
            for s in range(SLOTS):
                expected = frame["expected"].get(s, 0.0)
                if expected:
                    visible[s] = frame["end_ns"]
                if ms:
                    token[s] = updated(token[s], ms, expected, token_rate)
                    change = delivered if expected else lambda m, d, r: updated(m, d, 0, r)
                    delivery[s] = change(delivery[s], ms, delivery_rate)
        return token, delivery, visible


def with_nan(values):
    return [math.nan if v is None else v for v in values]


def check(arrays, twin):
    slots = arrays.slots
    arrays.publish()
    token, delivery, visible = twin.views()
    assert same_bits(slots["token_memory"].copy(), with_nan(twin.token))
    assert same_bits(slots["delivery_memory"].copy(), with_nan(twin.delivery))
    assert slots["last_visible_ns"].tolist() == twin.visible
    assert same_bits(slots["view_token_memory"].copy(), with_nan(token))
    assert same_bits(slots["view_delivery_memory"].copy(), with_nan(delivery))
    assert slots["view_visible_ns"].tolist() == visible


def commit(arrays, twin, slots, expected, cost_ns, end_ns, duration_ns):
    """Commits a round and checks the normalizers that it froze: the yield of the widest lane, and one delivery."""
    lanes = [{"slot": s, "ceiling": 4, "expected_tokens": expected} for s in slots]
    frame = arrays.commit(lanes, cost_ns=cost_ns, end_ns=end_ns)
    ms = duration_ns / 1e6
    rates = (1.875 / ms, 1.0 / ms) if duration_ns else (None, None)
    for s in range(SLOTS):
        found = arrays.participants[frame, s]
        assert same_bits([found["token_rate"], found["delivery_rate"]], with_nan(rates))
    twin.queue.append(
        {"rates": rates, "cost_ns": cost_ns, "end_ns": end_ns, "expected": dict.fromkeys(slots, expected)}
    )


def start(duration_ns, token, delivery):
    arrays = KernelArrays(SLOTS, 3, [generation_graph(duration_ns)], adaptation_ms=TAU)
    for s in range(SLOTS):
        arrays.admit(s)
        arrays.slots[s]["token_memory"] = math.nan if token[s] is None else token[s]
        arrays.slots[s]["delivery_memory"] = math.nan if delivery[s] is None else delivery[s]
    return arrays


memories = st.lists(st.floats(1e-6, 1e6), min_size=SLOTS, max_size=SLOTS)
optional_memories = st.lists(st.none() | st.floats(1e-6, 1e6), min_size=SLOTS, max_size=SLOTS)
cohort = st.sets(st.integers(0, SLOTS - 1), min_size=1).map(sorted)
interval = st.integers(1, 3_600_000_000_000)
frame = st.fixed_dictionaries(
    {
        "slots": cohort,
        "expected": st.sampled_from([1.0, 1.5, 3.75]),
        "cost_ns": st.integers(0, 50_000_000),
        "interval_ns": st.just(0) | interval,
        "emitted": st.integers(1, 4),
        "published": st.lists(st.integers(0, SLOTS - 1), max_size=4),
    }
)


@given(
    frames=st.lists(frame, min_size=1, max_size=5),
    token=memories,
    delivery=optional_memories,
    duration_ns=st.sampled_from([0, 1, 8_000_000, 3_600_000_000_000]),
)
def test_charges_publications_and_projections_are_the_plain_twins_bit_for_bit(frames, token, delivery, duration_ns):
    arrays, twin = start(duration_ns, token, delivery), Twin(token, delivery)
    check(arrays, twin)
    for now, (this, following) in enumerate(zip(frames, [*frames[1:], None], strict=True), start=1):
        for each in (this,) if now == 1 else ():
            commit(arrays, twin, each["slots"], each["expected"], each["cost_ns"], 7, duration_ns)
        if following is not None:
            commit(arrays, twin, following["slots"], following["expected"], following["cost_ns"], 9, duration_ns)
        check(arrays, twin)
        arrays.complete([(this["emitted"], 0, 0, layout.GOES_ON) for _ in this["slots"]], now, this["interval_ns"])
        emitted = dict.fromkeys(this["slots"], this["emitted"])
        twin.complete(emitted, emitted, this["interval_ns"], now)
        check(arrays, twin)
        arrays.publish([(s, now + 100) for s in this["published"]])
        for s in this["published"]:
            twin.publish(s, now + 100)
        check(arrays, twin)


def test_only_the_first_publication_of_a_fence_credits_a_delivery():
    arrays = start(8_000_000, [1.0] * SLOTS, [2.0] * SLOTS)
    arrays.commit([{"slot": 0, "ceiling": 4, "expected_tokens": 1.0}], cost_ns=1)
    arrays.complete([(2, 0, 0, layout.GOES_ON)], now_ns=5, interval_ns=8_000_000)
    arrays.publish([(0, 6)])
    credited = float(arrays.slots[0]["delivery_memory"])
    assert credited == updated(2.0, 8.0, 1, 1 / 8.0)
    arrays.publish([(0, 9)])
    assert arrays.slots[0]["delivery_memory"] == credited
    assert arrays.slots[0]["last_visible_ns"] == 9


def test_a_cancelled_or_replaced_participant_is_not_charged():
    arrays = start(8_000_000, [1.0] * SLOTS, [2.0] * SLOTS)
    arrays.commit([{"slot": 0, "ceiling": 4, "expected_tokens": 1.0}], cost_ns=1_000_000, end_ns=3)
    arrays.slots[1]["cancelled"] = 1
    arrays.slots[2]["generation"] = 2
    arrays.publish()
    assert arrays.slots["view_token_memory"][1:].tolist() == [1.0, 1.0]
    arrays.complete([(1, 0, 0, layout.GOES_ON)], interval_ns=8_000_000)
    assert arrays.slots["token_memory"][1:].tolist() == [1.0, 1.0]
    assert arrays.slots["token_memory"][0] != 1.0


def test_waiting_and_terminal_residents_take_no_part():
    arrays = start(8_000_000, [1.0] * SLOTS, [2.0] * SLOTS)
    arrays.slots[1]["stage"], arrays.slots[2]["stage"] = layout.WAITING, layout.TERMINAL
    frame_index = arrays.commit([{"slot": 0, "ceiling": 4, "expected_tokens": 1.0}])
    assert arrays.participants[frame_index]["generation"].tolist() == [1, 0, 0]


def test_counters_follow_a_lane_from_commit_to_completion():
    arrays = start(8_000_000, [1.0] * SLOTS, [2.0] * SLOTS)
    arrays.slots[0]["output_limit"] = 3
    arrays.commit([{"slot": s, "ceiling": 4, "expected_tokens": 1.0} for s in (0, 1)], tick=9)
    assert arrays.slots["pending"].tolist() == [4, 4, 0]
    assert arrays.slots["last_served_tick"].tolist() == [9, 9, 0]
    assert arrays.complete([(3, 0, 0, layout.GOES_ON), (2, 0, 0, layout.GOES_ON)], earned_ms=0.5) == 1
    assert arrays.slots["emitted"].tolist() == [3, 2, 0]
    assert arrays.slots["pending"].tolist() == [0, 0, 0]
    assert arrays.slots["in_flight"].tolist() == [0, 0, 0]
    assert arrays.slots["epoch"].tolist() == [1, 1, 0]
    assert arrays.slots["decode_earned_ms"].tolist() == [0.5, 0.5, 0.0]


def prompt_graphs():
    """Prefill of 64 (index 0) in 2 ms and of 256 (index 1) in 4 ms, scored of 64 in 8 ms, mixed of 64 in 1 ms."""
    rows = [(layout.KIND_PREFILL, 0, 2), (layout.KIND_PREFILL, 1, 4), (layout.KIND_SCORED_PREFILL, 0, 8)]
    graphs = [{"kind": k, "capacity_index": c, "usable": 1, "duration_ns": t * 1_000_000} for k, c, t in rows]
    mixed = generation_graph(1_000_000, width=1, kind=layout.KIND_MIXED)
    return [*graphs, mixed | {"capacity_index": 0}]


@pytest.mark.parametrize(("scored", "mixed", "rate"), [(0, 0, 256 / 4), (0, 1, 64.0), (1, 1, 64 / 8)])
def test_the_prompts_normalizer_is_the_fastest_graph_that_may_run_it(scored, mixed, rate):
    graphs = prompt_graphs()
    graphs[3]["usable"] = mixed
    arrays = KernelArrays(1, 3, graphs, capacities=2)
    arrays.work[0] = [64, 256]
    arrays.admit(0, stage=layout.PREFILL, prompt=300)
    arrays.slots[0]["scored"] = scored
    frame_index = arrays.commit([])
    assert arrays.participants[frame_index, 0]["token_rate"] == rate
    assert math.isnan(arrays.participants[frame_index, 0]["delivery_rate"])


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("deprived", 3 * 8.0 / 1.875), ("decode", 8.0 / 1.875), ("phase", 8.0 / 1.875), ("fair_share", 3 * 8.0 / 1.875)],
)
def test_a_newcomers_memory_follows_its_rule(rule, expected):
    arrays = KernelArrays(3, 3, [generation_graph(8_000_000)], newcomer=NEWCOMER_MEMORIES.index(rule))
    for s in (0, 1):
        arrays.admit(s)
    arrays.slots["last_served_tick"][:2] = 1
    arrays.slots["token_memory"][:2] = [1.0, 1e6]
    arrays.admit(2)
    assert arrays.slots[2]["token_memory"] == pytest.approx(expected, rel=1e-12)


def test_a_missing_memory_starts_at_the_first_completion_that_finds_a_measured_graph():
    arrays = KernelArrays(2, 3, [generation_graph(0)])
    arrays.admit(0)
    assert math.isnan(arrays.slots[0]["token_memory"])
    arrays.commit([{"slot": 0, "ceiling": 4, "expected_tokens": 1.0}])
    arrays.graphs[0]["duration_ns"] = 8_000_000
    arrays.complete([(1, 0, 0, layout.GOES_ON)], interval_ns=8_000_000)
    assert arrays.slots[0]["token_memory"] == pytest.approx(8.0 / 1.875, rel=1e-12)
