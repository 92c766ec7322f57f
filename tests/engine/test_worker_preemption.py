"""Preemption: missing pages stop one request for a while, its client sees one answer, and nothing thrashes."""

from __future__ import annotations

import msgspec
import pytest

from gpu.device import PagesExhausted
from service.ipc.messages import Sampling
from service.journal.calls import ADMIT
from service.journal.records import RequestAdmitted, SchedulerCalls

MS = 1_000_000


def long_script(first: int) -> list[int]:
    return [30 + (first + 3 * place) % 60 for place in range(500)]


@pytest.fixture
def narrow(make_rig):
    """A pool for one and a half long requests."""
    rig = make_rig(states=True, pages=24, slots=6, queue_limit=100)
    for first in range(10, 60):
        rig.device.scripts[first] = long_script(first)
    return rig


def two_long(rig, **more) -> None:
    rig.submit("a", prompt=60, output=190, first=10, **more)
    rig.submit("b", prompt=70, output=180, first=20, client=b"B", **more)


def test_a_preempted_request_resumes_and_its_client_sees_one_answer(narrow):
    two_long(narrow)
    narrow.settle()
    assert narrow.text("a") == long_script(10)[:190]
    assert narrow.text("b") == long_script(20)[:180]
    assert (narrow.ending("a").preemptions, narrow.ending("b").preemptions) == (0, 1)
    assert [message.finish_reason for message in narrow.tokens("b")[:-1]] == [None] * (len(narrow.tokens("b")) - 1)
    outputs = [message.output_tokens for message in narrow.tokens("b")]
    assert outputs == sorted(outputs)
    assert all(message.prompt_tokens == 70 for message in narrow.tokens("b") if message.token_ids)
    assert [r.request_id for r in narrow.journal.of(RequestAdmitted)] == ["a", "b"]
    assert narrow.device.held_pages() == 0


def test_it_resumes_from_its_terminal_snapshot_with_one_token_to_compute(narrow):
    two_long(narrow)
    narrow.settle()
    _, cached = narrow.device.opened[-1]
    produced = [
        lane for plan in narrow.plans() for lane in plan.lanes if lane.request_id == "b" and lane.role == "prefill"
    ]
    assert cached > 70
    assert [lane.prompt_tokens for lane in produced] == [70, 1]


def test_token_counts_and_phases_add_up(narrow):
    two_long(narrow)
    narrow.settle()
    lanes = [lane for done in narrow.completions() for lane in done.lanes]
    assert sum(lane.committed_tokens for lane in lanes) == 370 == narrow.metric("flare_output_tokens_total")
    assert narrow.metric("flare_requests_total", outcome="length") == 2
    assert narrow.metric("flare_time_to_first_token_seconds_count") == 2
    assert narrow.metric("flare_queue_seconds_count") == 2
    hits_and_misses = [narrow.metric("flare_prefix_cache_tokens_total", result=r) for r in ("hit", "miss")]
    assert hits_and_misses == [0, 130]
    for name in "ab":
        done, arrived = narrow.ending(name), narrow.arrived(name)
        parts = done.queue_ns + done.prefill_ns + done.decode_ns + done.publish_ns
        assert parts + arrived.tokenize_ns == done.finished_ns - arrived.arrived_ns


def test_two_long_ones_and_a_stream_of_short_ones_all_end_without_thrashing(narrow):
    two_long(narrow)
    for number in range(60):
        narrow.submit(f"s{number}", prompt=5 + number % 40, output=3 + number % 20, first=30 + number % 30)
        narrow.step(3)
    narrow.settle()
    endings = [narrow.ending(name) for name in ["a", "b", *(f"s{n}" for n in range(60))]]
    assert {ending.finish_reason for ending in endings} == {"length"}
    assert max(ending.preemptions for ending in endings) == 1
    assert 1 <= sum(ending.preemptions for ending in endings) <= 10
    assert narrow.text("a") == long_script(10)[:190]
    assert narrow.text("b") == long_script(20)[:180]


def run_until_preempted(rig) -> None:
    """Until b waits in the queue again."""
    for _ in range(2000):
        rig.step()
        request = rig.core.table.get("b")
        if request is not None and request.preemptions and request.handle is None:
            return
    raise AssertionError("b is not preempted")


def run_until_retiring(rig) -> None:
    """Until b's terminal snapshot is in flight, in whatever graph."""
    rig.device.automatic = False
    for _ in range(2000):
        rig.step()
        lanes = [lane for frame in rig.core.in_flight for lane in frame.plan.lanes]
        if ("b", "terminal") in [(lane.request_id, lane.role.value) for lane in lanes]:
            return
        rig.device.finish()
    raise AssertionError("b does not retire")


