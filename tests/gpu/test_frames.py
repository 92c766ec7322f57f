"""A frame's check is the only one that asks whether its lanes fit their program and their requests."""

from __future__ import annotations

import dataclasses
import types

import pytest
from device_driver import decode, prefill, round_of

from gpu.device import Frame, FrameLane, InvalidFrame, SamplingParameters
from gpu.frames import DraftLimits, check_frame
from scheduler.shapes import Allocation, GraphKind, GraphShape

PROMPT = [3] * 20
NARROW = GraphShape(GraphKind.SPECULATIVE, 2, draft_depth=3, target_width=2, target_rows=4, speculation_enabled=True)
MIXED = GraphShape(GraphKind.MIXED, 4, draft_depth=3, target_width=4, prefill_capacity=16, speculation_enabled=True)
PAIR = dataclasses.replace(MIXED, prompt_rows=2)


def request_with(prompt_left: int, copies: int, scored=False):
    """An open request with `prompt_left` tokens of its prompt to come, whose text suggests `copies` drafts."""
    return types.SimpleNamespace(
        prompt=PROMPT, tokens=PROMPT, cursor=len(PROMPT) - prompt_left, prompt_left=prompt_left, ceiling=0,
        capacity=60, frames=0, ready=True, retired=False,
        sampling=SamplingParameters(prompt_logprobs=0 if scored else None),
        copy_proposals=lambda most: [1] * min(most, copies),
    )  # fmt: skip


def check(shape, lanes, learned=True):
    """Slots 0 and 1 decode with two copies each; the others have their whole prompt to come, scored for slot 5."""
    requests = {slot: request_with(0 if slot < 2 else len(PROMPT), 2, scored=slot == 5) for slot in range(6)}
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
        (MIXED, [(2, 4), (3, 4)], "2 prompts with 8 tokens to read; .* takes 1 with 16"),
        (PAIR, [(2, 4), (3, 4), (4, 1)], "3 prompts with 9 tokens to read; .* takes 2 with 16"),
        (PAIR, [(2, 9), (0, 1), (3, 8)], "2 prompts with 17 tokens to read; .* takes 2 with 16"),
        (PAIR, [(2, 4), (5, 4)], "slot 5 wants its prompt scored"),
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
        (PAIR, [(2, 9), (0, 4), (3, 7), (1, 3, True)]),
        (NARROW, [(0, 2, True), (1, 2)]),
        (round_of(2, 3, rows=5), [(0, 2), (1, 3)]),
        (round_of(2, 3, rows=5, allocation=Allocation.DEVICE), [(0, 4), (1, 4)]),
    ],
)
def test_lanes_that_fill_a_program_pass(shape, lanes):
    assert [lane.input.slot for lane in check(shape, lanes)] == [slot for slot, *_ in lanes]
