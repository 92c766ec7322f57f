"""Speculative rounds in the worker loop: bursts, stops inside them, copies, counters, sidecars."""

from __future__ import annotations

import pytest

from scheduler.shapes import Allocation
from service.engine.copy_trials import LONGEST_PAUSE, CopyTrials
from service.engine.drafts import note_round

MS = 1_000_000


@pytest.fixture
def drafting(make_rig):
    rig = make_rig(drafts=3)
    rig.device.right = 3
    rig.device.scripts[10] = list(range(20, 99)) * 2
    return rig


def lanes_of(rig, request_id: str) -> list:
    """(lane as planned, lane as completed) of a request, in order of the fences."""
    done = {record.fence: record for record in rig.completions()}
    return [
        (lane, done[plan.fence].lanes[number])
        for plan in rig.plans()
        for number, lane in enumerate(plan.lanes)
        if lane.request_id == request_id
    ]


def test_a_burst_is_committed_and_published_whole(drafting):
    drafting.submit("a", output=30)
    drafting.settle()
    assert drafting.text("a") == list(range(20, 50))
    assert max(len(message.token_ids) for message in drafting.tokens("a")) == 4
    outputs = [done.committed_tokens for _, done in lanes_of(drafting, "a")]
    assert sum(outputs) == 30 == drafting.metric("flare_output_tokens_total")


@pytest.mark.parametrize("place", range(5, 12))
def test_a_stop_token_inside_a_burst_ends_the_answer_there(drafting, place):
    script = list(range(20, 60))
    script[place] = 1
    drafting.device.scripts[10] = script
    drafting.submit("a", output=60, logprobs=1)
    drafting.settle()
    assert drafting.text("a") == script[:place]
    assert drafting.ending("a").finish_reason == "stop"
    assert drafting.ending("a").output_tokens == place + 1
    told = [score for message in drafting.tokens("a") for score in message.logprobs or []]
    assert [token for token, *_ in told] == script[:place]
    for _, done in lanes_of(drafting, "a"):
        assert done.accepted_tokens <= done.committed_tokens
    assert drafting.device.held_pages() == 0


@pytest.mark.parametrize("patient", [False, True])
@pytest.mark.parametrize("place", range(5, 12))
def test_what_lies_behind_a_stop_token_is_not_in_the_state_that_the_answer_leaves(make_rig, place, patient):
    """`patient`: another round of the request may be queued behind the one that ends its answer."""
    rig = make_rig(drafts=3, states=True)
    rig.device.right, rig.device.patient = 3, patient
    script = list(range(20, 60))
    script[place] = 1
    rig.device.scripts[10] = script
    rig.submit("a", output=60)
    rig.settle()
    assert rig.text("a") == script[:place]
    history = (10, 11, 11, 11, *script[:place])
    assert rig.device.cached[history] == "terminal_snapshot"
    assert max(map(len, rig.device.cached)) == len(history)
    assert rig.device.held_pages() == 0


@pytest.mark.parametrize("output", range(1, 12))
def test_the_output_limit_holds_inside_a_burst(drafting, output):
    drafting.submit("a", output=output)
    drafting.settle()
    assert drafting.text("a") == list(range(20, 20 + output))
    assert drafting.ending("a").finish_reason == "length"


def test_rounds_are_counted_by_source_and_depth(drafting):
    drafting.device.right = 2
    drafting.submit("a", output=40)
    drafting.submit("b", output=25)
    drafting.settle()
    rounds = [pair for name in "ab" for pair in lanes_of(drafting, name) if pair[0].proposal_source == "learned"]
    assert rounds

    def metric(name: str, depth: int) -> float:
        return drafting.metric(f"flare_speculative_{name}_tokens_total", source="learned", depth=str(depth))

    for depth in (1, 2, 3, 4):
        assert metric("draft", depth) == sum(done.draft_tokens >= depth for _, done in rounds)
        assert metric("offered", depth) == sum(done.offered_tokens >= depth for _, done in rounds)
        assert metric("accepted", depth) == sum(done.accepted_tokens >= depth for _, done in rounds)
    assert metric("accepted", 2) > metric("accepted", 3) == metric("draft", 4) == 0
    assert drafting.metric("flare_speculative_rounds_total", source="learned") == len(rounds)
    assert drafting.metric("flare_speculative_rounds_total", source="copy") == 0
    rows = sum(done.offered_tokens + 1 for _, done in rounds)
    assert drafting.metric("flare_speculative_target_rows_total", source="learned") == rows
    assert drafting.metric("flare_speculative_accepted_length_count", source="learned") == len(rounds)
    accepted = sum(done.accepted_tokens for _, done in rounds)
    assert drafting.metric("flare_speculative_accepted_length_sum", source="learned") == accepted


@pytest.mark.parametrize("allocation", list(Allocation))
def test_the_scheduler_learns_from_what_the_device_reports(make_rig, allocation):
    rig = make_rig(drafts=3, allocation=allocation)
    rig.device.right = 3
    rig.submit("a", output=100)
    rig.submit("b", output=100)
    rig.device.automatic = False
    for _ in range(40):
        rig.step()
        if rig.device.queue:
            rig.device.finish()
    # A new request expects 1 + 1/2 + 1/4 + 1/8 tokens; all drafts were right, or the draft head is 1/2 sure of each.
    expected = max(lane.expected_tokens for plan in rig.plans() for lane in plan.lanes)
    assert expected > (2.2 if allocation is Allocation.DEVICE else 3.0)
    rig.device.automatic = True
    rig.settle()
    assert [rig.ending(name).output_tokens for name in "ab"] == [100, 100]


