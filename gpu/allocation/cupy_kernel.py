"""Device allocation by kernel.cu, compiled by CuPy at start-up and launched on torch's current stream."""

from __future__ import annotations

import importlib
import pathlib
import types

import numpy as np
import torch

from gpu.allocation.buffers import MAX_DRAFTS, MAX_LANES, check_buffers
from gpu.device import DeviceUnavailable, InvalidSettings

KERNEL_SOURCE = pathlib.Path(__file__).parent / "kernel.cu"
KERNEL_NAME = "allocate_rows"
KERNEL_OPTIONS = (f"-DMAX_LANES={MAX_LANES}", f"-DMAX_DRAFTS={MAX_DRAFTS}")

_WARP = 32
_MOST_WARPS = 32
_LEAST_CAPABILITY = (8, 0)  # the kernel adds across a warp in one instruction


def load_cupy() -> types.ModuleType:
    """The module cupy, an optional extra that nothing else imports. Raises DeviceUnavailable without it."""
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise DeviceUnavailable(f"CuPy is not installed (extras cuda12 and cuda13): {error}") from error


class CupyAllocator:
    """A RowAllocator for one CUDA device. A launch allocates nothing and can be captured in a CUDA graph."""

    def __init__(self, cupy: types.ModuleType, device: torch.device) -> None:
        """Compile the kernel and launch it once, so that no first launch falls into a capture.

        Raises DeviceUnavailable when the device is too old or the kernel cannot be compiled or launched here.
        """
        self._cupy = cupy
        self._device = torch.empty(0, device=device).device  # with its index
        capability = torch.cuda.get_device_capability(self._device)
        if capability < _LEAST_CAPABILITY:
            raise DeviceUnavailable(f"{self._device} has compute capability {capability}; the kernel needs 8.0")
        try:
            with torch.cuda.device(self._device):
                module = cupy.RawModule(code=KERNEL_SOURCE.read_text(encoding="utf-8"), options=KERNEL_OPTIONS)
                self._kernel = module.get_function(KERNEL_NAME)
            self._launch_once()
        except Exception as error:  # CuPy's compiler, driver and runtime errors share no other base
            raise DeviceUnavailable(f"CuPy cannot run the allocation kernel on {self._device}: {error}") from error

    def _launch_once(self) -> None:
        joint = torch.ones((1, 1), device=self._device)
        one = torch.ones(1, dtype=torch.int64, device=self._device)
        rows = torch.zeros_like(one)
        self(joint, one, one, 1, rows)
        if rows.tolist() != [1]:
            raise RuntimeError(f"a lone lane got {rows.tolist()} rows, not [1]")

    def __call__(
        self, joint: torch.Tensor, limits: torch.Tensor, slots: torch.Tensor, target_rows: int, rows: torch.Tensor
    ) -> None:
        """See RowAllocator; the tensors are on this allocator's device."""
        check_buffers(joint, limits, slots, rows)
        if joint.device != self._device:
            raise InvalidSettings(f"joint is on {joint.device}, the allocator on {self._device}")
        lanes, depths = joint.shape
        inputs = joint.data_ptr(), limits.data_ptr(), slots.data_ptr()
        sizes = np.int32(lanes), np.int32(depths), np.int32(target_rows)
        threads = _WARP * min(lanes, _MOST_WARPS)
        with torch.cuda.device(self._device):
            # CuPy launches on a current stream of its own. Stream.from_external, which is to replace ExternalStream, is
            # missing before CuPy 14 and may destroy torch's stream when the wrapper goes.
            stream = torch.cuda.current_stream(self._device).cuda_stream
            with self._cupy.cuda.ExternalStream(stream, self._device.index):
                self._kernel((1,), (threads,), (*inputs, *sizes, rows.data_ptr()))
