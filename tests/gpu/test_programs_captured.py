"""Programs in the form that is recorded as CUDA graphs do the same work, without ever asking for a value."""

import numpy as np
import pytest
import torch
from program_host import ProgramHost, decode_shape, mixed_shape, prefill_shape, prompt_of, round_shape, tensors_of
from tiny_checkpoint import write_tiny_checkpoint
from tiny_draft_head import write_tiny_draft_head
from torch.utils._python_dispatch import TorchDispatchMode

from gpu.device import InvalidSettings, SamplingParameters
from gpu.model.draft_head import load_draft_head
from gpu.model.weights import load_model, open_source
from gpu.programs.create import create_copy_program, create_init_program
from gpu.programs.interface import ExecutionStyle, LaneInput, ProgramContext
from scheduler.shapes import Allocation, GraphKind, GraphShape

VOCABULARY = 6
PARAMETERS = (
    SamplingParameters(temperature=0.0, logprobs=3),
    SamplingParameters(temperature=1.0, seed=5, reproducible=True, prompt_logprobs=2),
    SamplingParameters(temperature=0.0, frequency_penalty=0.5, presence_penalty=0.25),
    SamplingParameters(temperature=0.7, seed=9, top_k=4, reproducible=True),
)
ROUNDS = (
    (decode_shape(4), (1, 1, 1)),
    (round_shape(4, 0), (1, 1, 1, 1)),
    (round_shape(4, 3), (4, 4, 2, 1)),
    (round_shape(4, 3, rows=9), (2, 3, 4)),
    (round_shape(4, 5, rows=8, allocation=Allocation.DEVICE), (6, 6, 6, 1)),
    (mixed_shape(4, 3, 64), (4, 3, 1)),
    (mixed_shape(4, 0, 64), (1, 1)),
    (mixed_shape(4, 3, 64, 3), (4, 3, 1)),
)


