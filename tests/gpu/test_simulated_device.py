"""A device whose frames only take time: how much was asked for, in which order, and which tokens come out."""

from __future__ import annotations

import collections
import queue
import threading

import numpy as np
import pytest
from device_driver import DeviceDriver, decode, prefill, round_of, state_graph

from gpu.device import (
    DeviceLimits,
    Frame,
    FrameLane,
    InvalidFrame,
    InvalidRequest,
    InvalidSettings,
    PagesExhausted,
    RequestExceedsPool,
    SamplingParameters,
)
from gpu.simulated_device import SimulatedDevice, create_simulated_device
from scheduler.shapes import Allocation, GraphKind, GraphShape

MS = 1_000_000
START = 1_000 * MS
WORDS = range(10, 30)
MIXED = GraphShape(GraphKind.MIXED, 2, prefill_capacity=16)
SEVERAL = GraphShape(GraphKind.MIXED, 4, prefill_capacity=16, prompt_rows=2)


class Waiter:
    """A clock that moves when the test lets the running frame end; `deadlines`: what was waited for."""

    def __init__(self, held: bool) -> None:
        self.now_ns = START
        self.deadlines: list[int] = []
        self.started: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.allowed = threading.Semaphore(0)
        self.held = held

    def clock(self) -> int:
        return self.now_ns

    def wait_until(self, deadline_ns: int) -> None:
        self.deadlines.append(deadline_ns)
        self.started.put(deadline_ns)
        if self.held:
            assert self.allowed.acquire(timeout=60)
        self.now_ns = max(self.now_ns, deadline_ns)


class Luck:
    """Accepts as many drafts as the number of output tokens says, up to 3."""

    def survival(self, seed):
        return np.array([0.8, 0.4, 0.1])

    def accepted(self, seed, output_tokens):
        return bytes(min(n, 3) for n in range(output_tokens + 1))


TIMES = {
    prefill(16): lambda context: 4.0,
    prefill(64): lambda context: 8.0,
    decode(1): lambda context: 2.0,
    decode(4): lambda context: 2.5 + context / 100,
    MIXED: lambda context: 6.0,
    SEVERAL: lambda context: 6.5,
}


@pytest.fixture
def make():
    """Devices with their waiters, stopped after the test."""
    made = []

    def build(held=False, times=TIMES, luck=None, pages=16, drafts=0):
        waiter = Waiter(held)
        limits = DeviceLimits(128, pages, 16, 100, 4, draft_tokens=drafts, learned_drafts=drafts > 0)
        device = SimulatedDevice(times, limits, WORDS, luck, clock=waiter.clock, wait_until=waiter.wait_until)
        made.append((device, waiter))
        return DeviceDriver(device), waiter

    yield build
    for device, waiter in made:
        for _ in range(4):
            waiter.allowed.release()
        device.shut_down(abandon=False)


def opened(driver, slot=0, prompt=5, seed=1, **options):
    driver.device.open_request(slot, list(range(prompt)), 20, SamplingParameters(seed=seed, **options))


def answer(driver, slot, count):
    """The next `count` tokens of a request whose prompt is read."""
    return [driver.run(decode(1), (slot, 1)).lanes[0].emitted_tokens[0] for _ in range(count)]


def test_a_frame_takes_its_programs_time_at_the_mean_context_of_its_decoders(make):
    driver, waiter = make()
    opened(driver, 0, prompt=5)
    opened(driver, 1, prompt=15)
    first = driver.run(prefill(16), (0, 5))
    assert (first.started_ns, first.completed_ns, first.device_ns) == (START, START + 4 * MS, 4 * MS)
    driver.run(prefill(64), (1, 15))
    result = driver.run(decode(4), (0, 1), (1, 1))
    assert result.device_ns == round(2.6 * MS)
    assert waiter.deadlines == [START + 4 * MS, START + 12 * MS, START + 12 * MS + result.device_ns]
    assert driver.device.busy_ns() == 12 * MS + result.device_ns


def test_a_queued_frame_starts_when_the_one_before_it_ends(make):
    driver, waiter = make(held=True)
    opened(driver)
    driver.submit(prefill(16), (0, 5))
    waiter.allowed.release()
    driver.wait()
    fences = [driver.submit(decode(1), (0, 1)) for _ in range(2)]
    assert waiter.started.get(timeout=60) == START + 4 * MS
    assert waiter.started.get(timeout=60) == START + 6 * MS
    assert waiter.started.empty()
    assert driver.device.collect() is None
    waiter.allowed.release()
    waiter.allowed.release()
    first, second = driver.wait(), driver.wait()
    assert [first.fence, second.fence] == fences
    assert (second.started_ns, second.completed_ns) == (first.completed_ns, first.completed_ns + 2 * MS)


