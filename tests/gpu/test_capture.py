"""Programs as graphs, without a GPU: the same tokens through a stream that lags, and the same operations every time."""

from __future__ import annotations

import contextlib
import select

import numpy as np
import pytest
import torch
from deferred_stream import DeferredStream
from device_driver import DeviceDriver, prefill, state_graph
from op_recorder import OpRecorder
from tiny_checkpoint import write_tiny_checkpoint
from tiny_draft_head import write_tiny_draft_head

from gpu.capacity import CatalogLimits, MixedSizes, build_catalog
from gpu.cpu_device import CpuDevice
from gpu.create import _program, create_context
from gpu.cuda.inline_stream import InlineStream
from gpu.cuda_device import CudaDevice, captured_programs
from gpu.device import DeviceError, DeviceLimits, Frame, FrameLane, InvalidSettings, SamplingParameters
from gpu.model.draft_head import load_draft_head
from gpu.model.weights import load_model, open_source
from gpu.programs.interface import LaneInput, StateCopy
from scheduler.shapes import Allocation, GraphKind

VOCABULARY = 6
DEPTH = 3
CPU = torch.device("cpu")
CATALOG = CatalogLimits(
    batches=(1, 4),
    prefill_capacities=(16, 64),
    scored_capacities=(64,),
    draft_tokens=DEPTH,
    speculative_token_capacity=16,
    allocation=Allocation.DEVICE,
    mixed_prefill=True,
    mixed_declared=True,
    mixed_sizes=MixedSizes(prompt_rows=3),
    state_batches=(1, 4),
)
SHAPES = build_catalog(CATALOG)
LIMITS = DeviceLimits(
    context_tokens=112,
    kv_pages=40,
    page_tokens=16,
    vocab_size=VOCABULARY,
    request_slots=4,
    snapshot_rows=4,
    draft_tokens=DEPTH,
    learned_drafts=True,
)
REQUESTS = (
    ([1, 2, 3, 4, 5] * 5, SamplingParameters(temperature=0.0, logprobs=2)),
    ([0, 2, 4] * 7, SamplingParameters(temperature=1.0, seed=7, reproducible=True, prompt_logprobs=1)),
    ([3, 3, 1], SamplingParameters(temperature=0.0, frequency_penalty=0.5, logit_bias=((2, 1.5),))),
    ([5, 0, 1, 1, 2] * 3, SamplingParameters(temperature=0.8, seed=3, top_k=4, reproducible=True, logprobs=1)),
)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    directory = tmp_path_factory.mktemp("graphs")
    write_tiny_checkpoint(directory, seed=4, vocab_size=VOCABULARY, eos_token_id=None)
    source = open_source(directory)
    model = load_model(source, torch.float32, LIMITS.context_tokens + DEPTH)
    write_tiny_draft_head(directory / "head.safetensors", source.config, draft_token_ids=(0, 1, 3, 4))
    return model, load_draft_head(directory / "head.safetensors", model)


@pytest.fixture
def graphs(loaded):
    """A driver of a device on a stream that lags, the stream, and the context of its programs."""
    stream = DeferredStream()
    context = create_context(LIMITS, *loaded, CPU, captured=True)
    device = CudaDevice(SHAPES, LIMITS, context, stream)
    device.prepare(lambda what, share: None)
    yield DeviceDriver(device), stream, context
    device.shut_down(abandon=False)


@pytest.fixture
def plain(loaded):
    """A driver of the CPU's device."""
    context = create_context(LIMITS, *loaded, CPU, captured=False)
    device = CpuDevice(
        {shape: _program(shape, context) for shape in SHAPES}, LIMITS, context.state, context.sampling, threads=1
    )
    yield DeviceDriver(device)
    device.shut_down(abandon=False)


def shape_of(kind, batch, depth=0):
    """The first prepared shape of this kind with room for `batch` lanes and `depth` drafts."""
    return next(s for s in SHAPES if s.kind is kind and s.batch_capacity >= batch and s.draft_depth >= depth)


def two_frames(driver, stream, shape, first, second):
    """Two runs of one program over different lanes, the second queued before the first has begun; both results."""
    with stream.held():
        driver.submit(shape, *first)
        driver.submit(shape, *second)
    return [driver.wait(), driver.wait()]


