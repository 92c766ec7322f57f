"""State graphs in the worker loop: set-up, cached prefixes, terminal snapshots, and cancels in each of their phases."""

from __future__ import annotations

import pytest

from service.journal.records import RequestAdmitted

MS = 1_000_000


@pytest.fixture
def states(make_rig):
    return make_rig(states=True)


def kinds(rig) -> list[str]:
    return [plan.shape.kind for plan in rig.plans()]


def run_until(rig, kind: str) -> None:
    """Frames finish one by one until one of this kind is in flight."""
    rig.device.automatic = False
    for _ in range(200):
        rig.step()
        if rig.core.in_flight and rig.core.in_flight[-1].plan.shape.kind.value == kind:
            return
        if rig.device.queue:
            rig.device.finish()
    raise AssertionError(f"no {kind} graph ran")


def test_a_request_is_set_up_captured_and_released(states):
    rig = states
    rig.submit("a", prompt=40, output=3)
    rig.settle()
    assert kinds(rig) == ["init", "prefill", "snapshot", "decode", "decode", "terminal_snapshot"]
    assert set(rig.device.cached.values()) == {"snapshot", "terminal_snapshot"}
    assert rig.ending("a").output_tokens == 3
    assert rig.device.held_pages() == 0


def test_the_client_sees_the_end_before_the_terminal_snapshot_is_taken(states):
    rig = states
    rig.submit("a", output=3)
    run_until(rig, "terminal_snapshot")
    rig.step()
    assert rig.tokens("a")[-1].finish_reason == "length"
    assert len(rig.core.table) == 0
    assert rig.device.held_pages() > 0
    assert rig.core.leaving
    rig.device.finish()
    rig.step()
    assert rig.device.held_pages() == 0
    assert not rig.core.leaving
    assert not rig.core.scheduler._state.unpublished_snapshots


def test_the_next_turn_finds_the_tokens_of_the_last_and_says_so(states):
    rig = states
    rig.device.scripts[10] = [60, 61, 62, 63]
    rig.submit("a", prompt=40, output=4)
    rig.settle()
    history = [10] + [11] * 39 + [60, 61, 62]
    rig.submit("b", token_ids=[*history, 63, 12, 13], output=2)
    rig.settle()
    first, second = rig.journal.of(RequestAdmitted)
    assert (first.cached_tokens, second.cached_tokens) == (0, 43)
    assert rig.tokens("b")[-1].prompt_tokens == 46
    assert "restore" in kinds(rig)
    assert rig.metric("flare_prefix_cache_tokens_total", result="hit") == 43
    assert rig.metric("flare_prefix_cache_tokens_total", result="miss") == 43
    assert rig.metric("flare_prompt_tokens_total") == 43


def test_message_boundaries_are_where_prompts_are_captured(states):
    rig = states
    rig.submit("a", prompt=50, output=2, boundaries=[20, 33])
    rig.settle()
    assert 33 in map(len, rig.device.cached)
    assert rig.device.opened == [(0, 0)]


@pytest.mark.parametrize("boundaries", [[3, 2], [0], [5], [2, 2]])
def test_boundaries_that_cannot_be_are_refused(rig, boundaries):
    rig.submit("bad", prompt=4, boundaries=boundaries)
    rig.submit("good")
    rig.settle()
    assert rig.refusal("bad").code == "invalid"
    assert rig.ending("good").finish_reason == "length"


@pytest.mark.parametrize("reason", ["abort", "stop"])
@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("kind", ["init", "prefill", "snapshot", "decode", "restore", "terminal_snapshot"])
def test_a_cancel_in_any_stage_gives_one_ending_and_holds_nothing(states, kind, finished, reason):
    rig = states
    if kind == "restore":
        rig.submit("before", prompt=40, output=3)
        rig.settle()
    rig.submit("a", prompt=45, output=6)
    run_until(rig, kind)
    if finished:
        rig.device.finish()
    for _ in range(2):
        rig.cancel("a", reason)
        rig.step(2)
    rig.device.automatic = True
    rig.submit("b", prompt=30)
    rig.settle()
    expected = "length" if kind == "terminal_snapshot" else reason
    assert rig.ending("a").finish_reason == expected
    assert rig.ending("b").finish_reason == "length"
    assert rig.device.held_pages() == 0
    assert rig.core.scheduler.resident_count == 0