def test_a_frame_on_an_idle_device_starts_when_it_is_submitted(make):
    driver, waiter = make()
    opened(driver)
    driver.run(prefill(16), (0, 5))
    waiter.now_ns += 50 * MS
    assert driver.run(decode(1), (0, 1)).started_ns == START + 54 * MS


def test_tokens_are_plain_ids_and_depend_on_seed_and_position_alone(make):
    driver, _ = make()
    for slot, seed in enumerate((7, 8, 7)):
        opened(driver, slot, prompt=5 + slot, seed=seed)
    texts = []
    for slot in range(3):
        first = driver.run(prefill(16), (slot, 5 + slot)).lanes[0]
        assert first.consumed_prompt_tokens == 5 + slot
        texts.append([*first.emitted_tokens, *answer(driver, slot, 12)])
    assert texts[0] == texts[2] != texts[1]
    assert set(texts[0]) | set(texts[1]) <= set(WORDS)
    assert len(set(texts[0])) > 4


def test_a_prompt_in_chunks_emits_at_its_end_and_beside_decoders(make):
    driver, _ = make()
    opened(driver, 0, prompt=20)
    opened(driver, 1)
    driver.run(prefill(16), (1, 5))
    assert driver.run(prefill(16), (0, 16)).lanes[0].emitted_tokens == ()
    prompt, decoder = driver.run(MIXED, (0, 4), (1, 1)).lanes
    assert (prompt.consumed_prompt_tokens, decoder.consumed_prompt_tokens) == (4, 0)
    assert len(prompt.emitted_tokens) == len(decoder.emitted_tokens) == 1


def test_several_prompts_ride_in_the_programs_one_time(make):
    driver, _ = make()
    for slot, prompt in ((0, 20), (1, 5), (2, 7)):
        opened(driver, slot, prompt)
    driver.run(prefill(16), (1, 5))
    frame = driver.run(SEVERAL, (0, 9), (1, 1), (2, 7))
    assert frame.device_ns == 6.5 * MS
    assert [lane.consumed_prompt_tokens for lane in frame.lanes] == [9, 0, 7]
    assert [len(lane.emitted_tokens) for lane in frame.lanes] == [0, 1, 1]
    opened(driver, 3, 9)
    with pytest.raises(InvalidFrame, match="takes 1 with 16"):
        driver.submit(MIXED, (0, 4), (3, 9))


def test_tokens_are_spread_evenly(make):
    driver, _ = make()
    counts = collections.Counter()
    for seed in range(40):
        opened(driver, 0, seed=seed)
        counts.update(driver.run(prefill(16), (0, 5)).lanes[0].emitted_tokens)
        counts.update(answer(driver, 0, 9))
        driver.device.close_request(0)
    assert set(counts) == set(WORDS)
    assert max(counts.values()) < 50  # 20 expected


def test_log_probabilities_are_those_of_equal_chances(make):
    driver, _ = make()
    opened(driver, 0, logprobs=3)
    lane = driver.run(prefill(16), (0, 5)).lanes[0]
    (told,) = lane.logprobs
    assert told.token_id == lane.emitted_tokens[0] == told.top[0][0]
    assert told.logprob == pytest.approx(-np.log(20))
    assert len({token for token, _ in told.top}) == 3


def test_rounds_accept_what_the_luck_says_and_report_it(make):
    rounds = {
        prefill(16): lambda context: 1.0,
        round_of(1, 0): lambda context: 2.0,
        round_of(2, 3): lambda context: 3.0,
    }
    driver, _ = make(times=rounds, luck=Luck(), drafts=3)
    plain, drafted = 0, 1
    for slot in (plain, drafted):
        opened(driver, slot, seed=5)
        driver.run(prefill(16), (slot, 5))
    tokens = [driver.run(round_of(1, 0), (plain, 1)).lanes[0].emitted_tokens[0] for _ in range(6)]
    first = driver.run(round_of(2, 3), (drafted, 4))
    second = driver.run(round_of(2, 3), (drafted, 3))
    lanes = [first.lanes[0], second.lanes[0]]
    assert [(lane.accepted_tokens, lane.offered_tokens) for lane in lanes] == [(1, 3), (2, 2)]
    assert [*lanes[0].emitted_tokens, *lanes[1].emitted_tokens] == tokens[:5]
    assert first.confidence[0, drafted] == pytest.approx([0.8, 0.5, 0.25])
    assert first.confidence[1, drafted] == pytest.approx([0.8, 0.4, 0.1])
    assert second.survival[drafted, :2] == pytest.approx([0.8, 0.4])
    assert np.isnan(second.survival[drafted, 2])