def play(driver, stream) -> list:
    """Prompts, mixed cohorts, rounds of every shape, two frames in flight, a state captured and restored."""
    results = []
    for slot, (prompt, sampling) in enumerate(REQUESTS):
        driver.open(slot, prompt, 90, sampling)
        if slot == 1:
            results.append(driver.run(prefill(64, scored=True), (slot, 9)))
            results.append(driver.run(prefill(64, scored=True), (slot, len(prompt) - 9)))
        elif slot == 0:
            results.append(driver.run(prefill(64), (slot, len(prompt))))
    mixed = shape_of(GraphKind.MIXED, 4, DEPTH)
    results.append(driver.run(mixed, (3, len(REQUESTS[3][0]) - 4), (0, 2), (2, len(REQUESTS[2][0]))))
    results.append(driver.run(mixed, (0, 2), (3, 4), (2, 1)))
    for shape in SHAPES:
        if shape.kind is GraphKind.SPECULATIVE:
            rows = min(shape.lane_width, shape.target_rows // min(4, shape.batch_capacity))
            lanes = [(slot, max(rows, 1)) for slot in (2, 0, 1, 3)]
            size = shape.batch_capacity
            results += two_frames(driver, stream, shape, lanes[:size], lanes[::-1][:size])
    driver.capture(0)
    driver.device.close_request(1)
    prompt = REQUESTS[0][0] + [0]
    driver.open(1, prompt, 20, REQUESTS[0][1])
    results.append(driver.run(prefill(64), (1, len(prompt))))
    return results


def assert_equal_results(actual, expected) -> None:
    assert [entry.error for entry in actual] == [None] * len(expected)
    for one, other in zip(actual, expected, strict=True):
        for lane, reference in zip(one.lanes, other.lanes, strict=True):
            assert lane.emitted_tokens == reference.emitted_tokens
            assert lane.accepted_tokens == reference.accepted_tokens
            assert lane.offered_tokens == reference.offered_tokens
            for name in ("logprobs", "prompt_logprobs"):
                entries, wanted = getattr(lane, name), getattr(reference, name)
                assert [entry.token_id for entry in entries] == [entry.token_id for entry in wanted]
                np.testing.assert_allclose(
                    [entry.logprob for entry in entries], [entry.logprob for entry in wanted], rtol=1e-4, atol=1e-5
                )
        for name in ("confidence", "survival"):
            if getattr(other, name) is not None:
                np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-4, atol=1e-6)


class NoHold:
    """The CPU's device needs no stream."""

    held = contextlib.nullcontext


def test_graphs_two_deep_give_the_cpu_devices_results(graphs, plain):
    driver, stream, _ = graphs
    expected = play(plain, NoHold)
    actual = play(driver, stream)
    assert_equal_results(actual, expected)
    assert sum(lane.accepted_tokens for result in actual for lane in result.lanes) > 0
    assert any(lane.logprobs for result in actual for lane in result.lanes)


def test_nothing_that_a_replay_must_write_is_read_before(graphs, plain):
    """Every buffer of every program is poisoned before each replay, and fresh memory is filled with NaN."""
    driver, stream, _ = graphs
    poisoned = [tensor for program in driver.device._programs.values() for tensor in refilled_by_replay(program)]

    def poison() -> None:
        for tensor in poisoned:
            tensor.fill_(True if tensor.dtype is torch.bool else torch.nan if tensor.is_floating_point() else -77)

    stream.before_replay = poison
    expected = play(plain, NoHold)
    torch.use_deterministic_algorithms(True)
    try:
        actual = play(driver, stream)
    finally:
        torch.use_deterministic_algorithms(False)
    assert_equal_results(actual, expected)
    assert len(poisoned) > 100


def refilled_by_replay(captured) -> list[torch.Tensor]:
    """The static tensors that an inference program writes itself."""
    if not hasattr(captured, "_packed"):
        return []
    program, drafter = captured._program, captured._program._drafter
    verdict = program._sampler.verdict
    own = [program._lane_tokens, program._allocated, verdict.emitted, verdict.counts, verdict.finite, verdict.survival]
    own += [captured._packed._integers, captured._packed._reals]
    if drafter is not None:
        own += [drafter.token_ids, drafter.conditional, drafter.joint]
    if program._sampler._probabilities is not None:
        own.append(program._sampler._probabilities)
    return own


