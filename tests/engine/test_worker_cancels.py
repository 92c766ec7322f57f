"""Cancelled requests and vanished clients in the worker loop: one ending each, and nothing held."""

from __future__ import annotations

import pytest

from service.journal.records import OutputPublished

MS = 1_000_000


def reach_queued(rig):
    for name in ("x", "y"):
        rig.submit(name, output=100)
    rig.submit("a")
    rig.device.automatic = False
    rig.step()
    assert rig.core.table.queued == 1


def reach_admitted(rig):
    rig.device.automatic = False
    rig.submit("x")
    rig.submit("a", prompt=200)
    rig.step()
    assert rig.core.in_flight[-1].plan.lanes[0].request_id != "a" or len(rig.device.frames) == 1


def reach_running(rig):
    rig.device.automatic = False
    rig.submit("a")
    rig.step()
    assert rig.core.in_flight


def reach_token(rig):
    reach_running(rig)
    rig.device.finish()


def reach_last_token(rig):
    rig.device.automatic = False
    rig.submit("a", output=1)
    rig.step()
    rig.device.finish()


PHASES = {
    "queued": (reach_queued, {"slots": 2}),
    "admitted": (reach_admitted, {}),
    "running": (reach_running, {}),
    "with a token": (reach_token, {}),
    "on the last token": (reach_last_token, {}),
}


@pytest.mark.parametrize("reason", ["abort", "stop"])
@pytest.mark.parametrize("cancels", [1, 2])
@pytest.mark.parametrize("phase", PHASES)
def test_a_cancel_in_any_phase_gives_exactly_one_terminal_state(make_rig, phase, cancels, reason):
    reach, device = PHASES[phase]
    rig = make_rig(**device)
    reach(rig)
    for _ in range(cancels):
        rig.cancel("a", reason)
    rig.step(2)
    rig.cancel("a", reason)
    rig.step(2)
    expected = "length" if phase == "on the last token" else reason
    assert rig.ending("a").finish_reason == expected
    rig.device.automatic = True
    rig.submit("b", client=b"B")
    for name in ("x", "y"):
        rig.cancel(name)
    rig.settle()
    assert rig.ending("b").finish_reason == "length"
    assert rig.device.held_pages() == 0
    assert not [plan for plan in rig.plans()[1:] for lane in plan.lanes if lane.request_id == "a"]


def test_tokens_before_an_abort_stay_counted_and_one_in_the_running_graph_does_not(rig):
    rig.device.automatic = False
    rig.submit("a", output=100)
    rig.step()
    for _ in range(10):
        rig.device.finish()
        rig.step()
    rig.cancel("a")
    rig.step()
    rig.device.finish()
    rig.step(3)
    assert len(rig.text("a")) == 10
    assert rig.ending("a").output_tokens == 10
    assert rig.metric("flare_output_tokens_total") == 10
    assert sum(lane.committed_tokens for done in rig.completions() for lane in done.lanes) == 10


def test_a_cancel_frees_the_pages_when_the_running_graph_ends(rig):
    rig.device.automatic = False
    rig.submit("a", output=60)
    rig.step()
    rig.cancel("a")
    rig.step()
    assert rig.ending
    assert rig.metric("flare_requests_running") == 0
    assert rig.metric("flare_kv_pages_used") == 4
    rig.device.finish()
    rig.step()
    assert rig.metric("flare_kv_pages_used") == 0
    assert rig.device.running is None


def test_another_clients_cancel_and_an_unknown_id_change_nothing(rig):
    rig.device.automatic = False
    rig.submit("a")
    rig.step()
    rig.cancel("a", client=b"B")
    rig.cancel("nobody")
    rig.step()
    rig.device.automatic = True
    rig.settle()
    assert rig.ending("a").finish_reason == "length"


def test_a_request_id_is_free_again_after_a_cancel_even_while_its_graph_runs(rig):
    rig.device.automatic = False
    rig.submit("a", output=2)
    rig.step()
    rig.cancel("a")
    rig.submit("a", output=2, first=30)
    rig.device.scripts[30] = [60, 61]
    rig.step()
    rig.device.automatic = True
    rig.settle()
    assert [m.finish_reason for m in rig.tokens("a") if m.finish_reason] == ["abort", "length"]
    assert rig.text("a") == [60, 61]
    assert rig.tokens("a")[-1].prompt_tokens == 4  # the cancelled one's prompt is not the new one's


def test_a_graph_that_fails_under_a_cancelled_request_gives_it_no_second_ending(rig):
    reach_running(rig)
    rig.cancel("a")
    rig.step()
    rig.device.error = "broken"
    rig.device.finish()
    rig.device.automatic = True
    rig.settle()
    assert rig.ending("a").finish_reason == "abort"


def test_a_vanished_clients_requests_stop_costing(make_rig):
    rig = make_rig(slots=2)
    rig.device.automatic = False
    for name in ("a", "b", "c"):
        rig.submit(name, output=50)
    rig.submit("other", client=b"B")
    rig.step()
    rig.transport.gone.add(b"A")
    rig.clock.advance(600 * MS)
    rig.step()  # no tokens to send: the look each half second notices
    rig.device.automatic = True
    rig.settle()
    for name in ("a", "b", "c"):
        assert rig.ending(name).finish_reason == "abort"
        assert rig.ending(name).error == "the client went away"
    assert rig.ending("other").finish_reason == "length"
    assert len(rig.plans()) == 1 + 4
    assert rig.core.clients == {b"B"}


def test_tokens_that_reach_nobody_are_not_reported_as_published(rig):
    rig.submit("a", output=50)
    rig.step()
    rig.transport.gone.add(b"A")
    rig.step(2)
    assert rig.journal.of(OutputPublished) == []
    assert rig.ending("a").finish_reason == "abort"
    assert rig.ending("a").output_tokens == 1
    assert rig.core.table.resident == 0


def test_a_request_that_ends_as_its_client_vanishes_keeps_its_own_ending(rig):
    rig.submit("a", output=1)
    rig.step()
    rig.transport.gone.add(b"A")
    rig.step(2)
    assert rig.ending("a").finish_reason == "length"
