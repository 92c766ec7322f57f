"""Handles that name nothing, slots that were reused, publications and offers out of place."""

from __future__ import annotations

import math

import pytest

from scheduler import RequestHandle, RequestSpec
from scheduler.errors import InvalidFence, InvalidRequest, UnknownHandle
from tests.scheduler.conftest import decode, prefill
from tests.scheduler.hostile import (
    GOOD,
    MS,
    NARROW,
    NO_COUNTS,
    ROUND,
    STATE,
    answers,
    commit,
    decoding,
    flying,
    record,
    refused,
)

NO_HANDLES = (
    *(None, 0, "a", (0, 1), RequestHandle),
    *(RequestHandle(slot, 1) for slot in (-1, 64, 2**70, -(2**70), True, 0.0, math.nan, "0", None, [], {})),
    *(RequestHandle(0, generation) for generation in (0, 2, -1, 2**70, 0.5, math.nan, "1", None, [])),
    *(RequestHandle(63, generation) for generation in (0, 1, None)),
    RequestHandle(None, None),
)


@pytest.mark.parametrize("command", ["cancel", "restored", "preempt", "offer_proposals"])
def test_a_handle_that_names_nothing_is_unknown_to_every_command(command):
    h = decoding(decode(2), STATE[3])
    more = ("copy", 1) if command == "offer_proposals" else ()
    for handle in NO_HANDLES:
        refused(h.scheduler, UnknownHandle, getattr(h.scheduler, command), handle, *more)
        assert not h.scheduler.is_resident(handle)


def test_a_name_that_nobody_has_has_no_handle():
    h = decoding()
    for name in ("c", "", None, 5, [], b"a"):
        refused(h.scheduler, UnknownHandle, h.scheduler.handle_of, name)
        before = h.scheduler.checkpoint()
        h.scheduler.published_snapshot(name)
        assert h.scheduler.checkpoint() == before, "an unknown snapshot changes nothing"


def test_what_was_never_served_cannot_be_published():
    h = decoding()
    last = h.scheduler.handle_of("b")
    for handle in (handle for handle in NO_HANDLES if handle != RequestHandle(1, 1)):
        refused(h.scheduler, InvalidFence, h.scheduler.published_output, handle, h.fence)
    for fence in (value for value in NO_COUNTS if value != h.fence):
        refused(h.scheduler, InvalidFence, h.scheduler.published_output, last, fence)
    h.scheduler.published_output(last, h.fence)


def test_before_the_first_completion_there_is_nothing_to_publish(harness):
    h = harness(measured=True)
    handle = h.admit("a")
    for fence in (0, 1, -1, None):
        for who in (handle, RequestHandle(0, None), RequestHandle(63, None)):
            refused(h.scheduler, InvalidFence, h.scheduler.published_output, who, fence)
    h.step()


def test_a_fence_of_one_is_not_the_truth(harness):
    h = harness(measured=True)
    handle = h.admit("a")
    plan = commit(h)
    refused(h.scheduler, InvalidFence, h.scheduler.complete, True, h.records(plan), GOOD)
    h.complete(plan, publish=False)
    refused(h.scheduler, InvalidFence, h.scheduler.published_output, handle, True)
    h.scheduler.published_output(handle, 1)


def test_a_publication_that_comes_twice_or_after_the_cancel_changes_nothing():
    h, plan = flying()
    h.scheduler.complete(h.fence, answers(plan), GOOD)
    first, second = (lane.handle for lane in plan.lanes)
    h.scheduler.published_output(first, h.fence)
    h.scheduler.cancel(second)
    before = h.scheduler.checkpoint()
    h.scheduler.published_output(first, h.fence)
    h.scheduler.published_output(second, h.fence)
    assert h.scheduler.checkpoint() == before


def test_a_late_publication_does_not_touch_the_slots_next_request():
    h, plan = flying()
    h.scheduler.complete(h.fence, answers(plan), GOOD)
    old = plan.lanes[0].handle
    h.scheduler.cancel(old)
    new = h.admit("new")
    assert (new.slot, new.generation) == (old.slot, old.generation + 1)
    h.scheduler.advance_to(h.now_ns + 5 * MS)
    before = h.scheduler.checkpoint()
    h.scheduler.published_output(old, h.fence)
    assert h.scheduler.checkpoint() == before
    refused(h.scheduler, InvalidFence, h.scheduler.published_output, new, h.fence)


