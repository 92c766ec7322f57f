"""Rounds through the device: drafts of both sources, two frames in flight, sidecars, and preemption."""

import threading

import numpy as np
import pytest
import torch
from device_driver import GREEDY, DeviceDriver, round_of, state_graph
from tiny_checkpoint import write_tiny_checkpoint
from tiny_draft_head import write_tiny_draft_head

from gpu import create_device
from gpu.device import InvalidFrame, SamplingParameters
from gpu.model.weights import open_source
from gpu.pages import pages_for
from gpu.reference.copies import propose
from scheduler.shapes import Allocation, GraphKind, GraphShape

VOCABULARY = 6  # so small that a random draft is right one time in six
DEPTH = 3
PROMPTS = {slot: [(7 * slot + 5 * at + at * at) % VOCABULARY for at in range(9 + 6 * slot)] for slot in range(4)}
DICE = SamplingParameters(temperature=1.0, seed=5, reproducible=True)
LANES = [(slot, DEPTH + 1) for slot in range(4)]


@pytest.fixture(scope="module")
def six(tmp_path_factory):
    """A target of six tokens, and a random draft head beside it."""
    directory = tmp_path_factory.mktemp("six")
    write_tiny_checkpoint(directory, seed=11, vocab_size=VOCABULARY, eos_token_id=None)
    write_tiny_draft_head(directory / "head", open_source(directory).config, seed=1)
    return directory


@pytest.fixture
def make_rounds(six):
    drivers = []

    def make(head=True, **changes) -> DeviceDriver:
        settings = {
            "prefill_capacities": (64,),
            "decode_batches": (1, 2, 4),
            "draft_tokens": DEPTH,
            "speculative_token_capacity": 16,
            "draft_head": six / "head" if head else None,
        }
        drivers.append(DeviceDriver(create_device(six, **(settings | changes))))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.device.shut_down(abandon=False)


@pytest.fixture(scope="module")
def plain(six):
    """What plain decoding says, greedy and drawn, for each prompt."""
    driver = DeviceDriver(create_device(six, prefill_capacities=(64,), decode_batches=(1,)))
    said = {
        sampling: {slot: driver.generate(slot, prompt, 40, sampling=sampling) for slot, prompt in PROMPTS.items()}
        for sampling in (GREEDY, DICE)
    }
    driver.device.shut_down(abandon=False)
    return said


def started(driver, sampling=GREEDY, slots=PROMPTS):
    return {slot: [driver.start(slot, PROMPTS[slot], 60, sampling)] for slot in slots}


def take(said, result, lanes=LANES):
    for (slot, *_), lane in zip(lanes, result.lanes, strict=True):
        assert len(lane.emitted_tokens) == lane.accepted_tokens + 1 <= lane.offered_tokens + 1
        said[slot] += lane.emitted_tokens


def agrees(said, plain):
    return all(tokens[:30] == plain[slot][: len(tokens[:30])] for slot, tokens in said.items())


@pytest.mark.parametrize("sampling", [GREEDY, DICE])
def test_rounds_say_what_plain_decoding_says(sampling, make_rounds, plain):
    driver = make_rounds()
    said = started(driver, sampling)
    for depth in (3, 0, 2, 3, 1, 3, 3, 0, 3):
        lanes = [(slot, depth + 1) for slot in PROMPTS]
        take(said, driver.run(round_of(4, depth), *lanes), lanes)
    assert agrees(said, plain[sampling])
    assert any(len(tokens) > 10 for tokens in said.values())  # some draft was right


def test_two_frames_in_flight_give_what_one_at_a_time_gives(make_rounds, plain):
    driver = make_rounds()
    said = started(driver)
    driver.submit(round_of(4, DEPTH), *LANES)
    for _ in range(5):
        driver.submit(round_of(4, DEPTH), *LANES)  # the one before is not collected yet
        take(said, driver.wait())
    take(said, driver.wait())
    assert agrees(said, plain[GREEDY])
    assert any(len(tokens) > 7 for tokens in said.values())