def inputs_of(shape, turn: int) -> list:
    """Two different uploads for a shape: other slots, lengths, tokens, copies and rows."""
    if shape.kind is GraphKind.INIT:
        return [turn]
    if shape.kind in (GraphKind.SNAPSHOT, GraphKind.RESTORE, GraphKind.TERMINAL_SNAPSHOT):
        return [StateCopy(1 + turn, 5, 3 + turn, source_slot=turn, target_row=turn)]
    prompt = LaneInput(3 - turn, np.arange(5 + turn) % VOCABULARY, finishes=bool(turn))
    if shape.kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL):
        return [prompt]
    lanes = [LaneInput(turn, rows=min(1 + turn, shape.lane_width))]
    if turn and shape.batch_capacity > 1:
        lanes.append(LaneInput(0, rows=shape.lane_width, copies=np.array([1, 2, 3])))
    return [prompt, *lanes, LaneInput(3, np.arange(6))] if shape.kind is GraphKind.MIXED and turn else lanes


def test_every_run_of_a_program_is_the_same_operations_on_the_same_addresses(graphs):
    driver, _, context = graphs
    for slot, (prompt, sampling) in enumerate(REQUESTS):
        driver.open(slot, prompt, 30, sampling)
    for shape, captured in driver.device._programs.items():
        traces = []
        for turn in (0, 1):
            context.state.cursor[turn] = 3 + 20 * turn
            context.state.pending[:4] = turn
            with torch.inference_mode():
                captured.send(captured.stage(inputs_of(shape, turn)))
                recorder = OpRecorder()
                with recorder:
                    captured.replay()
            traces.append(recorder.trace)
        assert len(traces[0]) > 2
        assert traces[0] == traces[1], shape.label


def test_programs_keep_to_their_device(tmp_path):
    """On torch's meta device a tensor of the host, or a question about a value, is an error, as it is on CUDA."""
    place = torch.device("meta")
    write_tiny_checkpoint(tmp_path, seed=4, vocab_size=VOCABULARY, eos_token_id=None)
    source = open_source(tmp_path)
    model = load_model(source, torch.float32, LIMITS.context_tokens + DEPTH, device=place)
    write_tiny_draft_head(tmp_path / "head.safetensors", source.config, draft_token_ids=(0, 1, 3, 4))
    context = create_context(LIMITS, model, load_draft_head(tmp_path / "head.safetensors", model), place, captured=True)
    stream = InlineStream()
    for program in captured_programs(SHAPES, context).values():
        program.capture(stream)
    sampling = REQUESTS[2][1]
    context.state.set_pages(1, 0, [3, 4])
    context.device_sampling.open(1, sampling, [1, 2], [3])
    assert context.cache.keys[0].device == context.state.cursor.device == place
    assert create_context(LIMITS, model, None, place, captured=False).device_sampling is not None


@pytest.mark.parametrize("bad", [lambda x: x[: int(x.sum())], lambda x: x[x > 0], lambda x: x + torch.tensor([1.0])])
def test_the_recorder_notices_what_no_graph_can_record(bad):
    with pytest.raises(AssertionError, match="makes the host wait"), OpRecorder():
        bad(torch.ones(3))


def test_the_recorder_notices_numbers_and_addresses_that_change():
    static = torch.ones(3)

    def trace(work):
        recorder = OpRecorder()
        with recorder:
            work()
        return recorder.trace

    assert trace(lambda: (static + 1) * 2) == trace(lambda: (static + 1) * 2)
    assert trace(lambda: static + 1) != trace(lambda: static + 2)
    assert trace(lambda: static + 1) != trace(lambda: torch.ones(3) + 1)
    other = torch.ones(3)
    assert trace(lambda: static + 1) != trace(lambda: other + 1)


def test_a_second_frame_is_staged_beside_the_first(graphs):
    driver, stream, _ = graphs
    for slot in (0, 1):
        driver.start(slot, REQUESTS[slot][0], 40)
    alone = shape_of(GraphKind.SPECULATIVE, 1)
    with stream.held():
        fences = [driver.submit(alone, (0, 1)), driver.submit(alone, (1, 1))]
        assert driver.device.collect() is None
        ready, _, _ = select.select([driver.device.completion_fd], [], [], 0)
        assert not ready
    results = [driver.wait(), driver.wait()]
    assert [result.fence for result in results] == fences
    assert results[0].completed_ns <= results[1].started_ns <= results[1].completed_ns
    assert all(result.device_ns > 0 for result in results)
    assert driver.device.busy_ns() >= sum(result.device_ns for result in results)


