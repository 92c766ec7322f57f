"""Absurd policies, borders of every count, images at odd places, and catalogs that lack something."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numba
import numpy as np
import pytest

from scheduler import Catalog, CompletionRecord, ExecutionTiming, GraphKind, GraphShape, PolicyConfig, RequestSpec
from scheduler import RequestScheduler as Scheduler
from scheduler.errors import RequestTooLong, SlotsFull, Unservable
from scheduler.policy import COEFFICIENTS
from scheduler.records import ImageSpan
from tests.scheduler.conftest import Harness, decode, prefill
from tests.scheduler.hostile import DEVICE, MS, NARROW, ROUND, STATE, commit, decoding, refused

MOST = 2**31 - 1
NUMERIC = [c.name for c in COEFFICIENTS if not c.choices and not c.integer]
MAY_BE_ZERO = [name for name in NUMERIC if not next(c for c in COEFFICIENTS if c.name == name).minimum_excluded]
LARGEST = 1.7e308
ABSURD = {
    "all 1e300": dict.fromkeys(NUMERIC, 1e300),
    "all the largest": dict.fromkeys(NUMERIC, LARGEST),
    "all the smallest": dict.fromkeys(NUMERIC, 5e-324),
    "all zero": dict.fromkeys(MAY_BE_ZERO, 0.0),
    "all zero, tiny alpha": dict.fromkeys(MAY_BE_ZERO, 0.0) | {"adaptive_verification_alpha": 5e-324},
    "prices only": dict.fromkeys(MAY_BE_ZERO, 0.0) | {"decode_age_price": LARGEST, "terminal_age_price": LARGEST},
    "fairness only": dict.fromkeys(MAY_BE_ZERO, 0.0) | {"token_fairness": LARGEST, "delivery_fairness": 5e-324},
    "huge alpha": {"adaptive_verification_alpha": LARGEST},
    "tiny alpha": {"adaptive_verification_alpha": 5e-324},
    "at once adapted": {"adaptation_ms": 5e-324},
    "never adapted": {"adaptation_ms": LARGEST},
    "stale after 1 ns": {"estimate_ttl_ns": 1},
    "never stale": {"estimate_ttl_ns": 2**63 - 1},
}
CATALOGS = {
    "decode": (*STATE, prefill(64), prefill(256), decode(1), decode(4)),
    "rounds": (prefill(64), ROUND, DEVICE, NARROW, STATE[3]),
    "mixed": (*(GraphShape(GraphKind.MIXED, 2, prefill_capacity=c) for c in (64, 128)), decode(2), prefill(64)),
}


def finite(plan):
    """Every number of the plan that a recorder would write is finite."""
    numbers = [plan.score, plan.log_scale, *(n for lane in plan.lanes for n in values_of(lane))]
    for scored in (plan, *plan.alternatives):
        parts = (getattr(scored.parts, name) for name in ("token_value", "delivery_value", "age_relief"))
        numbers += [scored.score, *parts, scored.parts.terminal_relief, scored.parts.wait_cost]
    return all(map(math.isfinite, numbers)) and (plan.margin is None or not math.isnan(plan.margin))


def values_of(lane):
    return lane.token_price, lane.delivery_price, lane.age_ms, lane.sigma_ms, lane.value, lane.terminal_value


def run_to_the_end(h, limit=600):
    """Completes graph after graph, one draft accepted where there was one; every plan is finite."""
    s, kinds = h.scheduler, set()
    for _ in range(limit):
        plan = s.plan()
        if plan is None:
            return kinds
        assert finite(plan)
        assert all(math.isfinite(score) for *_, score, _, _ in s.all_candidates())
        kinds.add(plan.shape.kind)
        h.fence += 1
        s.commit(plan, h.fence)
        h.now_ns += h.durations(plan.shape)
        s.advance_to(h.now_ns)
        timing = ExecutionTiming((h.durations(plan.shape),), h.durations(plan.shape))
        confidence = np.full((2, s.request_slots, s.draft_capacity), 0.25, np.float32)
        for token in s.complete_packed_round(h.fence, [lane_did(lane) for lane in plan.lanes], timing, confidence):
            s.published_output(token.handle, h.fence)
    raise AssertionError(f"still running after {limit} graphs")


def lane_did(lane):
    emitted = lane.ceiling if lane.prompt_tokens else min(lane.ceiling, 2)
    accepted = 0 if lane.prompt_tokens else max(0, emitted - 1)
    return CompletionRecord(lane.handle, lane.prompt_tokens, (1,) * emitted, accepted)


def duration(shape):
    return (2 + shape.physical_rows // 64 + shape.batch_capacity) * MS


@pytest.mark.parametrize("catalog", CATALOGS)
@pytest.mark.parametrize("policy", ABSURD)
def test_under_an_absurd_policy_every_number_is_finite_and_every_request_ends(policy, catalog):
    h = Harness(PolicyConfig(**ABSURD[policy]), CATALOGS[catalog], slots=8, durations=duration)
    h.scheduler.set_resources(1 << 20, 2)
    for i, (prompt, output) in enumerate(((64, 9), (200, 3), (1, 1), (65, 12))):
        boundaries = (40,) if prompt > 64 else ()
        h.scheduler.admit(RequestSpec(f"r{i}", prompt, output, 1000, message_boundaries=boundaries))
    kinds = run_to_the_end(h)
    assert h.scheduler.resident_count == 0
    assert kinds & {GraphKind.DECODE, GraphKind.SPECULATIVE}


def test_going_from_one_absurd_policy_to_the_next_loses_nobody():
    h = Harness(None, CATALOGS["rounds"], slots=8, measured=True, durations=duration)
    for i in range(4):
        h.scheduler.admit(RequestSpec(f"r{i}", 64, 40, 1000))
    for changes in ABSURD.values():
        h.scheduler.configure_policy(dataclasses.replace(PolicyConfig(), **changes))
        plan = h.scheduler.plan()
        assert finite(plan)
        memories = h.scheduler._state.slots["token_memory"][:4]
        assert all(1e-12 <= memory <= 1e12 for memory in memories)
        h.fence += 1
        h.scheduler.commit(plan, h.fence)
        confidence = np.zeros((2, 8, 3), np.float32)
        timing = ExecutionTiming((MS,), MS)
        h.scheduler.complete_packed_round(h.fence, [lane_did(lane) for lane in plan.lanes], timing, confidence)
    assert h.scheduler.resident_count == 4


def test_estimates_that_are_stale_after_a_nanosecond_are_used_and_never_queued():
    h = decoding(policy=PolicyConfig(estimate_ttl_ns=1))
    h.now_ns += 2
    h.scheduler.advance_to(h.now_ns)
    plan = commit(h)
    assert (plan.cost_state.value, plan.reason.value) == ("stale", "ordinary")
    assert h.scheduler.plan() is None, "a stale graph needs an empty window"
    h.complete(plan)
    assert h.step() is not None


# Slots.


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="4,096 slots in plain Python take minutes")
def test_4096_requests_are_served_at_once_and_one_more_is_refused():
    h = Harness(None, (prefill(64), decode(4096)), slots=4096, measured=True, durations=lambda _: MS)
    for i in range(4096):
        h.scheduler.admit(RequestSpec(f"r{i}", 64, 2, 100))
    with pytest.raises(SlotsFull, match="4096"):
        h.admit("more")
    assert h.step().shape == prefill(64)
    assert h.step().lanes[0].request_id in {f"r{i}" for i in range(4096)}
    for i in range(4096):
        if h.scheduler.resident_count > 4000:
            h.scheduler.cancel(h.scheduler.handle_of(f"r{4095 - i}"))
    twin = Scheduler.restore(h.scheduler.checkpoint(), Catalog((prefill(64), decode(4096))))
    assert twin.plan() == h.scheduler.plan()
    assert twin.resident_count == 4000


# Counts at the border.


def test_the_largest_prompt_leaves_room_for_one_token():
    h = Harness(None, (prefill(64), decode(1)), measured=True)
    s = h.scheduler
    refused(s, RequestTooLong, s.admit, RequestSpec("a", MOST, 1, MOST), says="no room for output")
    s.set_resources(2**27, 0)
    s.admit(RequestSpec("a", MOST - 1, MOST, MOST, cached_tokens=MOST - 2, message_boundaries=(1, MOST - 1)))
    plan = h.step()
    assert plan.lanes[0].prompt_tokens == 1
    assert [token.finished.value for token in h.tokens["a"]] == ["length"]
    assert s.resident_count == 0


def test_the_longest_prompt_is_prefilled_from_its_start_and_cut_like_any_other():
    h = Harness(None, (*STATE, prefill(64), decode(1)), slots=4, measured=True)
    h.scheduler.set_resources(2**40 - 1, 3)
    h.scheduler.admit(
        RequestSpec(
            "a", MOST - 1, 1, MOST, message_boundaries=(1, 2**30, MOST - 2), atomic_spans=((MOST - 65, MOST - 1),)
        )
    )
    seen = [h.step() for _ in range(4)]
    assert [plan.shape.kind.value for plan in seen] == ["init", "prefill", "snapshot", "prefill"]
    assert [plan.lanes[0].prompt_tokens for plan in seen] == [0, 1, 0, 64], "the first message is captured"
    assert all(map(finite, seen))


def test_the_last_page_of_the_longest_prompt_is_waited_for():
    h = Harness(None, (prefill(64), decode(1)), measured=True)
    h.scheduler.set_resources(0, 0)
    h.scheduler.admit(RequestSpec("a", MOST - 1, 1, MOST, cached_tokens=MOST - 16))
    assert h.scheduler.plan() is None, "2**27 - 1 pages are held, one is missing"
    assert [candidate[6] for candidate in h.scheduler.all_candidates()] == ["pages"]
    h.scheduler.set_resources(1, 0)
    assert h.step().lanes[0].prompt_tokens == 15


def test_the_longest_answer_is_bounded_by_the_context():
    h = Harness(None, (prefill(64), decode(1)), measured=True)
    h.scheduler.admit(RequestSpec("a", 1, MOST, MOST))
    h.step()
    assert h.step() is not None
    assert h.scheduler._state.slots[0]["output_limit"] == MOST - 1


# Images and spans at odd places.

ROWS = 4
ODD = {
    "an image is the whole prompt": {"images": (ImageSpan(0, 64, ROWS),), "prompt": 64},
    "an image is the last token": {"images": (ImageSpan(99, 100),)},
    "an image is one token at the start": {"images": (ImageSpan(0, 1),)},
    "images touch": {"images": (ImageSpan(0, 9), ImageSpan(9, 10), ImageSpan(10, 64))},
    "every image is a window": {"images": tuple(ImageSpan(i, i + 1, ROWS) for i in range(0, 60, 15))},
    "a window begins at the last token": {"images": (ImageSpan(0, 1, ROWS), ImageSpan(99, 100, ROWS))},
    "the cached prefix ends in an image": {"images": (ImageSpan(5, 40), ImageSpan(50, 60, ROWS)), "cached": 20},
    "the cached prefix ends before an image": {"images": (ImageSpan(5, 40),), "cached": 5},
    "the cached prefix ends with an image": {"images": (ImageSpan(5, 40),), "cached": 40},
    "all images are cached": {"images": (ImageSpan(0, 5), ImageSpan(6, 9)), "cached": 99},
    "a span is as long as the largest graph": {"atomic_spans": ((0, 64), (64, 100))},
    "a span overlaps an image": {"images": (ImageSpan(30, 60),), "atomic_spans": ((20, 40), (50, 70))},
    "a span ends where a window begins": {
        "images": (ImageSpan(0, 9, ROWS), ImageSpan(40, 50, ROWS)),
        "atomic_spans": ((20, 40),),
    },
    "messages end at, before and in an image": {
        "images": (ImageSpan(10, 30), ImageSpan(50, 60, ROWS)),
        "message_boundaries": (10, 20, 30, 49, 50, 51, 60),
    },
    "messages end everywhere": {"message_boundaries": tuple(range(1, 101))},
    "spans are everywhere": {"atomic_spans": tuple((i, i + 1) for i in range(100))},
}


@pytest.mark.parametrize("place", ODD)
def test_images_and_spans_at_odd_places_are_prefilled_whole(place):
    given = dict(ODD[place])
    prompt, cached = given.pop("prompt", 100), given.pop("cached", 0)
    h = odd_world()
    h.scheduler.admit(RequestSpec("a", prompt, 2, 1000, cached_tokens=cached, **given))
    done, served, ends = cached, 0, {cached}
    while (plan := h.step()) is not None:
        done += plan.lanes[0].prompt_tokens
        ends.add(done)
        served += plan.shape.kind is GraphKind.VISION
    assert done == prompt
    assert len(h.tokens["a"]) == 2
    images = given.get("images", ())
    assert served == sum(image.end_token > cached for image in images), "each image is encoded once"
    blocks = [*given.get("atomic_spans", ()), *((i.first_token, i.end_token) for i in images)]
    inside = {end for end, (first, last) in itertools.product(ends, blocks) if first < end < last}
    assert inside <= {cached}


def odd_world():
    h = Harness(None, (*STATE, prefill(16), prefill(64), decode(1)), slots=2)
    h.scheduler = Scheduler(
        Catalog((*STATE, prefill(16), prefill(64), decode(1))), PolicyConfig(), 2, 1e9, image_feature_rows=ROWS
    )
    h.scheduler.advance_to(h.now_ns)
    h.scheduler.set_resources(1 << 20, 2)
    return h


@pytest.mark.parametrize(
    "given",
    [
        {"images": (ImageSpan(0, 9, ROWS + 1),)},
        {"images": (ImageSpan(0, 9, MOST),)},
        {"images": (ImageSpan(0, 65),)},
        {"atomic_spans": ((0, 100),)},
        {"atomic_spans": ((0, 40), (40, 80)), "images": (ImageSpan(30, 50),)},
        {"images": (ImageSpan(0, 9, ROWS), ImageSpan(40, 50, ROWS)), "atomic_spans": ((39, 41),)},
        {"images": (ImageSpan(0, 9, ROWS), ImageSpan(40, 50, ROWS)), "atomic_spans": ((30, 60),)},
    ],
)
def test_images_and_spans_that_no_graph_can_hold_change_nothing(given):
    h = odd_world()
    refused(h.scheduler, Unservable, h.scheduler.admit, RequestSpec("a", 100, 2, 1000, **given))


def test_a_request_of_16383_messages_is_cut_as_far_as_its_allowance_goes():
    """0.05 of 16,384 chunks of 1 ms pays for 8,191 copies of 0.1 ms beside the anchor's (819.1 of 819.2 ms)."""
    shapes = (STATE[2], prefill(64), decode(1))
    h = Harness(None, shapes, measured=True, durations=lambda shape: MS if shape.prefill_capacity else MS // 10)
    h.scheduler.set_resources(1 << 30, 1)
    boundaries = tuple(range(64, 1 << 20, 64))
    handle = h.scheduler.admit(RequestSpec("a", 1 << 20, 1, 1 << 21, message_boundaries=boundaries))
    cuts = h.scheduler._state.tenants[handle.slot].prompt
    assert (cuts.anchor, cuts.extras) == (boundaries[-1], boundaries[-8192:-1])


# Catalogs that lack something.


@pytest.mark.parametrize(
    "shapes",
    [STATE[:1], STATE, (decode(1),), (NARROW, ROUND), (DEVICE,), (GraphShape(GraphKind.VISION, 4096),)],
)
def test_a_catalog_without_prefill_loads_and_serves_nobody(shapes):
    scheduler = Scheduler(Catalog(shapes), PolicyConfig(), 2)
    for scored in (False, True):
        refused(scheduler, Unservable, scheduler.admit, RequestSpec("a", 1, 1, 2, scored=scored), says="no .*prefill")
    assert scheduler.plan() is None
    assert scheduler.preemption_victim() is None
    assert scheduler.all_candidates() == ()


def test_a_catalog_without_decode_gives_single_tokens_only():
    scheduler = Scheduler(Catalog((prefill(64), *STATE[:3])), PolicyConfig(), 2)
    refused(scheduler, Unservable, scheduler.admit, RequestSpec("a", 64, 2, 99), says="no generation graph")
    scheduler.admit(RequestSpec("a", 98, 5, 99))
    assert scheduler.plan() is not None


def test_a_catalog_of_the_largest_shapes_is_planned():
    shapes = (prefill(1 << 20), GraphShape(GraphKind.SPECULATIVE, 4096, 63, 64, speculation_enabled=True), NARROW)
    scheduler = Scheduler(Catalog(shapes), PolicyConfig(), 2)
    for shape in shapes:
        scheduler.catalog.observe(shape, 3_600_000_000_000, 0)
    scheduler.admit(RequestSpec("a", 1 << 20, 100, MOST))
    plan = scheduler.plan()
    assert plan.lanes[0].prompt_tokens == 1 << 20
    assert math.isfinite(plan.score)