def test_a_publication_of_an_earlier_frame_comes_too_late():
    h, plan = flying()
    h.scheduler.complete(h.fence, answers(plan), GOOD)
    h.step()
    refused(h.scheduler, InvalidFence, h.scheduler.published_output, plan.lanes[0].handle, h.fence - 1)
    assert h.fence > 1


def test_a_cancelled_request_answers_to_nothing_any_more():
    h, plan = flying(decode(2), STATE[3])
    handle = plan.lanes[0].handle
    h.scheduler.cancel(handle)
    s = h.scheduler
    for call, more in ((s.cancel, ()), (s.restored, ()), (s.preempt, ()), (s.offer_proposals, ("copy", 1))):
        refused(s, UnknownHandle, call, handle, *more)
    assert s.is_resident(handle), "its slot waits for the frame"


def test_a_handle_of_a_reused_slot_is_unknown_and_its_successor_is_left_alone():
    h = decoding(decode(2), STATE[3], slots=2)
    old = h.scheduler.handle_of("a")
    plan = h.scheduler.plan()
    assert old in [lane.handle for lane in plan.lanes]
    h.scheduler.cancel(old)
    new = h.admit("c")
    assert new.slot == old.slot
    for command, more in (("cancel", ()), ("restored", ()), ("preempt", ()), ("offer_proposals", ("copy", 1))):
        refused(h.scheduler, UnknownHandle, getattr(h.scheduler, command), old, *more)
    assert not h.scheduler.is_resident(old)
    assert h.scheduler.is_resident(new)


@pytest.mark.parametrize("source", ["", "learned", "Copy", "dream", None, 5, ("copy",), []])
def test_offers_from_elsewhere_than_copy_are_refused(source):
    h = decoding(ROUND, NARROW)
    handle = h.scheduler.handle_of("a")
    refused(h.scheduler, InvalidRequest, h.scheduler.offer_proposals, handle, source, 1, says="copy")


def test_offers_of_no_count_or_to_a_request_that_takes_none_are_refused():
    h = decoding(ROUND, NARROW)
    handle = h.scheduler.handle_of("a")
    for count in (value for value in (*NO_COUNTS, 2**31) if value is not False):
        refused(h.scheduler, InvalidRequest, h.scheduler.offer_proposals, handle, "copy", count)
    h = decoding(ROUND, NARROW, proposal_sources=("learned",))
    refused(h.scheduler, InvalidRequest, h.scheduler.offer_proposals, h.scheduler.handle_of("a"), "copy", 1)


def test_an_offer_of_two_billion_drafts_is_worth_what_a_graph_can_verify():
    h = decoding(ROUND, NARROW, proposal_sources=("copy",))
    for name in ("a", "b"):
        h.scheduler.offer_proposals(h.scheduler.handle_of(name), "copy", 2**31 - 1)
    plan = commit(h)
    assert plan.shape == ROUND
    assert [lane.query_length for lane in plan.lanes] == [4, 4]
    h.scheduler.complete(h.fence, [record(lane, offered_tokens=3) for lane in plan.lanes], GOOD)


def test_offers_are_taken_at_any_stage_and_those_of_a_grammar_ignored():
    h = decoding(ROUND, NARROW, names=())
    waiting = h.scheduler.admit(RequestSpec("w", 64, 8, 99, restoring=True))
    grammar = h.scheduler.admit(RequestSpec("g", 64, 8, 99, grammar=True))
    for handle in (waiting, grammar):
        h.scheduler.offer_proposals(handle, "copy", 3)
        h.scheduler.offer_proposals(handle, "copy", 0)
        h.scheduler.offer_proposals(handle, "copy", 3)
    h.step()
    assert h.scheduler.plan().lanes[0].ceiling == 1, "a grammar takes no drafts"
    h.scheduler.restored(waiting)
    assert h.scheduler.is_resident(waiting)


def test_external_restoration_is_reported_once_and_only_by_who_waits(harness):
    h = harness(shapes=(prefill(64), decode(1)), measured=True)
    running = h.admit("a")
    refused(h.scheduler, InvalidRequest, h.scheduler.restored, running, says="does not wait")
    waiting = h.scheduler.admit(RequestSpec("w", 64, 8, 99, restoring=True))
    h.scheduler.restored(waiting)
    refused(h.scheduler, InvalidRequest, h.scheduler.restored, waiting, says="does not wait")