@pytest.mark.parametrize("sampling", [GREEDY, DICE])
def test_a_slot_is_reused_while_two_frames_of_its_last_request_run(sampling, make_rounds, plain):
    driver = make_rounds()
    said = started(driver, sampling)
    gate = threading.Event()
    driver.device._uploads.append(gate.wait)  # so that nothing has run yet when the slot changes hands
    for _ in range(2):
        driver.submit(round_of(4, DEPTH), *LANES)
    driver.device.close_request(0)
    driver.device.open_request(0, PROMPTS[0], 60, sampling)
    gate.set()
    for _ in range(2):
        take(said, driver.wait())
    driver.run(state_graph(GraphKind.INIT), (0, 1))
    said[0] = list(driver.read(0, len(PROMPTS[0])))
    for _ in range(9):
        take(said, driver.run(round_of(4, DEPTH), *LANES))
    assert agrees(said, plain[sampling])


@pytest.mark.parametrize("allocation", [Allocation.HOST, Allocation.DEVICE])
def test_rows_are_divided_by_host_or_device(allocation, make_rounds, plain):
    driver = make_rounds(allocation=allocation.value)
    said = started(driver)
    shape = round_of(4, DEPTH, rows=8, allocation=allocation)
    lanes = LANES if allocation is Allocation.DEVICE else [(0, 1), (1, 4), (2, 1), (3, 2)]
    for _ in range(6):
        result = driver.run(shape, *lanes)
        assert sum(lane.offered_tokens + 1 for lane in result.lanes) <= 8
        take(said, result, lanes)
    assert agrees(said, plain[GREEDY])
    if allocation is Allocation.HOST:
        with pytest.raises(InvalidFrame, match="9 verification rows"):
            driver.submit(shape, (0, 1), (1, 4), (2, 2), (3, 2))


def test_confidence_and_survival_stand_in_their_slots_rows(make_rounds):
    driver = make_rounds(request_slots=5)
    said = started(driver, slots=(1, 3))
    lanes = [(3, 3), (1, 1)]
    result = driver.run(round_of(2, 2), *lanes)
    take(said, result, lanes)
    conditional, joint = result.confidence
    assert (conditional.shape, result.confidence.dtype) == ((5, DEPTH), np.float32)
    assert (conditional[[1, 3], :2] > 0).all()
    assert (conditional[[1, 3], :2] <= 1).all()
    assert np.array_equal(joint[:, :2], np.cumprod(conditional[:, :2], axis=1, dtype=np.float32))
    conditional[[1, 3], :2] = 0
    assert not conditional.any()
    assert (result.survival.shape, result.survival.dtype) == ((5, DEPTH), np.float64)
    assert not np.isnan(result.survival[3, :2]).any()
    assert np.isnan(result.survival[[0, 1, 2, 4]]).all()
    assert np.isnan(result.survival[3, 2])
    width_one = driver.run(round_of(2, 0), (1, 1))
    assert (width_one.confidence, width_one.survival) == (None, None)


def test_copies_are_what_the_text_suggests_and_stay_what_was_offered(make_rounds, plain):
    driver = make_rounds(head=False)
    said = {0: [driver.start(0, PROMPTS[0] * 3, 60)]}
    alone = make_rounds(draft_tokens=0).generate(0, PROMPTS[0] * 3, 40)
    offered = 0
    assert driver.device.copy_proposals(1) == 0  # no such request
    while len(said[0]) < 30:
        count = driver.device.copy_proposals(0)
        assert count == len(propose(PROMPTS[0] * 3 + said[0], DEPTH))
        lanes = [(0, count + 1, True)]
        result = driver.run(round_of(1, count), *lanes)
        assert result.lanes[0].offered_tokens == count
        assert result.confidence is None
        offered += count
        take(said, result, lanes)
    assert said[0] == alone[: len(said[0])]
    assert offered > 0


def test_drafts_that_nobody_has_are_refused(make_rounds):
    driver = make_rounds(head=False)
    driver.start(0, [0, 1, 2, 3], 60)
    driver.start(1, [2, 2, 2], 60, SamplingParameters(temperature=0.0, logit_bias=((2, 1000.0),)))
    with pytest.raises(InvalidFrame, match="without a draft head"):
        driver.submit(round_of(1, 1), (0, 2))
    assert driver.device.copy_proposals(0) == 0
    with pytest.raises(InvalidFrame, match="0 copy proposals for 1 drafts"):
        driver.submit(round_of(1, 1), (0, 2, True))
    assert driver.device.copy_proposals(1) == DEPTH
    driver.submit(round_of(1, 0), (1, 1))
    with pytest.raises(InvalidFrame, match="1 frames in flight"):
        driver.submit(round_of(1, 1), (1, 2, True))
    driver.wait()
    for shape, rows, message in [
        (round_of(1, 1), 3, "query_length 3 of 2"),
        (round_of(1, 0), 2, "query_length 2 of 1"),
    ]:
        with pytest.raises(InvalidFrame, match=message):
            driver.submit(shape, (0, rows, True))


