"""The device's promises to the worker loop."""

import select
import threading

import pytest
import torch
from device_driver import GREEDY, decode, prefill, state_graph

from gpu.cpu_device import CpuDevice
from gpu.device import (
    DeviceError,
    DeviceLimits,
    Frame,
    FrameLane,
    InvalidFrame,
    InvalidRequest,
    PagesExhausted,
    RequestExceedsPool,
    SamplingParameters,
)
from gpu.programs.interface import LaneOutput, RoundOutput
from gpu.sampling import SamplingTable
from gpu.state import SlotState
from scheduler.shapes import GraphKind

PROMPT = [5, 200, 13, 13, 77, 250, 1, 0, 99, 31, 62, 128, 3, 17, 42, 42, 180, 7, 55, 201]


class HeldProgram:
    """A program that runs until it is let go, then returns its outcome or raises."""

    def __init__(self, outcome) -> None:
        self.started, self.let_go = threading.Event(), threading.Event()
        self._outcome = outcome

    def run(self, lanes):
        self.started.set()
        assert self.let_go.wait(60)
        return self._outcome(lanes)


def held_device(outcome, pages=8) -> tuple[CpuDevice, HeldProgram]:
    program = HeldProgram(outcome)
    limits = DeviceLimits(context_tokens=64, kv_pages=pages, page_tokens=16, vocab_size=4, request_slots=4)
    programs = {prefill(16): program.run, decode(2): program.run}
    return CpuDevice(programs, limits, SlotState(4, 4, 1, torch.float32), SamplingTable(4, 4), threads=1), program


def collect(device):
    ready, _, _ = select.select([device.completion_fd], [], [], 60)
    assert ready
    return device.collect()


def zeros(lanes):
    """Every lane draws token 0."""
    return RoundOutput(tuple(LaneOutput((0,) if lane.finishes else ()) for lane in lanes))


def test_the_catalog_lists_prefill_then_decode_by_size(make_driver):
    driver = make_driver(snapshot_rows=0)
    prompts = (prefill(16), prefill(64), prefill(16, scored=True))
    assert driver.device.shapes == (*prompts, decode(1), decode(2), decode(4), decode(8))
    assert driver.device.limits.context_tokens == 512


def test_preparing_reports_each_program_and_leaves_no_trace(driver, make_driver):
    reports = []
    driver.device.prepare(lambda what, share: reports.append((what, share)))
    assert [share for _, share in reports] == sorted(share for _, share in reports)
    assert reports[-1][1] == 1.0
    assert any("decode:B8" in what for what, _ in reports)
    assert driver.device.free_pages() == driver.device.limits.kv_pages
    assert driver.device.collect() is None
    assert driver.device.busy_ns() == 0
    assert driver.generate(0, PROMPT, 10) == make_driver().generate(0, PROMPT, 10)


def test_a_failing_program_is_named_while_preparing():
    def fail(works):
        raise RuntimeError("no such thing")

    device, program = held_device(fail)
    program.let_go.set()
    with pytest.raises(DeviceError, match=r"prefill:B1:C16.*no such thing"):
        device.prepare(lambda *_: None)
    device.shut_down(abandon=False)


def test_chunks_emit_nothing_until_the_prompt_ends(driver):
    driver.open(3, PROMPT)
    first = driver.run(prefill(16), (3, 16)).lanes[0]
    assert (first.consumed_prompt_tokens, first.emitted_tokens) == (16, ())
    last = driver.run(prefill(16), (3, 4)).lanes[0]
    assert last.consumed_prompt_tokens == 4
    assert len(last.emitted_tokens) == 1
    step = driver.run(decode(1), (3, 1)).lanes[0]
    assert step.consumed_prompt_tokens == 0
    assert len(step.emitted_tokens) == 1


def test_greedy_requests_in_a_changing_batch_get_the_tokens_they_get_alone(driver):
    prompts = {slot: [(7 * slot + 3 * at) % 256 for at in range(5 + 9 * slot)] for slot in range(5)}
    alone = {slot: driver.generate(slot, prompt, 14) for slot, prompt in prompts.items()}
    together = {slot: [driver.start(slot, prompt)] for slot, prompt in prompts.items()}
    for batch, slots in [(8, (0, 1, 2, 3, 4)), (2, (4, 2)), (4, (1, 3, 0)), (8, (4, 3, 2, 1, 0))] * 4:
        for slot, token in zip(slots, driver.step(batch, *slots), strict=True):
            together[slot].append(token)
    for slot, tokens in together.items():
        assert tokens[:9] == alone[slot][:9]


def test_a_seed_repeats_a_request_whatever_runs_beside_it(driver):
    sampling = SamplingParameters(temperature=1.0, top_p=0.95, seed=1234)
    alone = driver.generate(0, PROMPT, 12, sampling=sampling)
    for neighbour in (1, 2, 3):
        driver.start(neighbour, [neighbour] * 30, sampling=SamplingParameters(seed=neighbour))
    tokens = [driver.start(5, PROMPT, sampling=sampling)]
    while len(tokens) < 12:
        tokens.append(driver.step(4, 1, 2, 5, 3)[2])
    assert tokens == alone
    other = SamplingParameters(temperature=1.0, top_p=0.95, seed=1235)
    assert driver.generate(6, PROMPT, 12, sampling=other) != alone


