"""Completions that cannot be: of another frame, malformed, or with sidecars that are no probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scheduler import CompletionRecord, ExecutionTiming, FinishReason, RequestHandle
from scheduler.errors import InvalidCompletion, InvalidFence
from tests.scheduler.conftest import decode
from tests.scheduler.hostile import (
    DEVICE,
    GOOD,
    MS,
    NARROW,
    NO_COUNTS,
    ROUND,
    answers,
    commit,
    decoding,
    flying,
    record,
    refused,
)

HOUR_NS = 3_600_000_000_000
PROBABILITIES = (0.0, 1.0, 0.5, -0.0, 5e-324)


def finishes(h, plan, **how):
    """The same frame completes once it is answered properly."""
    assert len(h.scheduler.complete(h.fence, answers(plan), GOOD, **how)) == len(plan.lanes)


def test_completions_out_of_order_twice_or_of_no_frame_change_nothing():
    h, first = flying()
    second = commit(h)
    s = h.scheduler
    for fence in (h.fence, h.fence + 1, h.fence - 2, 0, *NO_COUNTS):
        refused(s, InvalidFence, s.complete, fence, answers(second), GOOD)
    s.complete(h.fence - 1, answers(first), GOOD)
    refused(s, InvalidFence, s.complete, h.fence - 1, answers(first), GOOD)
    s.complete(h.fence, answers(second), GOOD)
    for fence in (h.fence, h.fence - 1, h.fence + 1):
        refused(s, InvalidFence, s.complete, fence, answers(second), GOOD)


@pytest.mark.parametrize("complete", ["complete_packed_round", "complete_with_survival"])
def test_sidecars_do_not_help_a_wrong_fence(complete):
    h, plan = flying(ROUND, NARROW)
    refused(h.scheduler, InvalidFence, getattr(h.scheduler, complete), h.fence + 1, answers(plan), GOOD, None)


@pytest.mark.parametrize(
    "records", [None, 5, "ab", b"ab", {}, {"a": 1, "b": 2}, set(), object(), [None, None], ["a", "b"], [(), ()]]
)
def test_what_is_no_list_of_records_is_refused(records):
    h, plan = flying()
    refused(h.scheduler, InvalidCompletion, h.scheduler.complete, h.fence, records, GOOD)
    finishes(h, plan)


def test_a_generator_of_records_is_refused():
    h, plan = flying()
    refused(h.scheduler, InvalidCompletion, h.scheduler.complete, h.fence, iter(answers(plan)), GOOD)
    finishes(h, plan)


def test_records_of_other_lanes_or_of_a_lane_twice_are_refused():
    h, plan = flying(names=("a", "b", "c"))
    first, second = plan.lanes
    outside = RequestHandle(({0, 1, 2} - {first.handle.slot, second.handle.slot}).pop(), 1)
    for handles in (
        (first.handle,),
        (first.handle, first.handle),
        (first.handle, second.handle, second.handle),
        (first.handle, outside),
        (first.handle, RequestHandle(second.handle.slot, second.handle.generation + 1)),
        *((first.handle, strange) for strange in (None, 1, RequestHandle("1", 1), RequestHandle([], 1))),
        *((RequestHandle(number, 1), second.handle) for number in (math.nan, -1, 2**70, None)),
    ):
        records = [CompletionRecord(handle, 0, (7,)) for handle in handles]
        refused(h.scheduler, InvalidCompletion, h.scheduler.complete, h.fence, records, GOOD, says="records")
    finishes(h, plan)


def test_records_may_come_in_any_order():
    h, plan = flying()
    tokens = h.scheduler.complete(h.fence, answers(plan)[::-1], GOOD)
    assert [token.handle for token in tokens] == [lane.handle for lane in plan.lanes]


BAD_FIELDS = [
    *({"consumed_prompt_tokens": value} for value in (1, *NO_COUNTS)),
    *({"accepted_tokens": value} for value in (2, *NO_COUNTS)),
    *({"offered_tokens": value} for value in (4, *(v for v in NO_COUNTS if v is not None))),
    *({"emitted_tokens": value} for value in ((), (7,) * 5, None, 7, "7", b"7", {7: 7}, {7}, iter((7,)))),
    *({"finished": value} for value in ("stop", "", True, False, 0, FinishReason, math.nan)),
    *({"error": value, "emitted_tokens": ()} for value in (0, False, True, b"x", ValueError("x"), ["x"])),
    *({"error": "x", "emitted_tokens": (), "finished": value} for value in (FinishReason.STOP, "stop", False)),
    *({"error": "x", "emitted_tokens": (), name: 1} for name in ("consumed_prompt_tokens", "accepted_tokens")),
    {"error": "x", "emitted_tokens": None},
]


def test_a_round_with_one_malformed_record_changes_nothing():
    h, plan = flying(ROUND, NARROW)
    for changes in BAD_FIELDS:
        for bad in (0, 1):
            records = answers(plan)
            records[bad] = record(plan.lanes[bad], **changes)
            refused(h.scheduler, InvalidCompletion, h.scheduler.complete, h.fence, records, GOOD)
    finishes(h, plan)


def test_a_prompt_with_a_malformed_record_changes_nothing(harness):
    h = harness(measured=True)
    h.admit("a", prompt=1)
    plan = commit(h)
    lane = plan.lanes[0]
    for changes in (
        *({"consumed_prompt_tokens": value} for value in (0, 2, True, 1.0, np.int64(1), None, math.nan)),
        *({"accepted_tokens": value} for value in (1, False, None)),
        *({"offered_tokens": value} for value in (1, False, 0.0)),
        *({"emitted_tokens": value} for value in ((), (7, 7), None)),
    ):
        refused(h.scheduler, InvalidCompletion, h.scheduler.complete, h.fence, [record(lane, **changes)], GOOD)
    finishes(h, plan)


def test_what_tokens_are_is_no_business_of_the_scheduler():
    h, plan = flying()
    ids = (-1, 2**70)
    records = [record(lane, emitted_tokens=(token,)) for lane, token in zip(plan.lanes, ids, strict=True)]
    assert [token.token_id for token in h.scheduler.complete(h.fence, records, GOOD)] == list(ids)


NO_DURATIONS = [*(value for value in NO_COUNTS if value is not False), False, HOUR_NS + 1]


def test_impossible_timing_of_any_part_changes_nothing():
    h, plan = flying()
    bad = [ExecutionTiming((MS, value), MS) for value in NO_DURATIONS]
    bad += [ExecutionTiming((MS,), value) for value in NO_DURATIONS]
    bad += [ExecutionTiming((MS,), MS, value) for value in NO_DURATIONS]
    bad += [ExecutionTiming((), value) for value in NO_DURATIONS]
    bad += [ExecutionTiming((MS, 5), MS, MS), ExecutionTiming((MS,), MS, MS + 1)]
    bad += [ExecutionTiming(value, MS) for value in (None, MS, "12", b"12", {MS: 1}, {MS})]
    bad += [None, MS, (MS, MS), [MS], {"wall_ns": MS}, ExecutionTiming]
    for timing in bad:
        refused(h.scheduler, InvalidCompletion, h.scheduler.complete, h.fence, answers(plan), timing)
    finishes(h, plan)


@pytest.mark.parametrize("timing", [ExecutionTiming((), 0), ExecutionTiming((0, 0), 0), ExecutionTiming((0,), HOUR_NS)])
def test_timing_of_nothing_is_taken_and_teaches_nothing(timing):
    h, plan = flying()
    before = h.scheduler.catalog.export()
    memories = h.scheduler._state.slots["token_memory"].tobytes()
    assert len(h.scheduler.complete(h.fence, answers(plan), timing)) == 2
    assert h.scheduler.catalog.export() == before
    assert h.scheduler._state.slots["token_memory"].tobytes() == memories


def test_the_shortest_and_the_longest_timing_are_taken():
    h, plan = flying()
    for ns in (1, HOUR_NS):
        h.scheduler.complete(h.fence, answers(plan), ExecutionTiming((ns, 0), HOUR_NS))
        memories = h.scheduler._state.slots["token_memory"][:2]
        assert all(0.0 < memory < math.inf for memory in memories)
        plan = commit(h)
        assert math.isfinite(plan.score)


# Sidecars.


def sidecar(value=0.5, dtype=np.float32):
    """Confidence of 64 slots and 3 depths."""
    return np.full((2, 64, 3), value, dtype)


def read_only(values):
    values = values.copy()
    values.flags.writeable = False
    return values


def unaligned(values):
    """The same values from the second byte of a buffer on, as a message gives them."""
    return np.frombuffer(b"\0" + values.tobytes(), values.dtype, offset=1).reshape(values.shape)


OTHER_LAYOUTS = {
    "read-only": read_only,
    "unaligned": unaligned,
    "of other byte order": lambda values: values.astype(values.dtype.newbyteorder()),
    "in Fortran order": np.asfortranarray,
    "strided": lambda values: np.repeat(values, 2, axis=-1)[..., ::2],
    "lists": lambda values: values.tolist(),
    "double": lambda values: values.astype(np.float64),
    "half": lambda values: values.astype(np.float16),
}


@pytest.mark.parametrize("layout", OTHER_LAYOUTS)
def test_floats_in_any_layout_are_taken_as_the_same_values(layout):
    """A read-only array once stopped the kernel when half of the state had changed."""
    saved = []
    for change in (np.ascontiguousarray, OTHER_LAYOUTS[layout]):
        h, plan = flying(DEVICE, NARROW)
        h.scheduler.complete_packed_round_with_survival(
            h.fence, answers(plan), GOOD, change(sidecar()), change(sidecar(0.25, np.float64)[0])
        )
        saved.append(h.scheduler.checkpoint())
    assert saved[0] == saved[1]


NO_SIDECARS = {
    "complex": sidecar().astype(np.complex64),
    "whole numbers": sidecar(1, np.int64),
    "truths": sidecar(True, bool),
    "objects": sidecar().astype(object),
    "nothings": np.full((2, 64, 3), None),
    "texts": sidecar().astype(str),
    "times": np.zeros((2, 64, 3), "M8[s]"),
    "huge whole numbers": np.full((2, 64, 3), 10**400, object),
    "a text": "0.5",
    "a dictionary": {},
    "a truth": False,
    "lists of unequal length": [[0.5], [0.5, 0.5]],
}
NO_EXTENTS = {
    "one number": np.float32(0.5),
    "no rows": sidecar()[:, :0],
    "a slot too few": sidecar()[:, :63],
    "a depth too few": sidecar()[:, :, :2],
    "a depth too many": np.full((2, 64, 4), 0.5, np.float32),
    "three planes": np.full((3, 64, 3), 0.5, np.float32),
    "one dimension more": sidecar()[None],
    "flat": sidecar().ravel(),
}


@pytest.mark.parametrize("kind", [*NO_SIDECARS, *NO_EXTENTS])
def test_confidence_and_survival_of_another_type_or_extent_are_refused(kind):
    bad = (NO_SIDECARS | NO_EXTENTS)[kind]
    h, plan = flying(DEVICE, NARROW)
    s = h.scheduler
    rows = bad[0] if isinstance(bad, np.ndarray) and bad.ndim == 3 and kind != "three planes" else bad
    refused(s, InvalidCompletion, s.complete_packed_round, h.fence, answers(plan), GOOD, bad, says="confidence")
    both = s.complete_packed_round_with_survival
    refused(s, InvalidCompletion, both, h.fence, answers(plan), GOOD, bad, sidecar()[0], says="confidence")
    refused(s, InvalidCompletion, both, h.fence, answers(plan), GOOD, sidecar(), rows, says="survival")
    s.complete_packed_round(h.fence, answers(plan), GOOD, sidecar())


OUTSIDE = (-0.001, 1.001, -1.0, 2.0, 1e30, math.inf, -math.inf)


@pytest.mark.parametrize("plane", [0, 1])
def test_confidence_outside_zero_to_one_in_either_plane_is_refused(plane):
    h, plan = flying(DEVICE, NARROW)
    complete = h.scheduler.complete_packed_round
    for value in (*OUTSIDE, math.nan):
        for depth in range(3):
            bad = sidecar()
            bad[plane, plan.lanes[1].handle.slot, depth] = value
            refused(h.scheduler, InvalidCompletion, complete, h.fence, answers(plan), GOOD, bad, says="from 0 to 1")
    huge = sidecar(dtype=np.float64)
    huge[plane, plan.lanes[0].handle.slot, 0] = 1e300  # infinite as float32
    refused(h.scheduler, InvalidCompletion, complete, h.fence, answers(plan), GOOD, huge)
    complete(h.fence, answers(plan), GOOD, sidecar())


def test_survival_outside_zero_to_one_is_refused_and_its_edges_are_taken():
    h, plan = flying(ROUND, NARROW)
    complete = h.scheduler.complete_with_survival
    for value in (*OUTSIDE, 1e300):
        bad = np.full((64, 3), 0.5)
        bad[plan.lanes[1].handle.slot, 2] = value
        refused(h.scheduler, InvalidCompletion, complete, h.fence, answers(plan), GOOD, bad, says="from 0 to 1")
    good = np.array([[*PROBABILITIES[:2], math.nan]] * 64)
    assert len(complete(h.fence, answers(plan), GOOD, good)) == 2


@pytest.mark.parametrize("value", PROBABILITIES)
def test_the_edges_of_probability_are_taken_and_give_finite_plans(value):
    h = decoding(DEVICE, NARROW)
    for _ in range(4):
        plan = commit(h)
        h.scheduler.complete_packed_round(h.fence, answers(plan), GOOD, sidecar(value))
    assert math.isfinite(h.scheduler.plan().score)


def test_no_confidence_is_enough_only_where_the_host_divides_the_rows_or_all_failed():
    h, plan = flying(DEVICE, NARROW)
    packed = h.scheduler.complete_packed_round
    refused(h.scheduler, InvalidCompletion, packed, h.fence, answers(plan), GOOD, None, says="its confidence")
    one = [record(plan.lanes[0]), record(plan.lanes[1], emitted_tokens=(), error="broken")]
    refused(h.scheduler, InvalidCompletion, packed, h.fence, one, GOOD, None, says="its confidence")
    failed = [record(lane, emitted_tokens=(), error="broken") for lane in plan.lanes]
    assert packed(h.fence, failed, GOOD, None) == []
    h, plan = flying(decode(2))
    assert len(h.scheduler.complete_packed_round(h.fence, answers(plan), GOOD, None)) == 2
