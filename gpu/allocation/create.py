"""Which form of device allocation a device uses."""

from __future__ import annotations

import logging

import torch

from gpu.allocation import torch_twin
from gpu.allocation.buffers import RowAllocator
from gpu.allocation.cupy_kernel import CupyAllocator, load_cupy
from gpu.device import DeviceUnavailable

_log = logging.getLogger(__name__)


def create_allocator(device: torch.device) -> RowAllocator:
    """The CUDA kernel, compiled and launched once, where `device` is CUDA and CuPy works; the torch twin elsewhere.

    Call it before any capture. Both give the same rows.
    """
    if device.type != "cuda":
        return torch_twin.allocate_rows
    try:
        return CupyAllocator(load_cupy(), device)
    except DeviceUnavailable as error:
        _log.warning("target rows are allocated by torch operations, not by one kernel: %s", error)
        return torch_twin.allocate_rows