def test_copies_are_right_where_they_equal_what_comes(make):
    rounds = {
        prefill(64): lambda context: 1.0,
        round_of(1, 0): lambda context: 2.0,
        round_of(1, 2): lambda context: 3.0,
    }
    driver, _ = make(times=rounds, luck=Luck(), drafts=2)
    opened(driver, 0, seed=5)
    tokens = list(driver.run(prefill(64), (0, 5)).lanes[0].emitted_tokens)
    tokens += [driver.run(round_of(1, 0), (0, 1)).lanes[0].emitted_tokens[0] for _ in range(9)]
    prompt = [*tokens, 90, *tokens[:5]]  # what follows in the prompt is what the answer's later tokens are not
    driver.device.open_request(1, prompt, 20, SamplingParameters(seed=5), emitted_before=5)
    driver.run(prefill(64), (1, len(prompt)))
    assert driver.device.copy_proposals(1) == 2
    lane = driver.run(round_of(1, 2), (1, 3, True)).lanes[0]
    assert (lane.accepted_tokens, lane.offered_tokens) == (2, 2)
    assert list(lane.emitted_tokens) == tokens[6:9]


def test_a_request_that_is_closed_under_a_running_frame_gives_its_pages_back_after_it(make):
    driver, waiter = make(held=True)
    opened(driver)
    driver.submit(prefill(16), (0, 5))
    waiter.started.get(timeout=60)
    free = driver.device.free_pages()
    driver.device.close_request(0)
    opened(driver, 0, seed=2)
    waiter.allowed.release()
    assert driver.wait().lanes[0].consumed_prompt_tokens == 5
    assert driver.device.free_pages() == free
    driver.device.close_request(0)
    assert driver.device.free_pages() == 16
    driver.device.close_request(0)


def test_what_does_not_fit_is_refused_as_on_any_device(make):
    driver, waiter = make(pages=4)
    with pytest.raises(InvalidRequest, match="prompt has 128 tokens"):
        opened(driver, prompt=128)
    with pytest.raises(RequestExceedsPool):
        opened(driver, prompt=99)
    opened(driver, 0, prompt=40)
    with pytest.raises(PagesExhausted):
        opened(driver, 1)
    with pytest.raises(InvalidFrame, match="not a prepared program"):
        driver.submit(decode(2), (0, 1))
    with pytest.raises(InvalidFrame, match="slot 1 holds no open request"):
        driver.device.submit(Frame(1, prefill(16), (FrameLane(1, 5),)))
    assert waiter.deadlines == []


def test_a_failure_becomes_the_frames_error_and_the_next_frame_runs(make):
    def broken(context):
        raise ArithmeticError("no such time")

    driver, _ = make(times={prefill(16): lambda context: 1.0, decode(1): broken})
    opened(driver)
    driver.run(prefill(16), (0, 5))
    driver.submit(decode(1), (0, 1))
    assert driver.wait().error == "ArithmeticError: no such time"
    opened(driver, 1)
    assert driver.run(prefill(16), (1, 5)).lanes[0].consumed_prompt_tokens == 5


def test_an_abandoned_frame_is_not_waited_for(make):
    driver, waiter = make(held=True)
    opened(driver)
    driver.submit(prefill(16), (0, 5))
    waiter.started.get(timeout=60)
    driver.device.shut_down(abandon=True)
    assert driver.device.collect() is None


def test_preparing_runs_nothing(make):
    driver, waiter = make()
    said = []
    driver.device.prepare(lambda what, share: said.append((what, share)))
    assert said == [("ready", 1.0)]
    assert waiter.deadlines == []


@pytest.mark.parametrize(
    ("shape", "words", "why"),
    [
        (state_graph(GraphKind.RESTORE), WORDS, "caches no states"),
        (round_of(2, 3, 4, Allocation.DEVICE), WORDS, "divides no rows"),
        (round_of(2, 3), WORDS, "how many of them are accepted"),
        (decode(1), (), "no token to make answers from"),
    ],
)
def test_what_cannot_be_simulated_is_refused(shape, words, why):
    limits = DeviceLimits(128, 16, 16, 100, 4, draft_tokens=shape.draft_depth)
    with pytest.raises(InvalidSettings, match=why):
        SimulatedDevice({shape: lambda context: 1.0}, limits, words)


def test_sizes_come_from_the_models_configuration_and_no_weight_is_read(tiny_checkpoint, monkeypatch):
    monkeypatch.setattr("gpu.model.safetensors_source.SafetensorsSource.tensor", None)
    device = create_simulated_device(tiny_checkpoint, TIMES, range(10_000), request_slots=3, max_context=40)
    try:
        limits = device.limits
        assert (limits.context_tokens, limits.kv_pages, limits.request_slots) == (40, 9, 3)
        assert device.shapes == tuple(TIMES)
    finally:
        device.shut_down(abandon=False)
    with pytest.raises(InvalidSettings, match="max_context is 1;"):
        create_simulated_device(tiny_checkpoint, TIMES, WORDS, max_context=1)
    with pytest.raises(InvalidSettings, match="kv_pages is 0"):
        create_simulated_device(tiny_checkpoint, TIMES, WORDS, kv_pages=0)
