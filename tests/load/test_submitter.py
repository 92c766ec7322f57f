"""The submitter against an engine's socket: requests kept open, tokens counted, engines that come and go."""

from __future__ import annotations

import threading

import pytest
from waiting import wait_until

from service.ipc.messages import Cancel, Refused
from service.load.errors import LoadRefused, LoadStalled
from service.load.submitter import LOST, Load, Submitter
from tests.load.conftest import ScriptedEngine


@pytest.fixture
def submitter(engine, endpoint):
    with Submitter(endpoint, Load(lanes=3, prompt_tokens=5, output_tokens=9)) as found:
        wait_until(lambda: engine.read() or found.run_id, "the engine's answer")
        yield found


def tokens_of(submitter):
    return [(found.tokens, found.ended) for found in submitter.received().values()]


def test_so_many_requests_are_open_and_an_ended_one_is_replaced(engine, submitter):
    engine.read()
    assert engine.submitted == []
    submitter.begin()
    engine.wait_submitted(3)
    engine.tokens(1, 4)
    engine.tokens(1, 1, "length")
    engine.wait_submitted(4)
    assert len({request.request_id for request in engine.submitted}) == 4
    assert {(len(r.prompt_token_ids), r.max_output_tokens) for r in engine.submitted} == {(5, 9)}
    assert tokens_of(submitter) == [(0, None), (5, "length"), (0, None), (0, None)]
    assert submitter.tokens == 5


def test_tokens_count_where_they_came_and_are_waited_for(engine, submitter):
    submitter.begin()
    engine.wait_submitted(3)
    for number, count in ((0, 2), (2, 3), (0, 1)):
        submitter.window()
        engine.tokens(number, count)
        wait_until(lambda n=count: submitter._window.tokens == n, "the tokens")
    assert tokens_of(submitter) == [(3, None), (0, None), (3, None)]
    with pytest.raises(LoadStalled, match="in vain"):
        submitter.wait_tokens(1, seconds=0.05)


def test_a_gap_needs_both_of_its_ends_in_the_window(engine, submitter):
    submitter.begin()
    engine.wait_submitted(3)
    engine.tokens(0)
    wait_until(lambda: submitter.tokens == 1, "the token")
    first = submitter.window()
    for _ in range(3):
        engine.tokens(0)
    engine.tokens(1)
    wait_until(lambda: submitter.tokens == 5, "the tokens")
    second = submitter.window()
    assert (first.tokens, len(first.gaps_ms)) == (1, 0)
    assert (second.tokens, len(second.gaps_ms)) == (4, 2)
    assert all(0 <= gap < second.seconds * 1e3 for gap in second.gaps_ms)


def test_a_pause_returns_when_nothing_is_open_and_nothing_follows(engine, submitter):
    submitter.begin()
    engine.wait_submitted(3)
    pausing = threading.Thread(target=submitter.pause, kwargs={"cancel": True})
    pausing.start()
    wait_until(lambda: engine.read() or len(engine.others) == 3, "three cancels")
    assert engine.others == [Cancel(request.request_id, "abort") for request in engine.submitted]
    for number in range(3):
        assert pausing.is_alive()
        engine.tokens(number, 0, "abort")
    pausing.join(20)
    assert not pausing.is_alive()
    assert tokens_of(submitter) == [(0, "abort")] * 3
    submitter.begin()
    engine.wait_submitted(6)


def test_an_engine_that_goes_loses_its_requests_and_the_next_one_gets_others(engine, submitter, endpoint):
    submitter.begin()
    engine.wait_submitted(3)
    engine.tokens(0, 2)
    engine.tokens(1, 1, "length")
    engine.close()
    wait_until(lambda: [ended for _, ended in tokens_of(submitter)].count(LOST) >= 2, "the loss")
    assert submitter.run_id is None
    following = ScriptedEngine(endpoint, "run-2")
    try:
        wait_until(lambda: following.read() or len(following.submitted) >= 3, "requests to the next engine")
        assert submitter.wait_ready(other_than="run-1") == "run-2"
        found = submitter.received()
        assert {found[request.request_id].run_id for request in following.submitted} == {"run-2"}
        assert [(r.tokens, r.ended) for r in found.values() if r.run_id == "run-1"][:2] == [(2, LOST), (1, "length")]
    finally:
        following.close()


def test_a_refusal_ends_the_load_with_its_reason(engine, submitter):
    submitter.begin()
    engine.wait_submitted(3)
    engine.say(Refused(engine.submitted[0].request_id, "too_long", "9 tokens do not fit"))
    with pytest.raises(LoadRefused, match="too_long: 9 tokens do not fit"):
        submitter.wait_tokens(1)