def test_times_are_monotonic_and_counted(driver):
    driver.open(0, PROMPT)
    before = driver.device.busy_ns()
    first = driver.run(prefill(64), (0, len(PROMPT)))
    second = driver.run(decode(1), (0, 1))
    assert first.started_ns < first.completed_ns <= second.started_ns < second.completed_ns
    assert first.device_ns == first.completed_ns - first.started_ns
    assert driver.device.busy_ns() - before == first.device_ns + second.device_ns


def test_every_page_is_reserved_at_opening_and_returned_at_closing(make_driver):
    driver = make_driver(kv_pages=8, snapshot_rows=0)
    driver.open(0, PROMPT, outputs=12)  # 32 tokens, 2 pages
    assert driver.device.free_pages() == 6
    driver.open(1, PROMPT, outputs=13)  # 33 tokens, 3 pages
    assert driver.device.free_pages() == 3
    with pytest.raises(PagesExhausted, match="4 KV pages and 3 are free"):
        driver.open(2, PROMPT, outputs=44)
    with pytest.raises(RequestExceedsPool, match=r"9 KV pages .* 8 in all"):
        driver.open(2, PROMPT, outputs=120)
    for _ in range(2):
        driver.device.close_request(0)
        driver.device.close_request(1)
        driver.device.close_request(2)
    assert driver.device.free_pages() == 8


def test_a_reservation_never_passes_the_context(make_driver):
    driver = make_driver(max_context=40, snapshot_rows=0)
    driver.open(0, PROMPT, outputs=2**31 - 1)
    assert driver.device.limits.kv_pages - driver.device.free_pages() == 3
    driver.run(prefill(64), (0, 20))
    for _ in range(20):
        driver.step(1, 0)
    with pytest.raises(InvalidFrame, match="40 of 40 tokens used"):
        driver.submit(decode(1), (0, 1))


def test_closing_during_a_frame_keeps_the_pages_until_it_ends():
    device, program = held_device(zeros)
    device.open_request(1, [1, 2], 4, GREEDY)
    device.submit(Frame(1, prefill(16), (FrameLane(1, 2),)))
    assert program.started.wait(60)
    device.open_request(2, [1], 4, GREEDY)
    device.close_request(1)
    device.close_request(1)
    device.close_request(2)  # not in the frame: returned at once
    assert device.free_pages() == 7
    device.open_request(1, [3], 4, GREEDY)  # the slot is free, on other pages
    assert device.free_pages() == 6
    program.let_go.set()
    assert collect(device).lanes[0].emitted_tokens == (0,)
    assert device.free_pages() == 7
    with pytest.raises(InvalidFrame, match="cannot decode"):
        device.submit(Frame(2, decode(2), (FrameLane(1, 1),)))
    device.shut_down(abandon=False)


def test_a_program_that_raises_fails_its_frame_and_the_device_lives():
    outcomes = [zeros, ValueError("boom"), zeros]

    def outcome(works):
        result = outcomes.pop(0)
        if isinstance(result, Exception):
            raise result
        return result(works)

    device, program = held_device(outcome)
    program.let_go.set()
    device.open_request(0, [1, 2], 4, GREEDY)
    device.submit(Frame(1, prefill(16), (FrameLane(0, 2),)))
    assert collect(device).error is None
    device.submit(Frame(2, decode(2), (FrameLane(0, 1),)))
    failed = collect(device)
    assert (failed.fence, failed.error, failed.lanes) == (2, "ValueError: boom", ())
    device.submit(Frame(3, decode(2), (FrameLane(0, 1),)))
    assert collect(device).lanes[0].emitted_tokens == (0,)
    device.shut_down(abandon=False)


def test_logits_that_are_not_finite_fail_their_lane_only():
    def outcome(lanes):
        output = zeros(lanes)
        if len(lanes) == 2:
            return RoundOutput((LaneOutput((), finite=False), output.lanes[1]))
        return output

    device, program = held_device(outcome)
    program.let_go.set()
    for slot in (0, 1):
        device.open_request(slot, [1, 2], 4, GREEDY)
        device.submit(Frame(1 + slot, prefill(16), (FrameLane(slot, 2),)))
        collect(device)
    device.submit(Frame(3, decode(2), (FrameLane(0, 1), FrameLane(1, 1))))
    bad, good = collect(device).lanes
    assert "not finite" in bad.error
    assert (bad.consumed_prompt_tokens, bad.emitted_tokens) == (0, ())
    assert (good.error, good.emitted_tokens) == (None, (0,))
    device.shut_down(abandon=False)


