"""Builds gpu/allocation/kernel.cu with g++ and the shim in tests/gpu/cuda_shim, and runs cases on it."""

from __future__ import annotations

import pathlib
import random
import subprocess
from collections.abc import Sequence

import numpy as np
from allocation_cases import Case
from needs import program

from gpu.allocation.cupy_kernel import KERNEL_OPTIONS

SHIM = pathlib.Path(__file__).parent / "gpu" / "cuda_shim"
_FLAGS = ("-std=c++17", "-O1", "-U_FORTIFY_SOURCE", "-Wall", "-Wextra")
_MOST_WARPS = 32


class KernelFault(Exception):
    """The shim stopped the kernel; the message says why."""


class KernelBuilder:
    """Compiles the shim once, and any number of kernel sources against it."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._compiler = program("g++", instruction="tests of CUDA sources need g++ (Debian: apt-get install g++)")
        self._objects = [self._compile(SHIM / name) for name in ("fibres.cc", "run_allocation.cc")]

    def build(self, name: str, source: str) -> pathlib.Path:
        """The program that runs this kernel source on cases."""
        path = self._directory / f"{name}.cu"
        path.write_text(source)
        kernel = self._compile(path, "-fsanitize=thread", *KERNEL_OPTIONS, "-include", str(SHIM / "cuda_shim.h"))
        built = self._directory / name
        subprocess.run([self._compiler, kernel, *self._objects, "-o", built], check=True)
        return built

    def _compile(self, source: pathlib.Path, *options: str) -> pathlib.Path:
        target = self._directory / f"{source.name}.o"
        command = [self._compiler, *_FLAGS, *options, "-x", "c++", "-c", source, "-o", target]
        subprocess.run(command, check=True)
        return target


def run_cases(built: pathlib.Path, cases: Sequence[Case], seed: int = 0) -> list[list[int]]:
    """Each case's rows, with random numbers of warps and thread orders that `seed` fixes. Raises KernelFault."""
    dice = random.Random(seed)
    blob = b"".join(_encode(case, dice) for case in cases)
    result = subprocess.run([built], input=blob, capture_output=True, check=False)
    if result.returncode:
        raise KernelFault(f"{result.returncode}: {result.stderr.decode()}")
    rows = np.frombuffer(result.stdout, np.int64)
    ends = np.cumsum([len(case.limits) for case in cases])
    assert len(rows) == ends[-1]
    return [part.tolist() for part in np.split(rows, ends[:-1])]


def _encode(case: Case, dice: random.Random) -> bytes:
    lanes, depths = case.joint.shape
    warps = dice.choice((1, 2, 3, min(lanes, _MOST_WARPS)))
    head = np.array([lanes, depths, case.target_rows, warps, dice.randrange(2**31)], dtype=np.int32)
    arrays = case.joint.astype(np.float32), case.limits, case.slots
    return head.tobytes() + b"".join(array.tobytes() for array in arrays)
