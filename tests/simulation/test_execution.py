"""What the device does in a step: drafts accepted, rows divided, answers ended, prompts finished."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.records import FinishReason, RequestHandle
from scheduler.shapes import Allocation, GraphKind, GraphShape
from scheduler.simulation.acceptance import AcceptanceLuck, Survival
from scheduler.simulation.execution import Execution, Live, Step, device_rows
from scheduler.simulation.results import Outcome
from scheduler.simulation.workload import Arrival

CHAIN = GraphShape(GraphKind.SPECULATIVE, 4, 3, 4, speculation_enabled=True)
DEVICE = GraphShape(GraphKind.SPECULATIVE, 4, 3, 4, target_rows=9, allocation=Allocation.DEVICE)
MIXED = GraphShape(GraphKind.MIXED, 4, 3, 4, prefill_capacity=64, speculation_enabled=True)


def execution(*curve: float, spread: float = 0.0) -> Execution:
    return Execution(AcceptanceLuck(Survival(curve, "test"), 3, spread=spread), 4)


def opened(device: Execution, slot: int, output_tokens: int, prompt_tokens: int = 0):
    """A request in `slot`; a decoder when it has no prompt tokens left."""
    live = device.open(
        Arrival(slot, 0, 100, output_tokens), Outcome(slot, "", 100, 0), RequestHandle(slot, 1), output_tokens
    )
    live.prompt_left = prompt_tokens
    return live


def step(shape: GraphShape, *lanes: tuple[Live, int] | tuple[Live, int, int]) -> Step:
    """Lanes are (request, rows) or (request, rows, prompt tokens)."""
    return Step(
        shape,
        [lane[0] for lane in lanes],
        [lane[1] for lane in lanes],
        [lane[2] if len(lane) > 2 else 0 for lane in lanes],
    )


def test_a_round_emits_its_accepted_drafts_and_one_token_of_the_target():
    device = execution(1.0, 1.0, 1.0)
    live = opened(device, 0, 10)
    record = device.run(step(CHAIN, (live, 4))).records[0]
    assert (len(record.emitted_tokens), record.accepted_tokens, record.finished) == (4, 3, None)
    assert live.output_left == 6
    assert (device.offered_tokens, device.accepted_tokens) == (3, 3)


def test_only_drafts_within_a_lanes_rows_are_offered():
    device = execution(1.0, 1.0, 1.0)
    record = device.run(step(CHAIN, (opened(device, 0, 10), 2))).records[0]
    assert (len(record.emitted_tokens), record.accepted_tokens) == (2, 1)
    assert device.offered_tokens == 1


@pytest.mark.parametrize(("left", "accepted"), [(1, 1), (2, 2), (3, 3), (4, 3)])
def test_an_answer_that_ends_within_the_accepted_drafts_ends_there(left, accepted):
    device = execution(1.0, 1.0, 1.0)
    executed = device.run(step(CHAIN, (live := opened(device, 0, left), 4)))
    record = executed.records[0]
    assert (len(record.emitted_tokens), record.accepted_tokens, record.finished) == (left, accepted, FinishReason.STOP)
    assert executed.ended == [live]
    assert live.output_left == 0


def test_a_width_one_round_offers_nothing():
    device = execution(1.0, 1.0, 1.0)
    shape = GraphShape(GraphKind.SPECULATIVE, 4, speculation_enabled=True)
    record = device.run(step(shape, (opened(device, 0, 10), 1))).records[0]
    assert (len(record.emitted_tokens), device.offered_tokens) == (1, 0)


def test_emitted_is_accepted_or_one_more_and_everything_adds_up():
    device = execution(0.8, 0.5, 0.4)
    lives = [opened(device, slot, 40 + slot) for slot in range(4)]
    emitted = [0] * 4
    while lives:
        executed = device.run(step(CHAIN, *((live, 4) for live in lives)))
        for live, record in zip(lives, executed.records, strict=True):
            count = len(record.emitted_tokens)
            assert count - 1 <= record.accepted_tokens <= count
            emitted[live.arrival.index] += count
        lives = [live for live in lives if live not in executed.ended]
    assert emitted == [40, 41, 42, 43]


def test_a_prompt_lane_that_finishes_emits_the_first_token_beside_the_decoders():
    device = execution(1.0, 1.0, 1.0)
    decoder, prompt = opened(device, 0, 10), opened(device, 1, 5, prompt_tokens=60)
    executed = device.run(step(MIXED, (prompt, 40, 40), (decoder, 4)))
    assert [(r.consumed_prompt_tokens, len(r.emitted_tokens)) for r in executed.records] == [(40, 0), (0, 4)]
    assert list(executed.emitting) == [decoder]
    executed = device.run(step(MIXED, (decoder, 4), (prompt, 20, 20)))
    assert [(r.consumed_prompt_tokens, len(r.emitted_tokens)) for r in executed.records] == [(0, 4), (20, 1)]
    assert list(executed.emitting) == [decoder, prompt]
    assert (prompt.prompt_left, prompt.output_left) == (0, 4)


def test_an_answer_of_one_token_ends_with_its_prompt():
    device = execution(1.0)
    prompt = opened(device, 0, 1, prompt_tokens=20)
    shape = GraphShape(GraphKind.PREFILL, 1, prefill_capacity=64)
    executed = device.run(step(shape, (prompt, 20, 20)))
    assert executed.records[0].finished is FinishReason.STOP
    assert executed.ended == [prompt]


def test_a_lane_whose_answer_has_ended_takes_nothing_from_its_neighbours():
    device = execution(1.0, 1.0, 1.0)
    over, live = opened(device, 0, 1), opened(device, 1, 10)
    over.output_left = 0
    executed = device.run(step(CHAIN, (over, 4), (live, 4)))
    assert [len(record.emitted_tokens) for record in executed.records] == [1, 4]
    assert list(executed.emitting) == [live]
    assert not executed.ended
    assert over.output_left == 0


def test_the_device_states_what_it_verified_and_its_confidence_before_the_round():
    device = execution(0.8, 0.4, 0.2)
    lives = [opened(device, slot, 50) for slot in range(3)]
    executed = device.run(step(DEVICE, *((live, 4) for live in lives)))
    # 9 rows, 3 pending tokens: six drafts, both first depths of every lane.
    assert [record.offered_tokens for record in executed.records] == [2, 2, 2]
    assert executed.sidecar.dtype == np.float32
    assert executed.sidecar[1, 1].tolist() == pytest.approx([0.8, 0.4, 0.2])
    assert executed.sidecar[0, 1].tolist() == pytest.approx([0.8, 0.5, 0.5])
    assert not executed.sidecar[:, 3].any()


def plain_rows(target_rows: int, ceilings: list[int], joint: np.ndarray) -> list[int]:
    """Specification S2 as it reads: admit the best of the causal frontier, one at a time."""
    rows = [1] * len(ceilings)
    while sum(rows) < target_rows:
        frontier = [(-joint[i, rows[i] - 1], rows[i], i) for i in range(len(rows)) if rows[i] < ceilings[i]]
        if not frontier:
            break
        rows[min(frontier)[2]] += 1
    return rows


def test_the_device_divides_rows_like_the_plain_rule():
    generator = np.random.default_rng(7)
    for _ in range(300):
        lanes = int(generator.integers(1, 6))
        # Few distinct values, so that ties are common.
        joint = np.sort(generator.integers(0, 4, (lanes, 3)) / 4, axis=1)[:, ::-1].astype(np.float32)
        ceilings = [int(c) for c in generator.integers(1, 5, lanes)]
        for target_rows in range(lanes, 4 * lanes + 1):
            assert device_rows(target_rows, ceilings, joint) == plain_rows(target_rows, ceilings, joint)


def test_state_graphs_emit_nothing():
    device = execution(1.0)
    live = opened(device, 0, 10)
    executed = device.run(step(GraphShape(GraphKind.INIT, 4), (live, 1)))
    assert (executed.records[0].emitted_tokens, list(executed.emitting)) == ((), [])
    assert live.output_left == 10


def test_luck_is_the_same_for_host_and_device_allocation():
    accepted = []
    for shape in (CHAIN, GraphShape(GraphKind.SPECULATIVE, 4, 3, 4, allocation=Allocation.DEVICE)):
        device = execution(0.8, 0.5, 0.4, spread=0.5)
        live = opened(device, 0, 60)
        records = []
        while live.output_left:
            records += device.run(step(shape, (live, 4))).records
        accepted.append([record.accepted_tokens for record in records])
    assert accepted[0] == accepted[1]
