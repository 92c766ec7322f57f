"""Optimises every kernel once, when it is whole.

numba links each function with all that it calls and optimises the result, again for every caller above it: a part
ten calls below a kernel is optimised ten times, which was most of the time that compiling took. While a kernel is
compiled by `linked_once`, its parts stay as they are and the kernel links them all. Calls that numba would have
inlined are inlined then.

This leans on parts of numba's code library that are not public (`_NEEDED`, `_NEEDED_OF_CLASS`). Where a version of
numba lacks one, kernels compile as numba does it: slower, to the same results.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from numba.core import codegen

_parts: set[str] = set()
_NEEDED = ("_linking_libraries", "_reload_init", "_final_module")
_NEEDED_OF_CLASS = ("_finalize_final_module", "_verify_declare_only_symbols")


def add_part(name: str) -> None:
    """Remembers the qualified name of a function that only kernels call."""
    _parts.add(name)


@contextlib.contextmanager
def linked_once() -> Iterator[None]:
    """Within it, compiling a kernel optimises the kernel and not its parts."""
    plain = getattr(codegen.JITCPUCodegen, "_library_class", None)
    if plain is not codegen.JITCodeLibrary or not all(hasattr(plain, name) for name in _NEEDED_OF_CLASS):
        yield
        return
    codegen.JITCPUCodegen._library_class = _KernelLibrary
    try:
        yield
    finally:
        codegen.JITCPUCodegen._library_class = plain


class _KernelLibrary(codegen.JITCodeLibrary):
    """A part's code as it was generated, or a kernel's with that of all its parts."""

    def finalize(self) -> None:
        if all(hasattr(self, name) for name in _NEEDED):
            called = _all_called(self)
            if self.name in _parts:
                self._finalize_part(called)
                return
            self._linking_libraries = called
        super().finalize()

    def _finalize_part(self, called: list[Any]) -> None:
        for library in called:
            self._reload_init.update(library._reload_init)
        self._final_module.verify()
        self._finalize_final_module()

    def _verify_declare_only_symbols(self) -> None:
        if self.name not in _parts:  # a part only declares what it calls
            super()._verify_declare_only_symbols()


def _all_called(library: Any) -> list[Any]:
    """Every library below `library`, each once, callers before what they call."""
    seen: dict[Any, None] = {}
    waiting = list(library._linking_libraries)
    while waiting:
        called = waiting.pop()
        if called not in seen:
            seen[called] = None
            waiting += called._linking_libraries
    return list(seen)
