"""Loads the compiled kernels: the only way to them, so that importing scheduler never imports numba.

numba's cache does not notice when a function that a cached kernel calls has changed. So the cache directory carries
a digest of every source that kernels are made of, of numba's version and of Python's.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import sys
import types
from pathlib import Path

_PACKAGE = "scheduler.kernels"
_SOURCES = Path(__file__).parent
_NOT_COMPILED = ("__init__.py", "__main__.py", "entries.py", "loader.py")


def kernel_digest() -> str:
    """A digest of the kernels' sources and of what compiles them, as 16 hexadecimal digits."""
    digest = hashlib.sha256(sys.version.encode())
    kernels = (path for path in _SOURCES.glob("*.py") if path.name not in _NOT_COMPILED)
    for path in sorted([*kernels, _SOURCES.parent / "layout.py"]):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def kernels_are_cached(cache_root: Path | None = None) -> bool:
    """Whether load_kernels() will read them from the cache, in a second, instead of compiling them."""
    return _marker(_cache_directory(cache_root)).exists()


@functools.cache
def load_kernels(cache_root: Path | None = None) -> types.ModuleType:
    """The module scheduler.kernels.entries, compiled or read from the cache under `cache_root`.

    The default is numba's own setting (NUMBA_CACHE_DIR), else ~/.cache/helios/kernels. Two processes may start at
    once: numba replaces its files atomically. Compiling takes one to two minutes, once.
    """
    directory = _cache_directory(cache_root)
    numba = importlib.import_module("numba")
    entries = load_module("entries", cache_root)
    if numba.config.DISABLE_JIT:  # nothing was compiled
        return entries
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time at the next start, nothing else
        _marker(directory).touch()
    return entries


def load_module(name: str, cache_root: Path | None = None) -> types.ModuleType:
    """One module of the kernels, with the entries that it holds compiled or read from the cache."""
    numba = importlib.import_module("numba")
    numba.config.CACHE_DIR = str(_cache_directory(cache_root))
    return importlib.import_module(f"{_PACKAGE}.{name}")


@functools.cache
def _cache_directory(cache_root: Path | None) -> Path:
    numba = importlib.import_module("numba")
    root = cache_root or Path(numba.config.CACHE_DIR or Path.home() / ".cache" / "helios" / "kernels")
    return root / f"{numba.__version__}-{kernel_digest()}"


def _marker(directory: Path) -> Path:
    """Says that every kernel of this checkout is in the cache: numba files them by the sources' path."""
    return directory / f"complete-{hashlib.sha256(str(_SOURCES).encode()).hexdigest()[:16]}"
