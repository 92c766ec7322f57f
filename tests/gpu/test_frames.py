"""A frame's check is the only one that asks whether its lanes fit their program and their requests."""

from __future__ import annotations

import types

import pytest
from device_driver import decode, prefill, round_of

from gpu.device import Frame, FrameLane, InvalidFrame
from gpu.frames import DraftLimits, check_frame
from scheduler.shapes import Allocation, GraphKind, GraphShape

PROMPT = [3] * 20
NARROW = GraphShape(GraphKind.SPECULATIVE, 2, draft_depth=3, target_width=2, target_rows=4, speculation_enabled=True)
MIXED = GraphShape(GraphKind.MIXED, 4, draft_depth=3, target_width=4, prefill_capacity=16, speculation_enabled=True)


def request_with(prompt_left: int, copies: int):
    """An open request with `prompt_left` tokens of its prompt to come, whose text suggests `copies` drafts."""
    return types.SimpleNamespace(
        prompt=PROMPT, tokens=PROMPT, cursor=len(PROMPT) - prompt_left, prompt_left=prompt_left, ceiling=0,
        capacity=60, frames=0, ready=True, retired=False, copy_proposals=lambda most: [1] * min(most, copies),
    )  # fmt: skip


def check(shape, lanes, learned=True):
    """Slots 0 and 1 decode with two copies each; 2 and 3 have their whole prompt to come."""
    requests = {slot: request_with(0 if slot < 2 else len(PROMPT), copies=2) for slot in range(4)}
    return check_frame(Frame(1, shape, tuple(FrameLane(*lane) for lane in lanes)), requests, DraftLimits(3, learned))


@pytest.mark.parametrize(
    ("shape", "lanes", "message"),
    [
        (decode(1), [(0, 1), (1, 1)], "at most 1"),
        (decode(2), [(0, 1), (0, 1)], "distinct"),
        (decode(2), [(0, 2, True)], "query_length 2 of 1"),
        (decode(2), [(2, 1)], "20 prompt tokens left"),
        (prefill(16), [(0, 1)], "0 are left"),
        (prefill(16), [(2, 17)], "takes 16"),
        (prefill(16), [(2, 0)], "asks for 0"),
        (MIXED, [(2, 4), (3, 4)], "2 prompts"),
        (MIXED, [(0, 1), (2, 17)], "takes 16"),
        (round_of(2, 3), [(0, 4, True)], "2 copy proposals for 3 drafts"),
        (NARROW, [(0, 3, True)], "query_length 3 of 2"),
        (round_of(2, 3, rows=5), [(0, 3, True), (1, 3, True)], "6 verification rows"),
        (round_of(2, 3), [(0, 0)], "query_length 0 of 4"),
        (round_of(2, 3), [(0, 5)], "query_length 5 of 4"),
        (round_of(2, 3), [(0, 2)], "without a draft head"),
    ],
)
def test_lanes_that_do_not_fit_are_refused(shape, lanes, message):
    with pytest.raises(InvalidFrame, match=message):
        check(shape, lanes, learned=False)


@pytest.mark.parametrize(
    ("shape", "lanes"),
    [
        (decode(2), [(0, 1), (1, 1)]),
        (prefill(16), [(2, 16)]),
        (MIXED, [(0, 4), (2, 16), (1, 3, True)]),
        (NARROW, [(0, 2, True), (1, 2)]),
        (round_of(2, 3, rows=5), [(0, 2), (1, 3)]),
        (round_of(2, 3, rows=5, allocation=Allocation.DEVICE), [(0, 4), (1, 4)]),
    ],
)
def test_lanes_that_fill_a_program_pass(shape, lanes):
    assert [lane.input.slot for lane in check(shape, lanes)] == [slot for slot, *_ in lanes]