def test_programs_are_captured_largest_first(loaded):
    stream = DeferredStream()
    device = CudaDevice(SHAPES, LIMITS, create_context(LIMITS, *loaded, CPU, captured=True), stream)
    said = []
    device.prepare(lambda what, share: said.append((what, share)))
    labels = [what.removeprefix("capturing ") for what, _ in said[:-1]]
    rows = [next(shape.physical_rows for shape in SHAPES if shape.label == label) for label in labels]
    assert rows == sorted(rows, reverse=True)
    assert sorted(labels) == sorted(shape.label for shape in SHAPES)
    assert said[-1] == ("ready", 1.0)
    assert len(stream.captured) == len(SHAPES)
    device.shut_down(abandon=False)


def test_a_program_that_fails_fails_its_frame_alone(graphs):
    driver, stream, _ = graphs
    first = driver.start(0, REQUESTS[0][0], 40)

    def fail() -> None:
        raise RuntimeError("the device gave up")

    stream.before_replay = fail
    alone = shape_of(GraphKind.SPECULATIVE, 1)
    driver.submit(alone, (0, 1))
    result = driver.wait()
    assert result.error == "RuntimeError: the device gave up"
    assert result.lanes == ()
    assert 0 <= first < VOCABULARY


def test_an_upload_that_cannot_be_queued_fails_its_frame(graphs, monkeypatch):
    driver, _, _ = graphs
    driver.start(0, REQUESTS[0][0], 40)
    alone = shape_of(GraphKind.SPECULATIVE, 1)
    program = driver.device._programs[alone]

    def refuse(inputs):
        raise ValueError("no room")

    monkeypatch.setattr(program, "stage", refuse)
    driver.device.submit(Frame(90, alone, (FrameLane(0, 1),)))
    assert driver.wait().error == "ValueError: no room"
    monkeypatch.undo()
    driver._fence = 90
    assert driver.run(alone, (0, 1)).lanes[0].emitted_tokens


def test_a_program_that_cannot_be_captured_is_named(loaded, monkeypatch):
    device = CudaDevice(SHAPES, LIMITS, create_context(LIMITS, *loaded, CPU, captured=True), DeferredStream())
    shape = shape_of(GraphKind.MIXED, 4)

    def fail(stream):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(device._programs[shape], "capture", fail)
    with pytest.raises(DeviceError, match=f"{shape.label} cannot be captured: operation not permitted"):
        device.prepare(lambda what, share: None)
    device.shut_down(abandon=False)


def test_eager_programs_are_no_graphs(loaded):
    with pytest.raises(InvalidSettings, match="captured style"):
        CudaDevice(SHAPES, LIMITS, create_context(LIMITS, *loaded, CPU, captured=False), DeferredStream())


def test_a_slot_reused_behind_a_queued_frame_leaves_that_frame_alone(graphs, plain):
    """The close and the new request's row are queued behind the frame that still runs."""
    results = {}
    for name, (driver, stream) in {"graphs": graphs[:2], "plain": (plain, NoHold)}.items():
        for slot in (0, 2):
            driver.start(slot, REQUESTS[slot][0], 40, sampling=REQUESTS[slot][1])
        shape = shape_of(GraphKind.SPECULATIVE, 4, DEPTH)
        with stream.held():
            driver.submit(shape, (0, 2), (2, 2))
            driver.device.close_request(0)
            driver.device.open_request(0, REQUESTS[3][0], 20, REQUESTS[3][1])
            driver.submit(shape_of(GraphKind.SPECULATIVE, 1), (2, 1))
        pair = [driver.wait(), driver.wait()]
        pair.append(driver.run(state_graph(GraphKind.INIT), (0, 1)))
        pair.append(driver.run(prefill(64), (0, len(REQUESTS[3][0]))))
        results[name] = pair
    assert_equal_results(results["graphs"], results["plain"])
