"""Requests through the worker loop: endings, admission, refusals, failures, and all of it at random."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.ipc.messages import Accepted, EngineReady, Hello, Sampling
from service.journal.records import LaneOutcome, OutputPublished, RequestAdmitted, RequestOptions, RunStarted
from service.telemetry.span_ids import request_ids

MS = 1_000_000


def test_a_request_runs_to_its_output_limit(rig):
    rig.submit("a", output=3)
    rig.settle()
    assert rig.text("a") == [50, 50, 50]
    assert rig.ending("a").finish_reason == "length"
    assert rig.tokens("a")[-1].prompt_tokens == 4
    assert rig.device.held_pages() == 0


def test_a_stop_token_ends_the_answer_is_counted_and_not_published(rig):
    rig.device.scripts[20] = [51, 52, 1]
    rig.submit("a", first=20, output=100)
    rig.settle()
    assert rig.text("a") == [51, 52]
    assert rig.ending("a").finish_reason == "stop"
    assert rig.ending("a").output_tokens == 3
    assert rig.metric("flare_output_tokens_total") == 3


def test_an_answer_that_is_only_a_stop_token_publishes_no_output(rig):
    rig.device.scripts[20] = [1]
    rig.submit("a", first=20)
    rig.settle()
    assert rig.text("a") == []
    assert rig.ending("a").finish_reason == "stop"
    assert rig.journal.of(OutputPublished) == []
    assert rig.metric("flare_time_to_first_token_seconds_count") == 1


def test_one_output_token_tells_the_whole_prompt_was_used(rig):
    rig.submit("a", prompt=100, output=1)
    rig.settle()
    assert rig.tokens("a")[-1].prompt_tokens == 100
    assert rig.ending("a").finish_reason == "length"


def test_a_request_larger_than_the_pool_is_refused_and_the_next_one_is_served(make_rig):
    rig = make_rig(pages=8)
    rig.submit("big", prompt=130, output=10)
    rig.submit("tiny")
    rig.settle()
    assert rig.refusal("big").code == "too_long"
    assert "KV pages" in rig.refusal("big").message
    assert rig.ending("tiny").finish_reason == "length"
    assert rig.metric("flare_requests_total", outcome="refused") == 1


def test_a_request_that_only_the_device_finds_too_large_is_refused_at_once(rig, monkeypatch):
    monkeypatch.setattr("service.engine.submission._refusal", lambda core, message: None)
    rig.submit("big", prompt=480, output=1000)
    monkeypatch.setattr("service.engine.admission.pages_wanted", lambda core, request, passes: 0)
    rig.submit("tiny")
    rig.settle()
    assert rig.refusal("big").code == "too_long"
    assert rig.ending("big").finish_reason == "error"
    assert rig.ending("tiny").finish_reason == "length"


def test_the_head_of_the_queue_waits_for_pages_and_the_gauge_shows_how_long(make_rig):
    rig = make_rig(pages=8)
    rig.device.automatic = False
    rig.submit("a", prompt=64, output=32)
    rig.submit("b", prompt=64, output=32)
    rig.submit("c")
    rig.step()
    assert rig.metric("flare_requests_running") == 1
    assert rig.metric("flare_requests_waiting") == 2
    rig.clock.advance(2_000 * MS)
    rig.step()
    assert rig.metric("flare_oldest_wait_seconds") == pytest.approx(2.0)
    rig.device.automatic = True
    rig.settle()
    admitted = [r.request_id for r in rig.journal.of(RequestAdmitted)]
    assert admitted == ["a", "b", "c"]
    assert rig.metric("flare_oldest_wait_seconds") == 0
    assert rig.metric("flare_requests_waiting") == 0


def test_a_request_that_is_admitted_but_never_chosen_counts_as_waiting(rig):
    rig.device.automatic = False
    rig.submit("a", prompt=64, output=32)
    rig.submit("b", prompt=64, output=32)
    rig.step()
    assert [r.request_id for r in rig.journal.of(RequestAdmitted)] == ["a", "b"]
    assert (rig.metric("flare_requests_running"), rig.metric("flare_requests_waiting")) == (1, 1)
    rig.clock.advance(3_000 * MS)
    rig.step()
    assert rig.metric("flare_oldest_wait_seconds") == pytest.approx(3.0)


def test_a_full_queue_refuses(make_rig):
    rig = make_rig(slots=1, queue_limit=2)
    rig.device.automatic = False
    for name in "abcd":
        rig.submit(name)
        rig.step()
    assert rig.refusal("d").code == "queue_full"
    assert [e.request_id for _, e in rig.transport.sent if isinstance(e, Accepted)] == ["a", "b", "c"]


def test_an_open_request_id_is_a_duplicate(rig):
    rig.device.automatic = False
    rig.submit("a")
    rig.submit("a")
    rig.step()
    assert rig.refusal("a").code == "duplicate"
    rig.device.automatic = True
    rig.settle()
    assert rig.ending("a").finish_reason == "length"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"token_ids": []}, "invalid"),
        ({"token_ids": [100]}, "invalid"),
        ({"token_ids": [-1]}, "invalid"),
        ({"output": 0}, "invalid"),
        ({"output": -1}, "invalid"),
        ({"output": 2**63}, "invalid"),
        ({"output": 509}, "too_long"),
        ({"prompt": 512, "output": 1}, "too_long"),
        ({"sampling": Sampling(float("nan"))}, "invalid"),
        ({"sampling": Sampling(float("inf"))}, "invalid"),
        ({"sampling": Sampling(-1.0)}, "invalid"),
        ({"sampling": Sampling(1.0, 0.0)}, "invalid"),
        ({"sampling": Sampling(1.0, float("nan"))}, "invalid"),
    ],
)
def test_a_request_that_cannot_run_is_refused_and_the_engine_goes_on(rig, change, code):
    rig.submit("bad", **change)
    rig.submit("good")
    rig.settle()
    assert rig.refusal("bad").code == code
    assert rig.ending("good").finish_reason == "length"


def test_a_request_that_exactly_fills_the_context_runs(rig):
    rig.submit("a", prompt=500, output=12)
    rig.settle()
    assert rig.ending("a").output_tokens == 12


def test_a_hello_is_answered_with_the_engines_limits(rig):
    rig.transport.inbox.append((b"A", Hello("w")))
    rig.step()
    assert rig.transport.sent == [(b"A", EngineReady("run-1", rig.core.ready.pid, 1, 512, 64, 16, 100))]
    assert isinstance(rig.journal.records[0], RunStarted)


def test_the_callers_trace_context_is_kept(rig):
    rig.submit("a", traceparent=f"00-{'a' * 32}-{'b' * 16}-00", tracestate="k=v")
    rig.settle()
    record = rig.arrived("a")
    assert (record.trace_id, record.parent_span_id) == ("a" * 32, "b" * 16)
    assert (record.trace_flags, record.trace_state) == (0, "k=v")


def test_a_request_without_a_caller_has_a_trace_of_its_own_which_follows_from_its_id(rig):
    rig.submit("a", tracestate="k=v")
    rig.submit("b")
    rig.settle()
    for name in ("a", "b"):
        record = rig.arrived(name)
        assert record.trace_id == request_ids("run-1", name, None).trace_id.hex()
        assert (record.parent_span_id, record.trace_flags, record.trace_state) == (None, 1, None)


def test_what_a_request_asked_for_is_written_down(rig):
    sampling = Sampling(0.5, 0.9, 7, 40, presence_penalty=0.25, frequency_penalty=-0.5)
    rig.submit("a", sampling=sampling, operation="chat", stream=True, choices=3)
    rig.settle()
    assert rig.arrived("a").operation == "chat"
    assert rig.arrived("a").options == RequestOptions(0.5, 0.9, 40, 0.25, -0.5, 7, True, 3)


def test_a_failed_graph_ends_its_requests_with_an_error_and_the_engine_lives(rig):
    rig.device.automatic = False
    rig.submit("a", output=5)
    rig.step()
    rig.device.error = "RuntimeError: out of memory"
    rig.device.finish()
    rig.step()
    rig.device.automatic = True
    rig.submit("b")
    rig.settle()
    assert rig.ending("a").finish_reason == "error"
    assert rig.ending("a").error == "RuntimeError: out of memory"
    assert rig.ending("b").finish_reason == "length"
    assert rig.completions()[0].outcome == "failed"
    assert rig.completions()[0].estimate_ns == 0
    assert rig.device.held_pages() == 0


def test_a_failed_lane_ends_its_own_request_only(rig):
    rig.device.automatic = False
    rig.submit("a", output=9)
    rig.submit("b", output=9)
    rig.step()
    while len(rig.core.in_flight[-1].plan.lanes) < 2:
        rig.device.finish()
        rig.step()
    rig.device.lane_errors[rig.core.table.get("a").handle.slot] = "not finite"
    rig.device.finish()
    rig.device.automatic = True
    rig.settle()
    assert (rig.ending("a").finish_reason, rig.ending("a").error) == ("error", "not finite")
    assert (rig.ending("b").finish_reason, rig.ending("b").output_tokens) == ("length", 9)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32))
def test_a_thousand_random_submits_and_aborts_leak_no_page_and_every_count_agrees(tmp_path_factory, rig_class, seed):

    random_ = random.Random(seed)
    rig = rig_class(tmp_path_factory.mktemp("rig"), pages=40, slots=5)
    rig.device.automatic = False
    names = []
    for number in range(random_.choice([50, 1000 if seed % 10 == 0 else 120])):
        match random_.randrange(5):
            case 0 | 1:
                names.append(f"r{number}")
                rig.device.scripts[number % 90 + 5] = random_.choices([1, 50, 51], [1, 5, 5], k=6)
                rig.submit(names[-1], random_.randrange(1, 200), random_.randrange(1, 30), first=number % 90 + 5)
            case 2 if names:
                rig.cancel(random_.choice(names), random_.choice(["abort", "stop"]))
            case _:
                if rig.device.running is not None:
                    rig.device.error = "broken" if random_.random() < 0.05 else None
                    rig.device.finish(random_.randrange(1, 50 * MS))
        rig.step()
    rig.device.automatic = True
    rig.settle(100_000)
    assert rig.device.held_pages() == 0
    assert rig.metric("flare_kv_pages_used") == 0
    accepted = [e.request_id for _, e in rig.transport.sent if isinstance(e, Accepted)]
    endings = [rig.ending(name) for name in accepted]
    outcomes = [e.finish_reason for e in endings]
    for outcome in ("stop", "length", "abort", "error"):
        assert rig.metric("flare_requests_total", outcome=outcome) == outcomes.count(outcome)
    assert rig.metric("flare_requests_total", outcome="refused") == len(names) - len(accepted)
    committed = sum(lane.committed_tokens for done in rig.completions() for lane in done.lanes)
    assert rig.metric("flare_output_tokens_total") == committed == sum(e.output_tokens for e in endings)
    consumed = sum(lane.consumed_prompt_tokens for done in rig.completions() for lane in done.lanes)
    assert rig.metric("flare_prompt_tokens_total") == consumed
    first = sum(e.first_output_ns is not None for e in endings)
    assert rig.metric("flare_time_to_first_token_seconds_count") == first
    assert rig.metric("flare_request_seconds_count") == len(endings)
    assert len(rig.plans()) == len(rig.completions())
    assert all(isinstance(lane, LaneOutcome) for done in rig.completions() for lane in done.lanes)
