"""Kernel modules as plain Python, for tests of single kernels: compiling each of their parts would take minutes.

Decorators compile nothing while numba.config.DISABLE_JIT is set, so a second copy of the modules is imported then. The
compiled ones are compared with the reference by the differential tests.
"""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType

import numba

_PACKAGE = "scheduler.kernels"


@functools.cache
def _load() -> dict[str, ModuleType]:
    """Every kernel module but the entries, uncompiled; the modules that others import stay as they were."""
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(_PACKAGE)}
    parent = sys.modules.get("scheduler")
    disabled, numba.config.DISABLE_JIT = numba.config.DISABLE_JIT, 1
    try:
        for name in ("ragged", "fixed_ragged", "prerequisites", "probes", "additive", "context", "plan"):
            importlib.import_module(f"{_PACKAGE}.{name}")
        return {name: module for name, module in sys.modules.items() if name.startswith(_PACKAGE)}
    finally:
        numba.config.DISABLE_JIT = disabled
        for name in [name for name in sys.modules if name.startswith(_PACKAGE)]:
            del sys.modules[name]
        sys.modules.update(kept)
        if parent is not None and _PACKAGE in kept:
            parent.kernels = kept[_PACKAGE]  # type: ignore[attr-defined]


def plain(name: str) -> ModuleType:
    """scheduler.kernels.`name` as plain Python."""
    return _load()[f"{_PACKAGE}.{name}"]