def test_every_ceiling_and_the_drafts_have_their_pages(make_rounds):
    driver = make_rounds()
    driver.start(0, [1] * 10, 60)
    assert driver.device.used_pages() == 1
    driver.submit(round_of(1, DEPTH), (0, 2))  # 11 tokens, 2 rows, 3 drafts
    assert driver.device.used_pages() == pages_for(11 + 2 + DEPTH) == 1
    driver.submit(round_of(1, DEPTH), (0, 1))  # one row behind what the first may emit
    assert driver.device.used_pages() == pages_for(11 + 2 + 1 + DEPTH) == 2
    driver.wait()
    driver.wait()
    driver.device.close_request(0)
    assert driver.device.used_pages() == 0


def test_a_rounds_draft_context_survives_a_preemption(make_rounds, plain):
    driver = make_rounds()
    driver.device._calibration = None  # what the head itself believes is compared
    shape = round_of(1, DEPTH)
    said = started(driver, slots=(3,))[3]
    for _ in range(3):
        said += driver.run(shape, (3, DEPTH + 1)).lanes[0].emitted_tokens
    driver.retire(3)
    prompt = PROMPTS[3] + said
    cached = driver.open(1, prompt, 60, reuse=True, emitted_before=len(said))
    assert cached == len(prompt) - 1
    said += driver.read(1, 1)  # a resumed request reads its last token as its prompt's end
    uninterrupted = started(driver, slots=(3,))[3]
    while len(uninterrupted) < len(said):
        uninterrupted += driver.step(1, 3)
    assert said == uninterrupted == plain[GREEDY][3][: len(said)]
    resumed, whole = driver.run(shape, (1, DEPTH + 1)), driver.run(shape, (3, DEPTH + 1))
    assert resumed.lanes == whole.lanes
    assert torch.allclose(torch.tensor(resumed.confidence[:, 1]), torch.tensor(whole.confidence[:, 3]), atol=1e-5)
    assert np.array_equal(resumed.survival[1], whole.survival[3])


def test_a_mixed_cohort_says_what_its_members_say_alone(make_rounds, plain):
    driver = make_rounds(mixed=True)
    shape = GraphShape(GraphKind.MIXED, 4, draft_depth=3, target_width=4, prefill_capacity=64, speculation_enabled=True)
    said = started(driver, slots=(0, 1, 2))
    driver.open(3, PROMPTS[3], 60)
    length = len(PROMPTS[3])
    for prompt_tokens in (5, length - 5):
        result = driver.run(shape, (0, 4), (3, prompt_tokens), (1, 2), (2, 1))
        for slot, lane in zip((0, 3, 1, 2), result.lanes, strict=True):
            if slot == 3:
                assert (lane.consumed_prompt_tokens, lane.accepted_tokens) == (prompt_tokens, 0)
            said.setdefault(slot, []).extend(lane.emitted_tokens)
    assert len(said[3]) == 1
    take(said, driver.run(shape, *LANES))
    assert agrees(said, plain[GREEDY])
    for slot in (0, 3):
        driver.device.close_request(slot)
        driver.open(slot, PROMPTS[slot], 60)
    with pytest.raises(InvalidFrame, match="2 prompts"):
        driver.submit(shape, (0, 4), (3, 4))
    driver.submit(shape, (0, 4), (1, 1))
    with pytest.raises(InvalidFrame, match="cannot be queued"):
        driver.submit(round_of(1, 0), (2, 1))
    driver.wait()


def test_drafts_reach_beyond_the_contexts_end(make_rounds, plain):
    driver = make_rounds(max_context=20, draft_tokens=7)
    said = [driver.start(0, PROMPTS[0], 11)]
    while (left := 11 - len(said)) > 0:
        said += driver.run(round_of(1, 7), (0, min(left, 2))).lanes[0].emitted_tokens
    assert said == plain[GREEDY][0][:11]
    driver.device.close_request(0)
    assert driver.device.used_pages() == 0
