"""Chunks, batches, padding and stale memory do not change what a request's tokens compute."""

import itertools

import numpy as np
import pytest
import torch
from program_host import ProgramHost, decode_shape, mixed_shape, prefill_shape, prompt_of, round_shape, tensors_of

from gpu.device import InvalidFrame, InvalidSettings, SamplingParameters
from gpu.model.weights import load_model, open_source
from gpu.programs.interface import LaneInput
from gpu.reference.forward import sequence_logits
from scheduler.shapes import Allocation, GraphKind, GraphShape

COLUMNS = 32


@pytest.fixture(scope="module")
def model(tiny_checkpoint):
    return load_model(open_source(tiny_checkpoint), torch.float32, 512, one_row_copies=True)


@pytest.fixture
def host(model):
    return ProgramHost(model, columns=COLUMNS)


def assert_close(actual, expected) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * float(np.abs(expected).max()))


def decode(host, batch, *slots):
    """One decode step: (emitted token of each slot, logits [slots, vocab])."""
    output, logits = host.run(decode_shape(batch), *(LaneInput(slot) for slot in slots))
    return [lane.emitted[0] for lane in output.lanes], logits[: len(slots)]


@pytest.mark.parametrize("cuts", [(16,), (16, 32, 48), (1, 2, 3), (15, 31, 47, 60), (50,)])
def test_a_prompt_in_chunks_ends_like_the_prompt_at_once(cuts, host):
    prompt = prompt_of(61)
    host.open(0, prompt)
    expected = host.prefill(0)
    host.open(1, prompt)
    for start, end in itertools.pairwise([0, *cuts, len(prompt)]):
        assert host.outputs[1] == []
        actual = host.prefill(1, 16 if end - start <= 16 else 64, end - start)
    assert_close(actual, expected)
    assert host.outputs[1] == host.outputs[0] == [int(expected.argmax())]


@pytest.mark.parametrize("length", [1, 15, 16, 17, 64])
def test_prefill_and_decode_agree_with_the_reference(length, host, tiny_checkpoint):
    prompt = prompt_of(length)
    host.open(3, prompt)
    rows = [host.prefill(3)]
    for _ in range(20):
        rows.append(decode(host, 1, 3)[1][0])
    expected = sequence_logits(open_source(tiny_checkpoint), prompt + host.outputs[3][:-1]).numpy()
    assert_close(np.stack(rows), expected[length - 1 :])
    assert host.outputs[3] == expected[length - 1 :].argmax(axis=1).tolist()
    assert int(host.state.cursor[3]) == length + 20
    assert int(host.state.emitted[3]) == 21
    assert int(host.state.pending[3]) == host.outputs[3][-1]


@pytest.mark.parametrize(("batch", "lanes"), [(2, 2), (4, 3), (8, 5), (8, 8), (8, 1)])
def test_a_batch_gives_each_lane_what_it_gets_alone(batch, lanes, model):
    lengths = [3, 64, 16, 31, 1, 47, 17, 60][:lanes]
    hosts = [ProgramHost(model, columns=COLUMNS) for _ in range(3)]
    for host in hosts:
        for slot, length in enumerate(lengths):
            host.open(slot, prompt_of(length, seed=slot))
            host.prefill(slot)
    alone = [decode(hosts[0], 1, slot) for slot in range(lanes)]
    tokens, logits = decode(hosts[1], batch, *range(lanes))
    assert_close(logits, np.concatenate([row for _, row in alone]))
    assert tokens == [token for (token,), _ in alone]
    tokens, logits = decode(hosts[2], batch, *reversed(range(lanes)))
    assert_close(logits[::-1], np.concatenate([row for _, row in alone]))


def test_leftovers_in_the_static_buffers_change_nothing(host):
    host.open(0, prompt_of(5))
    expected_prefill = host.prefill(0)
    expected_decode = decode(host, 8, 0)[1]
    for slot in range(8):
        host.open(slot, prompt_of(60, seed=slot))
        host.prefill(slot)
    decode(host, 8, *range(8))
    host.open(0, prompt_of(5))
    np.testing.assert_array_equal(host.prefill(0), expected_prefill)
    np.testing.assert_array_equal(decode(host, 8, 0)[1], expected_decode)


