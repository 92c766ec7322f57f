"""Kernels are optimised once, when they are whole; what numba compiles otherwise is as it was."""

import subprocess
import sys
from pathlib import Path

from scheduler.kernels import loader

ROOT = Path(loader.__file__).parents[2]

CODE = """
import numba
from numba.core import codegen

full = []
plain = codegen.CPUCodeLibrary._optimize_final_module
def counted(library):
    full.append(library.name)
    plain(library)
codegen.CPUCodeLibrary._optimize_final_module = counted

from scheduler.kernels.jit import allocating, entry, inlined, inner
import numpy as np

@inlined
def leaf(x):
    return x * 2

@inner
def middle(x):
    return leaf(x) + leaf(x + 1)

@allocating
def whole(x):
    values = np.zeros(3, np.int64)
    values[1] = middle(x)
    return values

@entry(numba.int64(numba.int64))
def kernel(x):
    return whole(x).sum() + middle(x)

@numba.njit
def other(x):
    return max(x, 3)

assert kernel.py_func.__name__ == "kernel" and kernel(5) == 44, kernel(5)
assert other(2) == 3
assert {"leaf", "middle", "whole"}.isdisjoint(full), full
assert "other" in full, full
assert codegen.JITCPUCodegen._library_class is codegen.JITCodeLibrary
"""


def test_parts_are_optimised_with_their_kernel_only(tmp_path):
    (tmp_path / "kernel_of_test.py").write_text(CODE)
    environment = {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}

    for _ in ("compiled", "from the cache"):
        command = [sys.executable, str(tmp_path / "kernel_of_test.py")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
