"""What is asked of torch.cuda, with a torch.cuda that only writes down what it is asked; the memory plan; no CUDA."""

from __future__ import annotations

import contextlib
import gc
from types import SimpleNamespace

import pytest
import torch

from gpu.cuda.availability import find_cuda
from gpu.cuda.inline_stream import InlineStream
from gpu.cuda.memory import GpuMemory, plan_kv_pages, programs_bytes
from gpu.cuda.stream import CudaStream
from gpu.device import DeviceUnavailable, InvalidSettings
from gpu.model.config import ModelConfig
from scheduler.shapes import GraphKind, GraphShape

CONFIG = ModelConfig(
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=128,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    context_tokens=512,
    norm_epsilon=1e-5,
    rope_theta=10000.0,
    tied_embeddings=True,
)


class FakeCuda:
    """Stands in for torch.cuda: `log` is what was asked, in order."""

    def __init__(self, monkeypatch) -> None:
        self.log = []
        self.streams = []
        for name in ("Stream", "Event", "CUDAGraph", "stream", "graph_pool_handle", "synchronize", "empty_cache"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def Stream(self, device):
        name = f"stream {len(self.streams)}"
        self.streams.append(name)
        return SimpleNamespace(
            name=name,
            wait_stream=lambda other: self.log.append((name, "waits for", other.name)),
            synchronize=lambda: self.log.append((name, "synchronize")),
        )

    def Event(self, enable_timing=False, blocking=False):
        kind = "timing" if enable_timing else "blocking" if blocking else "spinning"
        return SimpleNamespace(
            record=lambda stream: self.log.append((kind, "record", stream.name)),
            synchronize=lambda: self.log.append((kind, "synchronize")),
            elapsed_time=lambda end: 0.25,
        )

    def CUDAGraph(self):
        return SimpleNamespace(
            capture_begin=lambda pool, capture_error_mode: self.log.append(("begin", pool, capture_error_mode)),
            capture_end=lambda: self.log.append(("end",)),
            replay=lambda: self.log.append(("replay",)),
        )

    @contextlib.contextmanager
    def stream(self, stream):
        self.log.append(("enter", stream.name))
        yield
        self.log.append(("leave", stream.name))

    def graph_pool_handle(self):
        return "pool"

    def synchronize(self):
        self.log.append(("synchronize",))

    def empty_cache(self):
        self.log.append(("empty_cache",))


@pytest.fixture
def cuda(monkeypatch):
    return FakeCuda(monkeypatch)


def test_a_capture_follows_two_warm_ups_on_one_side_stream_into_one_pool(cuda):
    stream = CudaStream(torch.device("cpu"))
    replays = [stream.capture(lambda name=name: cuda.log.append((name,))) for name in ("large", "small")]
    once = [
        ("stream 1", "waits for", "stream 0"),
        ("enter", "stream 1"),
        ("work",),
        ("stream 1", "synchronize"),
        ("work",),
        ("stream 1", "synchronize"),
        ("begin", "pool", "thread_local"),
        ("work",),
        ("end",),
        ("leave", "stream 1"),
        ("stream 0", "waits for", "stream 1"),
    ]
    assert cuda.log == [(name,) if entry == ("work",) else entry for name in ("large", "small") for entry in once]
    cuda.log.clear()
    with stream.current():
        assert torch.is_inference_mode_enabled()
        stream.run(replays[1])
    assert cuda.log == [("enter", "stream 0"), ("replay",), ("leave", "stream 0")]


def test_a_capture_that_fails_is_ended_and_says_why(cuda):
    stream = CudaStream(torch.device("cpu"))
    runs = []

    def work() -> None:
        runs.append(1)
        if len(runs) == 3:
            raise ValueError("cannot be recorded")

    with pytest.raises(ValueError, match="cannot be recorded"):
        stream.capture(work)
    assert ("end",) in cuda.log


def test_no_garbage_is_collected_while_recording(cuda):
    stream = CudaStream(torch.device("cpu"))
    with contextlib.suppress(ZeroDivisionError), stream.recording():
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()
    assert cuda.log.count(("empty_cache",)) == 2


def test_marks_time_the_program_and_sleep_until_its_results_are_there(cuda):
    marks = CudaStream(torch.device("cpu")).new_marks()
    marks.begin()
    marks.end()
    marks.fetched()
    marks.wait()
    assert cuda.log == [
        ("timing", "record", "stream 0"),
        ("timing", "record", "stream 0"),
        ("blocking", "record", "stream 0"),
        ("blocking", "synchronize"),
    ]
    assert marks.device_ns() == 250_000


def test_an_inline_stream_runs_at_once():
    stream, runs = InlineStream(), []
    replay = stream.capture(lambda: runs.append(torch.is_inference_mode_enabled()))
    with stream.recording(), stream.current():
        stream.run(replay)
    assert runs == [True, True]
    marks = stream.new_marks()
    marks.begin()
    marks.end()
    marks.fetched()
    marks.wait()
    assert marks.device_ns() >= 1


def decode(batch, width=1):
    return GraphShape(GraphKind.SPECULATIVE, batch, draft_depth=width - 1, target_width=width, speculation_enabled=True)


def test_the_programs_need_twice_the_largest_and_every_ones_logits():
    def needed(*shapes):
        return programs_bytes(shapes, CONFIG, 32, torch.float32)

    one, eight = decode(1), decode(8)
    logits = 1000 * 4
    assert needed(one, eight) == needed(eight) + logits
    assert needed(one, one, eight) == needed(eight) + 2 * logits
    assert needed(decode(8, 4)) > needed(eight)
    assert needed(GraphShape(GraphKind.INIT, 4)) > 0
    one_prompt, two, four = (GraphShape(GraphKind.MIXED, 8, prefill_capacity=512, prompt_rows=n) for n in (1, 2, 4))
    assert needed(one_prompt) < needed(two) < needed(four) < 3 * needed(one_prompt)


def test_pages_take_what_is_left_but_a_twentieth_and_no_more_than_useful():
    memory = GpuMemory(free=1000, total=2000)
    assert plan_kv_pages(memory, 10, 300, 10_000, None) == 60
    assert plan_kv_pages(memory, 10, 300, 25, None) == 25
    assert plan_kv_pages(memory, 10, 300, 25, 60) == 60


@pytest.mark.parametrize(("reserved", "wanted"), [(300, 61), (300, 0), (895, None), (5000, None)])
def test_pages_that_do_not_fit_are_refused_with_what_fits(reserved, wanted):
    room = max(0, 900 - reserved) // 10
    with pytest.raises(InvalidSettings, match=f"room for {room} of them"):
        plan_kv_pages(GpuMemory(1000, 2000), 10, reserved, 100, wanted)


def test_without_cuda_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(DeviceUnavailable, match="TORCH_INDEX"):
        find_cuda()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceUnavailable, match="nvidia-smi"):
        find_cuda()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    assert find_cuda() == torch.device("cuda", 2)
