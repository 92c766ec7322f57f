"""What is installed here."""

from __future__ import annotations

import platform

import torch

from gpu.allocation.cupy_kernel import load_cupy
from gpu.device import DeviceUnavailable


def versions(place: torch.device) -> str:
    """Python, torch, and on CUDA the device, its driver and CuPy."""
    found = [f"Python {platform.python_version()}", f"torch {torch.__version__}"]
    if place.type == "cuda":
        properties = torch.cuda.get_device_properties(place)
        major, minor = torch.cuda.get_device_capability(place)
        free, total = torch.cuda.mem_get_info(place)
        found += [
            f"CUDA {torch.version.cuda}",
            f"driver for CUDA {_driver()}",
            f"{properties.name} (sm_{major}{minor}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free)",
            _cupy(),
        ]
    else:
        found.append(f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}")
    return ", ".join(found)


def _driver() -> str:
    version = int(torch._C._cuda_getDriverVersion())  # type: ignore[attr-defined]  # 13000 is 13.0
    return f"{version // 1000}.{version % 1000 // 10}"


def _cupy() -> str:
    try:
        return f"CuPy {load_cupy().__version__}"
    except DeviceUnavailable:
        return "no CuPy"
