"""How CuPy is called, with a CuPy that runs the reference instead of a GPU; and the real one where there is a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from allocation_cases import allocation_cases

from gpu.allocation import create_allocator, cupy_kernel, torch_twin
from gpu.allocation.create import CupyAllocator
from gpu.device import DeviceUnavailable, InvalidSettings
from gpu.reference import allocation as reference

CPU = torch.device("cpu")
GPU = torch.cuda.is_available() and importlib.util.find_spec("cupy") is not None


def numbers(pointer: int, kind: type, *shape: int) -> np.ndarray:
    return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(kind)), shape)


class FakeCupy:
    """Stands in for the module: launches compute the reference's rows and note the stream they ran on."""

    def __init__(self) -> None:
        self.cuda = SimpleNamespace(ExternalStream=self._stream)
        self.launches: list[tuple[tuple[int, int | None] | None, tuple[int, ...]]] = []
        self._current: tuple[int, int | None] | None = None

    def RawModule(self, code, options):
        assert code == cupy_kernel.KERNEL_SOURCE.read_text()
        assert options == ("-DMAX_LANES=64", "-DMAX_DRAFTS=63")
        return SimpleNamespace(get_function={"allocate_rows": self._launch}.__getitem__)

    @contextlib.contextmanager
    def _stream(self, pointer, device_id):
        self._current = pointer, device_id
        yield
        self._current = None

    def _launch(self, grid, block, arguments):
        joint, limits, slots, lanes, depths, target_rows, rows = arguments
        assert grid == (1,)
        assert {type(size) for size in (lanes, depths, target_rows)} == {np.int32}
        written = numbers(rows, ctypes.c_int64, lanes)
        written[:] = reference.allocate_rows(
            numbers(joint, ctypes.c_float, lanes, depths).tolist(),
            numbers(limits, ctypes.c_int64, lanes).tolist(),
            numbers(slots, ctypes.c_int64, lanes).tolist(),
            int(target_rows),
        )
        self.launches.append((self._current, block))


@pytest.fixture
def streams(monkeypatch):
    """What torch.cuda says of a device that is not there; tests change the current stream."""
    streams = SimpleNamespace(current=100, capability=(9, 0))
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=streams.current))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: streams.capability)
    return streams


@pytest.fixture
def fake_cupy(streams):
    return FakeCupy()


@pytest.fixture
def allocator(fake_cupy):
    """Of the CPU, so that the fake kernel can read its tensors."""
    return CupyAllocator(fake_cupy, CPU)


def test_it_is_launched_once_before_its_first_use(allocator, fake_cupy):
    assert fake_cupy.launches == [((100, CPU.index), (32,))]


def test_every_launch_is_on_torchs_stream_of_that_moment(allocator, fake_cupy, streams):
    for case in allocation_cases(seed=2, small=20, large=6):
        streams.current += 1
        assert case.rows_of(allocator) == case.expected()
        assert fake_cupy.launches[-1] == ((streams.current, CPU.index), (32 * min(len(case.limits), 32),))


def test_a_device_without_the_warp_sum_is_refused(fake_cupy, streams):
    streams.capability = (7, 5)
    with pytest.raises(DeviceUnavailable, match=r"needs 8\.0"):
        CupyAllocator(fake_cupy, CPU)


def test_tensors_of_another_device_never_reach_the_kernel(allocator, fake_cupy):
    tensors = torch.ones((2, 3), device="meta"), *(torch.ones(2, dtype=torch.int64, device="meta"),) * 2
    with pytest.raises(InvalidSettings, match="joint is on meta"):
        allocator(*tensors, 2, torch.ones(2, dtype=torch.int64, device="meta"))
    assert len(fake_cupy.launches) == 1


def test_a_cupy_that_cannot_compile_is_no_allocator(streams):
    def RawModule(code, options):
        raise OSError("libnvrtc.so.13: cannot open shared object file")

    with pytest.raises(DeviceUnavailable, match=r"CuPy cannot run the allocation kernel on cpu: libnvrtc\.so\.13"):
        CupyAllocator(SimpleNamespace(RawModule=RawModule), CPU)


def test_a_cuda_device_without_cupy_takes_the_twin_and_says_so(monkeypatch, caplog):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(cupy_kernel.importlib, "import_module", missing)
    with caplog.at_level(logging.WARNING):
        assert create_allocator(torch.device("cuda", 0)) is torch_twin.allocate_rows
    assert "CuPy is not installed (extras cuda12 and cuda13)" in caplog.text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("form", ["twin", pytest.param("cupy", marks=pytest.mark.skipif(not GPU, reason="needs CuPy"))])
def test_a_captured_graph_gives_the_references_rows(form):
    """The captured launch reads what the static buffers hold at each replay."""
    device = torch.device("cuda", 0)
    allocate = torch_twin.allocate_rows if form == "twin" else create_allocator(device)
    assert form == "twin" or isinstance(allocate, CupyAllocator)
    for first in allocation_cases(seed=4, small=30, large=6):
        static = [torch.from_numpy(array).to(device) for array in (first.joint, first.limits, first.slots)]
        rows = torch.full((len(first.limits),), -99, device=device)
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            allocate(*static, first.target_rows, rows)
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            allocate(*static, first.target_rows, rows)
        rows.fill_(-99)
        graph.replay()
        assert rows.tolist() == first.expected()
        static[0].zero_()
        graph.replay()
        zeros = np.zeros_like(first.joint).tolist()
        assert rows.tolist() == reference.allocate_rows(
            zeros, first.limits.tolist(), first.slots.tolist(), first.target_rows
        )