@pytest.mark.parametrize("reach", [run_until_preempted, run_until_retiring])
@pytest.mark.parametrize("reason", ["abort", "stop"])
def test_a_cancel_while_preempted_ends_it_once_and_holds_nothing(narrow, reach, reason):
    two_long(narrow)
    reach(narrow)
    told = narrow.tokens("b")[-1].output_tokens
    narrow.cancel("b", reason, client=b"B")
    narrow.device.automatic = True
    narrow.settle()
    assert narrow.ending("b").finish_reason == reason
    assert narrow.ending("b").output_tokens == told
    assert narrow.ending("a").finish_reason == "length"
    assert narrow.device.held_pages() == 0


def test_a_preempted_request_comes_before_those_that_wait(narrow):
    two_long(narrow)
    for number in range(2):
        narrow.submit(f"s{number}", prompt=260, output=20, first=30)
    run_until_preempted(narrow)
    assert narrow.core.table.head.request_id == "b"
    assert narrow.core.table.queued == 3
    narrow.settle()


def test_a_preempted_request_waits_for_all_that_everybody_may_still_need(narrow):
    narrow.submit("a", prompt=60, output=190, first=10)
    narrow.submit("b", prompt=20, output=180, first=20, client=b"B")
    while not narrow.text("b"):
        narrow.step()
    narrow.core.scheduler.preempt(narrow.core.table.get("b").handle)
    run_until_preempted(narrow)
    assert narrow.device.free_pages() > 12, "what it needs now is there"
    while narrow.core.table.get("a") is not None:
        assert narrow.core.table.get("b").handle is None, "both cannot fit together to their ends"
        narrow.step()
    narrow.settle()
    assert narrow.text("b") == long_script(20)[:180]


def test_a_terminal_snapshot_that_fails_costs_a_preempted_request_only_time(narrow):
    two_long(narrow)
    run_until_retiring(narrow)
    narrow.device.error = "RuntimeError: broken"
    narrow.device.finish()
    narrow.device.automatic = True
    narrow.settle()
    assert narrow.text("b") == long_script(20)[:180]
    assert narrow.ending("b").preemptions == 1


def test_a_frame_refused_for_want_of_pages_sends_its_requests_back_to_the_queue(narrow):
    narrow.submit("a", prompt=60, output=50, first=10)
    narrow.step(6)
    narrow.device.refuse("none left", PagesExhausted)
    narrow.settle()
    assert narrow.text("a") == long_script(10)[:50]
    assert narrow.ending("a").preemptions == 1
    assert narrow.device.held_pages() == 0


def test_a_device_that_refuses_for_ever_ends_the_request_with_an_error(narrow):
    narrow.device.refusals = [PagesExhausted("none left")] * 40
    narrow.submit("a", prompt=60, output=50, first=10)
    narrow.settle()
    assert "none left" in narrow.ending("a").error
    assert narrow.device.held_pages() == 0


def test_without_a_seed_every_life_draws_from_the_same_one(narrow):
    seeds = []
    opened = narrow.device.open_request

    def noted(slot, prompt, most, sampling, **more):
        seeds.append((sampling.seed, sampling.reproducible))
        opened(slot, prompt, most, sampling, **more)

    narrow.device.open_request = noted
    two_long(narrow, sampling=Sampling(1.0))
    narrow.settle()
    assert len(seeds) >= 3
    assert len(set(seeds)) == 2
    assert not any(reproducible for _, reproducible in seeds)


def test_nothing_is_preempted_where_pages_are_reserved_whole(make_rig):
    rig = make_rig(pages=24)
    two_long(rig)
    rig.settle()
    assert [rig.ending(name).preemptions for name in "ab"] == [0, 0]


def test_each_life_is_admitted_with_the_time_since_the_request_came(narrow):
    """So that its age counts on: what the scheduler reckons its arrival from is the same in both lives."""
    narrow.clock.advance(50 * MS)
    came = {"a": narrow.clock() - 20 * MS, "b": narrow.clock() - 5 * MS}
    narrow.submit("a", prompt=60, output=190, first=10, arrived_ns=came["a"])
    narrow.submit("b", prompt=70, output=180, first=20, client=b"B", arrived_ns=came["b"])
    narrow.settle()
    found = {name: [] for name in came}
    now_ns = 0
    for entry in (
        entry for record in narrow.journal.of(SchedulerCalls) for entry in msgspec.msgpack.decode(record.data)
    ):
        if isinstance(entry, int):
            now_ns = entry
        elif entry[0] == ADMIT:
            found[entry[1]["request_id"]].append((now_ns - entry[1]["waited_ns"], entry[1]["waited_ns"]))
    assert {name: {came_ns for came_ns, _ in lives} for name, lives in found.items()} == {
        name: {came_ns} for name, came_ns in came.items()
    }
    first, *later = (waited_ns for _, waited_ns in found["b"])
    assert 5 * MS <= first < min(later)
