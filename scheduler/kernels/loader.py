"""Loads the compiled kernels: the only way to them, so that importing scheduler never imports numba.

numba's cache does not notice when a function that a cached kernel calls has changed. So the cache directory carries
a digest of every source that kernels are made of, of numba's version and of Python's.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import sys
import types
from pathlib import Path

_PACKAGE = "scheduler.kernels"
_SOURCES = Path(__file__).parent


def kernel_digest() -> str:
    """A digest of the kernels' sources and of what compiles them, as 16 hexadecimal digits."""
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted([*_SOURCES.glob("*.py"), _SOURCES.parent / "layout.py"]):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def load_kernels(cache_root: Path | None = None) -> types.ModuleType:
    """The module scheduler.kernels.entries, compiled or read from the cache under `cache_root`.

    The default is numba's own setting (NUMBA_CACHE_DIR), else ~/.cache/helios/kernels. Two processes may start at
    once: numba replaces its files atomically. The first start compiles for about a minute.
    """
    numba = importlib.import_module("numba")
    root = cache_root or Path(numba.config.CACHE_DIR or Path.home() / ".cache" / "helios" / "kernels")
    numba.config.CACHE_DIR = str(root / f"{numba.__version__}-{kernel_digest()}")
    return importlib.import_module(f"{_PACKAGE}.entries")