def test_a_prompt_is_in_flight_alone_and_collect_does_not_wait():
    device, program = held_device(zeros)
    assert device.collect() is None
    device.open_request(0, [1, 2], 4, GREEDY)
    device.submit(Frame(1, prefill(16), (FrameLane(0, 1),)))
    assert program.started.wait(60)
    assert device.collect() is None
    with pytest.raises(InvalidFrame, match=r"2 \(prefill:B1:C16\) cannot be queued: in flight are 1"):
        device.submit(Frame(2, prefill(16), (FrameLane(0, 1),)))
    program.let_go.set()
    assert collect(device).fence == 1
    assert device.collect() is None
    device.shut_down(abandon=False)


def started_device():
    """A device whose slots 0 and 1 decode, with its program held."""
    device, program = held_device(zeros)
    program.let_go.set()
    for slot in (0, 1):
        device.open_request(slot, [1, 2], 8, GREEDY)
        device.submit(Frame(1, prefill(16), (FrameLane(slot, 2),)))
        collect(device)
    program.let_go.clear()
    return device, program


def test_two_decode_frames_are_in_flight_and_end_in_order():
    device, program = started_device()
    for fence in (2, 3):
        device.submit(Frame(fence, decode(2), (FrameLane(0, 1), FrameLane(1, 1))))
    with pytest.raises(InvalidFrame, match=r"in flight are 2 .*, 3 "):
        device.submit(Frame(4, decode(2), (FrameLane(0, 1),)))
    device.open_request(2, [1], 4, GREEDY)
    with pytest.raises(InvalidFrame, match="cannot be queued"):
        device.submit(Frame(4, prefill(16), (FrameLane(2, 1),)))
    program.let_go.set()
    assert [collect(device).fence for _ in range(2)] == [2, 3]
    device.submit(Frame(5, prefill(16), (FrameLane(2, 1),)))
    assert collect(device).fence == 5
    device.shut_down(abandon=False)


def test_a_request_that_closes_keeps_its_pages_until_its_last_submitted_frame():
    device, program = started_device()
    device.submit(Frame(2, decode(2), (FrameLane(0, 1), FrameLane(1, 1))))
    device.submit(Frame(3, decode(2), (FrameLane(0, 1),)))
    free = device.free_pages()
    device.close_request(0)
    device.close_request(1)
    assert device.free_pages() == free
    program.let_go.set()
    collect(device)
    assert device.free_pages() == free + 1  # slot 1's
    collect(device)
    assert (device.free_pages(), device.used_pages()) == (8, 0)
    device.shut_down(abandon=False)


def test_shutting_down_waits_for_the_program_unless_told_to_abandon_it():
    device, program = held_device(zeros)
    device.open_request(0, [1, 2], 4, GREEDY)
    device.submit(Frame(1, prefill(16), (FrameLane(0, 1),)))
    assert program.started.wait(60)
    device.shut_down(abandon=True)  # returns although the program runs
    assert device.collect() is None
    program.let_go.set()
    device.shut_down(abandon=False)
    assert collect(device).fence == 1


@pytest.mark.parametrize(
    ("slot", "prompt", "outputs", "message"),
    [
        (0, [], 1, "at least 1"),
        (0, [1] * 512, 1, "at most 511"),
        (0, [1, 257], 1, "token ids"),
        (0, [-1], 1, "token ids"),
        (0, [1], 0, "max_output_tokens"),
        (64, [1], 1, "slot 64"),
        (-1, [1], 1, "slot -1"),
        (7, [1], 1, "slot 7 is taken"),
    ],
)
def test_a_request_that_cannot_run_is_refused_and_holds_nothing(slot, prompt, outputs, message, driver):
    driver.open(7, [1, 2])
    free = driver.device.free_pages()
    with pytest.raises(InvalidRequest, match=message):
        driver.open(slot, prompt, outputs)
    assert driver.device.free_pages() == free


@pytest.mark.parametrize(
    ("shape", "lanes", "message"),
    [
        (prefill(32), [(0, 1)], "not a prepared program"),
        (prefill(16), [(9, 1)], "no open request"),
        (prefill(16), [(0, 17)], "20 are left"),
        (prefill(64), [(0, 21)], "20 are left"),
        (prefill(16), [(0, 0)], "20 are left"),
        (prefill(16), [(1, 1)], "0 are left"),
        (prefill(16), [(0, 1), (1, 1)], "distinct"),
        (decode(1), [(1, 1, True), (0, 1)], "distinct"),
        (state_graph(GraphKind.INIT), [(0, 1)], "set up True"),
        (state_graph(GraphKind.RESTORE), [(0, 1)], "to be restored False"),
        (state_graph(GraphKind.SNAPSHOT), [(0, 2)], "query_length 2"),
        (decode(1), [(0, 1)], "20 prompt tokens left"),
        (decode(1), [(1, 2)], "query_length 2"),
        (decode(2), [(1, 1), (1, 1)], "distinct"),
        (decode(1), [], "at least 1"),
    ],
)
def test_a_frame_that_fits_nothing_is_refused_before_it_runs(shape, lanes, message, driver):
    driver.open(0, PROMPT)
    driver.start(1, [4, 5])
    with pytest.raises(InvalidFrame, match=message):
        driver.submit(shape, *lanes)
    assert driver.device.collect() is None
    driver.step(1, 1)
