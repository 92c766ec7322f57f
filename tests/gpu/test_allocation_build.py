"""The kernel compiles for the GPUs that helios names, by nvcc and by NVRTC, where these are installed."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import pathlib
import shutil
import subprocess

import pytest

from gpu.allocation.cupy_kernel import KERNEL_NAME, KERNEL_OPTIONS, KERNEL_SOURCE

ARCHITECTURES = ("sm_80", "sm_90")


def nvrtc_library() -> str | None:
    """NVRTC from the pip package nvidia-cuda-nvrtc, as CuPy loads it, or from the system."""
    package = importlib.util.find_spec("nvidia")
    for folder in package.submodule_search_locations or () if package else ():
        for library in sorted(pathlib.Path(folder).glob("*/lib/libnvrtc.so.*")):
            return str(library)
    return ctypes.util.find_library("nvrtc")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvcc_compiles_it_without_spilling_registers(architecture, tmp_path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed (Debian: nvidia-cuda-toolkit, or NVIDIA's own packages)")
    command = [nvcc, f"-arch={architecture}", "--cubin", "-Xptxas", "-v", *KERNEL_OPTIONS]
    result = subprocess.run(
        [*command, "-o", tmp_path / "kernel.cubin", KERNEL_SOURCE], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "0 bytes spill stores, 0 bytes spill loads" in result.stderr
    assert "warning" not in result.stderr


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvrtc_compiles_it(architecture):
    library = nvrtc_library()
    if library is None:
        pytest.skip("NVRTC is not installed (pip install nvidia-cuda-nvrtc, or an extra: cuda12, cuda13)")
    nvrtc = ctypes.CDLL(library)
    program = ctypes.c_void_p()
    source = KERNEL_SOURCE.read_bytes()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernel.cu", 0, None, None) == 0
    options = [option.encode() for option in (f"-arch={architecture}", *KERNEL_OPTIONS)]
    status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert status == 0, log.value.decode()
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    assert KERNEL_NAME.encode() in cubin.raw
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