def test_the_last_position_of_the_context_can_be_decoded(host, tiny_checkpoint):
    prompt = prompt_of(511)
    host.open(2, prompt)
    for start in range(0, 511, 128):
        host.prefill(2, 128, min(128, 511 - start))
    host.force_pending(2, 77)
    expected = sequence_logits(open_source(tiny_checkpoint), [*prompt, 77])[-1].numpy()
    assert_close(decode(host, 4, 2)[1][0], expected)


def test_prefill_rows_and_decode_rows_can_share_a_mixed_pass(model):
    """Prompt first, in the middle, last, alone, or none at all."""
    shape = mixed_shape(4, 0, 64)
    for order in ((0, 1, 2), (1, 0, 2), (2, 1, 0), (0,), (1, 2, 3)):
        mixed, apart = ProgramHost(model, columns=COLUMNS), ProgramHost(model, columns=COLUMNS)
        for host in (mixed, apart):
            host.open(0, prompt_of(90, seed=5))
            host.prefill(0, 64, 40)
            for slot in (1, 2, 3):
                host.open(slot, prompt_of(20 + slot, seed=slot))
                host.prefill(slot)
        mixed.run(shape, *(mixed.chunk(slot) if slot == 0 else LaneInput(slot) for slot in order))
        for slot in order:
            if slot == 0:
                apart.prefill(0)
            else:
                decode(apart, 1, slot)
        assert mixed.outputs == apart.outputs
        for name in ("cursor", "pending", "emitted"):
            assert getattr(mixed.state, name)[:8].tolist() == getattr(apart.state, name)[:8].tolist()


def test_sampled_lanes_draw_by_their_own_seed_and_token_number(model):
    parameters = [SamplingParameters(temperature=1.0, seed=seed) for seed in (1, 2, 3)]
    outputs = []
    for batch in (1, 4):
        host = ProgramHost(model, columns=COLUMNS)
        for slot, chosen in enumerate(parameters):
            host.open(slot, prompt_of(9), chosen)
            host.prefill(slot)
        for _ in range(6):
            for slots in [range(3)] if batch == 4 else [[0], [1], [2]]:
                decode(host, batch, *slots)
        outputs.append(host.outputs)
    assert outputs[0] == outputs[1]
    assert len({tuple(tokens) for tokens in outputs[0].values()}) == 3


def test_penalties_see_what_programs_emitted(model):
    host = ProgramHost(model, columns=COLUMNS)
    host.open(0, prompt_of(9), SamplingParameters(temperature=0.0, presence_penalty=1e6))
    host.prefill(0)
    for _ in range(30):
        decode(host, 1, 0)
    assert len(set(host.outputs[0])) == 31


@pytest.mark.parametrize(
    ("shape", "lanes"),
    [
        (decode_shape(2), [LaneInput(0), LaneInput(1), LaneInput(2)]),
        (decode_shape(2), [LaneInput(0, rows=2, copies=np.array([1]))]),
        (decode_shape(2), [LaneInput(0, prompt=np.array([1]))]),
        (prefill_shape(16), [LaneInput(0, prompt=np.zeros(17, dtype=np.int64))]),
        (round_shape(2, 3), [LaneInput(1), LaneInput(0, rows=5, copies=np.array([1, 2, 3, 4]))]),
        (mixed_shape(4, 0, 64), [LaneInput(0), LaneInput(1, prompt=np.zeros(65, dtype=np.int64))]),
    ],
)
def test_lanes_beyond_the_buffers_are_refused_and_nothing_runs(shape, lanes, host):
    for slot in range(3):
        host.open(slot, prompt_of(5))
        host.prefill(slot)
    before = tensors_of(host)
    with pytest.raises(InvalidFrame):
        host.run(shape, *lanes)
    assert all(torch.equal(old, new) for old, new in zip(before, tensors_of(host), strict=True))


def test_a_shape_without_its_means_is_refused(host):
    with pytest.raises(InvalidSettings):
        host.program(GraphShape(GraphKind.INIT, 1))
    assert host.program(round_shape(2, 3, rows=5, allocation=Allocation.DEVICE))
