"""A stop string, which the service finds, ends an answer as a stop token does: the next turn finds it in the cache."""

from __future__ import annotations

import pytest

from service.journal.records import RequestAdmitted

SCRIPT = [60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75]
PROMPT = [10] + [11] * 39


def answering(rig, tokens: int, frames: int = 1) -> None:
    """Until request a's client has so many tokens, and so many frames with it are in flight."""
    rig.device.scripts[10] = SCRIPT
    rig.submit("a", token_ids=PROMPT, output=200)
    for _ in range(200):
        rig.step()
        if len(rig.text("a")) >= tokens and len(rig.core.in_flight) == frames:
            return
    raise AssertionError("the answer does not come so far")


def cached_of_next_turn(rig, answer: list[int]) -> int:
    """How many tokens the next turn of the conversation finds; its prompt repeats the answer."""
    rig.submit("next", token_ids=[*PROMPT, *answer, 12, 13], output=2)
    rig.settle()
    (admitted,) = [record for record in rig.journal.of(RequestAdmitted) if record.request_id == "next"]
    return admitted.cached_tokens


def check_tokens(rig) -> None:
    """What the plans committed is what the request's end and the counters say; nothing is held."""
    committed = sum(lane.committed_tokens for done in rig.completions() for lane in done.lanes)
    assert rig.metric("flare_output_tokens_total") == committed
    assert rig.device.held_pages() == 0
    assert rig.core.scheduler.resident_count == 0
    assert not rig.core.scheduler._state.unpublished_snapshots
    assert not rig.core.leaving


DEVICES = {
    "decode": {},
    "rounds": {"drafts": 3, "verification": "fixed:4"},
    "adaptive rounds": {"drafts": 3},
}


@pytest.mark.parametrize("running", [0, 1, 2])
@pytest.mark.parametrize("device", DEVICES)
def test_the_next_turn_starts_behind_the_tokens_before_the_stop_string(make_rig, device, running):
    """With so many frames of the request in flight as the service's word arrives."""
    rig = make_rig(states=True, **DEVICES[device])
    rig.device.patient = running == 2
    answering(rig, 6, frames=max(1, running))
    rig.device.automatic = running == 0
    told = len(rig.text("a"))
    rig.cancel("a", "stop", answer_tokens=4)
    rig.step()
    assert rig.tokens("a")[-1].finish_reason == "stop"
    rig.device.automatic = True
    rig.device.patient = False
    rig.settle()
    assert rig.ending("a").output_tokens == len(rig.text("a")) >= told
    assert rig.plans()[-1].lanes[0].role == "terminal"
    assert cached_of_next_turn(rig, SCRIPT[:4]) == len(PROMPT) + 4
    check_tokens(rig)


def test_without_a_count_the_cached_state_has_all_that_was_computed(make_rig):
    rig = make_rig(states=True)
    answering(rig, 6)
    rig.cancel("a", "stop")
    rig.settle()
    answer = rig.text("a")
    assert cached_of_next_turn(rig, answer) == len(PROMPT) + len(answer) - 1
    check_tokens(rig)


def test_an_answer_that_begins_with_its_stop_string_leaves_its_prompt_behind(make_rig):
    rig = make_rig(states=True)
    answering(rig, 2)
    rig.cancel("a", "stop", answer_tokens=0)
    rig.settle()
    assert cached_of_next_turn(rig, []) == len(PROMPT)
    check_tokens(rig)


@pytest.mark.parametrize("answer_tokens", [2, None])
def test_a_stop_string_in_what_an_earlier_life_answered_ends_the_request_all_the_same(make_rig, answer_tokens):
    rig = make_rig(states=True)
    answering(rig, 6)
    rig.core.scheduler.preempt(rig.core.table.get("a").handle)
    request = rig.core.table.get("a")
    while not request.preemptions or request.output_tokens < request.emitted_before + 25:  # enough for a capture
        rig.step()
    rig.cancel("a", "stop", answer_tokens=answer_tokens)
    rig.settle()
    assert rig.ending("a").finish_reason == "stop"
    assert (rig.plans()[-1].lanes[0].role == "terminal") == (answer_tokens is None)
    check_tokens(rig)


def test_a_preempted_request_whose_answer_has_ended_does_not_come_back(make_rig):
    rig = make_rig(states=True)
    answering(rig, 6)
    rig.core.scheduler.preempt(rig.core.table.get("a").handle)
    rig.device.automatic = False
    rig.cancel("a", "stop", answer_tokens=4)
    rig.step()
    rig.device.automatic = True
    rig.settle()
    assert (rig.ending("a").finish_reason, rig.ending("a").preemptions) == ("stop", 0)
    assert cached_of_next_turn(rig, SCRIPT[:4]) == len(PROMPT) + 4
    check_tokens(rig)