class NoHostValues(TorchDispatchMode):
    """Fails on operations that would make the host wait for the device, which no capture allows."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique"}, name
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    directory = tmp_path_factory.mktemp("captured")
    write_tiny_checkpoint(directory, seed=11, vocab_size=VOCABULARY, eos_token_id=None)
    source = open_source(directory)
    model = load_model(source, torch.float32, 512)
    write_tiny_draft_head(directory / "head.safetensors", source.config, draft_token_ids=(0, 1, 3, 4))
    return model, load_draft_head(directory / "head.safetensors", model)


def host_of(loaded, style) -> ProgramHost:
    host = ProgramHost(*loaded, style=style)
    for slot, parameters in enumerate(PARAMETERS):
        host.open(slot, [token % VOCABULARY for token in prompt_of(9 + 7 * slot, seed=slot)], parameters)
    return host


def run_all(host) -> list:
    """Prompts in chunks, scored and mixed, then every kind of round; the outputs of all runs."""
    outputs = [
        host.run(prefill_shape(64), host.chunk(0))[0],
        host.run(prefill_shape(64, scored=True), host.chunk(1, 6))[0],
        host.run(prefill_shape(64, scored=True), host.chunk(1))[0],
        host.run(mixed_shape(4, 3, 64), LaneInput(1, rows=3), host.chunk(2, 20), LaneInput(0, rows=4))[0],
        host.run(mixed_shape(4, 3, 64, 3), host.chunk(2), LaneInput(1, rows=4), host.chunk(3, 11))[0],
        host.run(mixed_shape(4, 3, 64), LaneInput(1, rows=4), host.chunk(3))[0],
    ]
    for copied in (None, np.array([1, 4, 2, 0, 5])):
        for shape, rows in ROUNDS:
            lanes = [
                LaneInput(slot, rows=count, copies=copied if slot == 1 else None) for slot, count in enumerate(rows)
            ]
            outputs.append(host.run(shape, *lanes)[0])
    return outputs


def assert_logprobs(actual, expected) -> None:
    assert [entry.token_id for entry in actual] == [entry.token_id for entry in expected]
    for one, other in zip(actual, expected, strict=True):
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
        np.testing.assert_allclose(one.logprob, other.logprob, rtol=1e-4, atol=1e-5)


def test_both_styles_do_the_same(loaded):
    eager, captured = (host_of(loaded, style) for style in ExecutionStyle)
    accepted = 0
    for expected, actual in zip(run_all(eager), run_all(captured), strict=True):
        for one, other in zip(actual.lanes, expected.lanes, strict=True):
            assert (one.emitted, one.accepted, one.offered, one.finite) == (
                other.emitted,
                other.accepted,
                other.offered,
                other.finite,
            )
            assert_logprobs(one.logprobs, other.logprobs)
            assert_logprobs(one.prompt_logprobs, other.prompt_logprobs)
            accepted += one.accepted
        if expected.survival is not None:
            np.testing.assert_allclose(actual.survival, expected.survival, rtol=1e-4, atol=1e-6)
    assert accepted > 0
    for name in ("cursor", "pending", "emitted"):
        assert torch.equal(getattr(eager.state, name)[:-1], getattr(captured.state, name)[:-1])
    torch.testing.assert_close(captured.state.last_hidden[:-1], eager.state.last_hidden[:-1], rtol=1e-4, atol=1e-4)


def test_scored_chunks_name_every_prompt_token_but_the_first(loaded):
    host = host_of(loaded, ExecutionStyle.EAGER)
    whole, _ = host.run(prefill_shape(64, scored=True), host.chunk(1))
    prompt = host.prompts[1]
    scores = whole.lanes[0].prompt_logprobs
    assert [entry.token_id for entry in scores] == prompt[1:]
    assert all(len(entry.top) == 2 for entry in scores)
    host = host_of(loaded, ExecutionStyle.EAGER)
    parts = [host.run(prefill_shape(64, scored=True), host.chunk(1, count))[0] for count in (1, 1, 7)]
    parts.append(host.run(prefill_shape(64, scored=True), host.chunk(1))[0])
    assert_logprobs([entry for part in parts for entry in part.lanes[0].prompt_logprobs], scores)
    assert host.outputs[1] == list(whole.lanes[0].emitted)


def test_execution_never_asks_for_a_value_and_keeps_its_buffers(loaded):
    host = host_of(loaded, ExecutionStyle.CAPTURED)
    for slot in range(4):
        host.prefill(slot)
    shapes = [shape for shape, _ in ROUNDS] + [prefill_shape(64), prefill_shape(64, scored=True)]
    for shape in shapes:
        program = host.program(shape)
        program.upload(())
        with torch.inference_mode(), NoHostValues():
            program.execute()
    state_shape = GraphShape(GraphKind.INIT, 2)
    for program in (create_init_program(state_shape, host.context), create_copy_program(state_shape, host.context)):
        with torch.inference_mode(), NoHostValues():
            program.execute()


def test_a_warm_up_in_captured_form_touches_padding_only(loaded):
    host = host_of(loaded, ExecutionStyle.CAPTURED)
    for slot in range(4):
        host.prefill(slot)
    before = tensors_of(host)
    for shape, _ in ROUNDS:
        host.run(shape)
    state = host.state
    for number, (old, new) in enumerate(zip(before, tensors_of(host), strict=True)):
        kept = torch.ones(len(old), dtype=torch.bool)
        kept[0 if number < 2 * len(host.cache.keys) else state.padding_slot if len(old) > state.slots else -1] = False
        assert torch.equal(old[kept], new[kept])


def test_a_captured_program_needs_a_device_table(loaded):
    host = host_of(loaded, ExecutionStyle.EAGER)
    context = ProgramContext(loaded[0], host.cache, host.state, host.table, style=ExecutionStyle.CAPTURED)
    host.context = context
    with pytest.raises(InvalidSettings):
        host.program(decode_shape(1))