def test_copies_are_offered_where_there_is_no_draft_head(make_rig):
    rig = make_rig(drafts=3, learned=False)
    rig.device.copied, rig.device.right = 2, 2
    rig.device.scripts[10] = list(range(20, 99))
    rig.submit("a", output=40)
    rig.settle()
    assert rig.text("a") == list(range(20, 60))
    sources = {lane.proposal_source for lane, _ in lanes_of(rig, "a")}
    assert sources == {None, "copy"}
    assert max(done.offered_tokens for _, done in lanes_of(rig, "a")) == 2
    assert all(done.draft_tokens == done.offered_tokens for _, done in lanes_of(rig, "a"))
    assert any(lane.copies for frame in rig.device.frames for lane in frame.lanes)
    assert rig.metric("flare_speculative_rounds_total", source="copy") > 0


def test_without_a_match_a_request_decodes_alone(make_rig):
    rig = make_rig(drafts=3, learned=False)
    rig.submit("a", output=20)
    rig.settle()
    assert {lane.query_length for lane, done in lanes_of(rig, "a") if not done.consumed_prompt_tokens} == {1}


def test_a_request_with_another_lane_in_flight_is_offered_nothing(make_rig):
    rig = make_rig(drafts=3, learned=False)
    rig.device.patient = True
    rig.submit("a", output=120)
    while len(rig.core.in_flight) < 2:
        rig.step()
    rig.device.copied = 2
    rig.device.automatic = False
    rig.device.finish()
    rig.step()
    assert rig.core.scheduler._state.slots[0]["drafts"] == 0


def play(rig, steps: int, right: int, dear: bool = False) -> list[tuple[int, str | None]]:
    """Complete `steps` frames of the one open request: (frames in flight, source of the newest one's lane) before each.

    `dear`: a frame takes 1 ms for each row of its lane; otherwise 1 ms.
    """
    rig.device.automatic, rig.device.right = False, right
    seen = []
    for _ in range(steps):
        rig.step(3)  # as many as the engine would queue
        seen.append((len(rig.core.in_flight), rig.core.in_flight[-1].plan.lanes[0].proposal_source))
        rig.device.finish(MS * (rig.device.queue[0].frame.shape.target_width if dear else 1))
    return seen


def test_copies_that_are_never_right_do_not_keep_frames_from_being_queued(make_rig):
    rig = make_rig(drafts=3, learned=False)
    rig.submit("a", output=480)
    rig.device.copied = 3
    seen = play(rig, 300, right=0)[50:]
    queued = sum(frames == 2 for frames, _ in seen)
    assert queued > 0.9 * len(seen)
    assert sum(source == "copy" for _, source in seen) <= 2 * len(seen) / LONGEST_PAUSE + 1


def test_an_offer_that_a_plan_passes_over_is_withdrawn(make_rig):
    rig = make_rig(drafts=3, learned=False)
    rig.submit("a", output=480)
    rig.device.copied = 3
    play(rig, 60, right=0, dear=True)
    request = rig.core.table.get("a")
    request.copy_mean, request.copied_well = 3.0, True  # the scheduler knows better
    # One frame is left alone in flight, for an offer; behind the next, which passes it over, another is queued.
    assert play(rig, 2, right=0, dear=True) == [(1, None), (2, None)]
    assert not request.copied_well


def test_copies_are_found_when_they_become_right(make_rig):
    rig = make_rig(drafts=3, learned=False)
    rig.device.scripts[10] = list(range(20, 99)) * 20
    rig.submit("a", output=480)
    rig.device.copied = 3
    play(rig, 90, right=0)
    seen = play(rig, LONGEST_PAUSE + 25, right=3)
    assert [source for _, source in seen[-20:]].count("copy") >= 15


def test_trials_of_copies_grow_rare_and_come_back_with_success():
    trials = CopyTrials()
    gaps = []
    for _ in range(9):
        assert trials.due
        trials.verified(rounds=8, accepted=1)
        gaps.append(0)
        while not trials.due:
            trials.completed()
            gaps[-1] += 1
    assert gaps == [1, 3, 7, 15, 31, 63, 64, 64, 64]
    trials.failed()
    trials.failed()  # one trial's second report
    assert trials.rest == LONGEST_PAUSE
    trials.verified(rounds=8, accepted=8)
    assert trials.due
    assert trials.pause == 0


def test_the_better_source_is_taken_and_the_other_is_tried_again(make_rig):
    rig = make_rig(drafts=3)
    rig.submit("a", output=400)
    rig.step(4)
    request = rig.core.table.get("a")
    rig.device.copied = 3
    seen = []
    for _ in range(500):
        rig.step()
        if rig.core.table.get("a") is None or not rig.core.in_flight:
            break
        for lane in rig.core.in_flight[-1].plan.lanes:
            rig.device.right = 3 if lane.proposal_source == "learned" else 0
            if lane.proposal_source:
                seen.append(lane.proposal_source)
    assert seen.count("copy") >= 1
    assert seen[-10:].count("learned") >= 9
    for _ in range(20):
        note_round(rig.core, request, "learned", 0, 3)
    assert request.learned_mean < 0.1


def test_a_round_that_verified_no_draft_says_nothing_of_them(rig):
    rig.submit("a", output=10)
    rig.step()
    request = rig.core.table.get("a")
    note_round(rig.core, request, "learned", 2, 3)
    mean = request.learned_mean
    note_round(rig.core, request, "learned", 0, 0)
    assert request.learned_mean == mean > 0


def test_plain_decoding_asks_for_no_copies(rig, monkeypatch):
    monkeypatch.setattr(rig.device, "copy_proposals", None)
    rig.submit("a", output=10)
    rig.settle()
    assert rig.ending("a").output_tokens == 10