def test_an_id_of_an_ended_request_waits_for_its_terminal_snapshot(states):
    rig = states
    rig.submit("a", output=3)
    run_until(rig, "terminal_snapshot")
    rig.device.scripts[30] = [70, 71]
    rig.submit("a", output=2, first=30)
    rig.step(2)
    assert rig.core.table.queued == 1
    rig.device.automatic = True
    rig.settle()
    assert rig.text("a")[-2:] == [70, 71]


@pytest.mark.parametrize("kind", ["init", "restore", "snapshot", "prefill", "decode"])
def test_a_state_graph_that_fails_ends_its_request_and_holds_nothing(states, kind):
    rig = states
    rig.submit("before", prompt=40, output=3)
    rig.settle()
    rig.submit("a", prompt=45 if kind == "restore" else 33, output=6, first=10 if kind == "restore" else 20)
    run_until(rig, kind)
    rig.device.error = "RuntimeError: broken"
    rig.device.finish()
    rig.device.automatic = True
    rig.settle()
    assert rig.ending("a").error == "RuntimeError: broken"
    assert rig.device.held_pages() == 0


def test_a_terminal_snapshot_that_fails_harms_nobody(states):
    rig = states
    rig.submit("a", output=3)
    run_until(rig, "terminal_snapshot")
    rig.device.error = "RuntimeError: broken"
    rig.device.finish()
    rig.device.automatic = True
    rig.settle()
    assert rig.ending("a").finish_reason == "length"
    assert rig.device.held_pages() == 0
    assert not rig.core.scheduler._state.unpublished_snapshots


def test_a_stop_leaves_a_terminal_snapshot_behind(states):
    rig = states
    rig.submit("a", output=3)
    run_until(rig, "terminal_snapshot")
    rig.worker.begin_stop()
    rig.step(2)
    rig.device.finish()
    rig.step(2)
    assert rig.worker.drained
    assert rig.device.held_pages() == 0


def test_a_round_queues_behind_another_that_follows_a_graph_without_output(states):
    rig = states
    rig.submit("before", output=6)
    rig.settle()
    rig.submit("a", prompt=30, output=9, first=20)
    run_until(rig, "snapshot")
    rig.device.finish()
    rig.step()
    assert rig.core.in_flight[0].plan.shape.kind.value == "decode"
    assert rig.worker.wait_ns() == 0, "nothing is to be written or sent, and yet it must plan once more"
    rig.step()
    assert len(rig.core.in_flight) == 2
    rig.device.automatic = True
    rig.settle()


def test_a_prompt_that_cannot_get_its_pages_waits_for_them(make_rig):
    rig = make_rig(states=True, pages=8)
    rig.device.automatic = False
    rig.submit("a", prompt=90, output=8)
    rig.submit("b", prompt=40, output=8, first=20)
    rig.step()
    assert [r.request_id for r in rig.journal.of(RequestAdmitted)] == ["a"]
    rig.device.automatic = True
    rig.settle()
    assert [r.request_id for r in rig.journal.of(RequestAdmitted)] == ["a", "b"]
    assert all(rig.ending(name).preemptions == 0 for name in "ab")


def test_a_waiting_head_is_not_tried_again_until_pages_come_back(make_rig, monkeypatch):
    rig = make_rig(states=True, pages=8)
    rig.device.automatic = False
    rig.submit("a", prompt=90, output=30)
    rig.step()
    calls = []
    match = rig.device.match_prefix
    monkeypatch.setattr(rig.device, "match_prefix", lambda prompt: calls.append(len(prompt)) or match(prompt))
    rig.submit("b", prompt=40, output=8, first=20)
    for _ in range(10):
        rig.device.finish()
        rig.step(2)
    assert calls.count(40) == 1
    rig.device.automatic = True
    rig.settle()
    assert rig.ending("b").finish_reason == "length"
