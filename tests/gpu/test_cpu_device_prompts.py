"""Several prompts in one mixed frame of a device: their tokens, their cached states, their pages, and one that goes."""

from __future__ import annotations

import threading

import pytest
from device_driver import GREEDY, decode, prefill, state_graph
from program_host import mixed_shape

from gpu.capacity import MixedSizes
from gpu.device import InvalidFrame, PagesExhausted, SamplingParameters
from scheduler.shapes import GraphKind

DICE = SamplingParameters(temperature=1.0, seed=5, reproducible=True)
PROMPTS = {slot: [(7 * slot + 5 * at + at * at) % 250 for at in range(9 + 16 * slot)] for slot in range(5)}
SAMPLING = {slot: DICE if slot == 2 else GREEDY for slot in PROMPTS}
TOKENS = 6
MIXED = mixed_shape(4, 0, 64, 3)


@pytest.fixture
def driver(make_driver):
    return make_driver(prefill_capacities=(64, 128), mixed=True, mixed_sizes=MixedSizes(prompt_rows=3), request_slots=5)


def opened(driver, *slots) -> None:
    for slot in slots:
        driver.open(slot, PROMPTS[slot], sampling=SAMPLING[slot])


def alone(driver, slot) -> list[int]:
    """What a request says that never shared a frame."""
    return driver.generate(slot, PROMPTS[slot], TOKENS, sampling=SAMPLING[slot])


def test_prompts_that_are_read_together_are_answered_as_if_alone(driver):
    expected = {slot: alone(driver, slot) for slot in range(4)}
    opened(driver, *range(4))
    said = {0: list(driver.read(0, 9))}
    first = driver.run(MIXED, (1, 25), (0, 1), (2, 20), (3, 19))
    assert [lane.consumed_prompt_tokens for lane in first.lanes] == [25, 0, 20, 19]
    assert [len(lane.emitted_tokens) for lane in first.lanes] == [1, 1, 0, 0]
    second = driver.run(MIXED, (3, 38), (1, 1), (2, 21), (0, 1))
    for result, slots in ((first, (1, 0, 2, 3)), (second, (3, 1, 2, 0))):
        for slot, lane in zip(slots, result.lanes, strict=True):
            said.setdefault(slot, []).extend(lane.emitted_tokens)
    while len(said[3]) < TOKENS:
        for slot, token in zip(said, driver.step(4, *said), strict=True):
            said[slot].append(token)
    assert {slot: tokens[:TOKENS] for slot, tokens in said.items()} == expected


def test_states_of_prompts_that_were_read_together_are_cached_together(driver):
    expected = {slot: alone(driver, slot) for slot in (2, 3)}
    opened(driver, 2, 3)
    driver.run(MIXED, (2, 20), (3, 40))
    driver.run(state_graph(GraphKind.SNAPSHOT, 4), (3, 1), (2, 1))
    driver.run(MIXED, (2, 21), (3, 17))
    driver.run(state_graph(GraphKind.TERMINAL_SNAPSHOT, 4), (2, 1), (3, 1))
    for slot, ends in ((2, (20, 40)), (3, (40, 56))):
        driver.device.close_request(slot)
        for end, prompt in zip(ends, (PROMPTS[slot][: 30 if slot == 2 else 50], PROMPTS[slot]), strict=True):
            assert driver.device.match_prefix(prompt) == end
        cached = driver.open(slot, PROMPTS[slot], sampling=SAMPLING[slot], reuse=True)
        assert driver.read(slot, len(PROMPTS[slot]) - cached) == (expected[slot][0],)


def test_one_of_several_prompts_goes_while_its_frame_runs(driver):
    expected = {slot: alone(driver, slot) for slot in (1, 2, 3, 4)}
    opened(driver, 1, 2, 3)
    gate = threading.Event()
    driver.device._uploads.append(gate.wait)  # so that nothing has run yet when the slot changes hands
    driver.submit(MIXED, (1, 25), (2, 20), (3, 19))
    driver.device.close_request(2)
    held = driver.device.used_pages()
    driver.device.open_request(2, PROMPTS[4], 32, GREEDY)
    gate.set()
    lanes = driver.wait().lanes
    assert [lane.consumed_prompt_tokens for lane in lanes] == [25, 20, 19]
    assert lanes[0].emitted_tokens == (expected[1][0],)
    assert driver.device.used_pages() < held
    driver.run(state_graph(GraphKind.INIT), (2, 1))
    last = driver.run(MIXED, (2, 26), (3, 38), (1, 1)).lanes
    assert [lane.emitted_tokens for lane in last] == [(), (expected[3][0],), (expected[1][1],)]
    assert driver.read(2, len(PROMPTS[4]) - 26) == (expected[4][0],)


def test_pages_for_all_prompts_of_a_frame_or_none(make_driver):
    driver = make_driver(
        mixed=True, mixed_sizes=MixedSizes(prompt_rows=2), kv_pages=6, request_slots=5, max_context=96, snapshot_rows=1
    )
    shape = mixed_shape(4, 0, 64, 2)
    opened(driver, 1, 3, 4)
    driver.run(shape, (1, 25), (3, 30))
    assert driver.device.free_pages() == 2
    with pytest.raises(PagesExhausted):
        driver.submit(shape, (4, 33), (3, 20))
    assert driver.device.free_pages() == 2
    assert driver.run(shape, (4, 15), (3, 10)).lanes[1].consumed_prompt_tokens == 10
    assert driver.device.free_pages() == 0


def test_a_prompt_that_is_scored_does_not_ride(driver):
    opened(driver, 1)
    driver.open(2, PROMPTS[2], sampling=SamplingParameters(temperature=0.0, prompt_logprobs=1))
    with pytest.raises(InvalidFrame, match="slot 2 wants its prompt scored"):
        driver.submit(MIXED, (1, 25), (2, 20))
    driver.run(prefill(64, scored=True), (2, 41))
    assert len(driver.run(MIXED, (1, 25), (2, 1)).lanes[1].emitted_tokens) == 1
    assert decode(4) in driver.device.shapes
