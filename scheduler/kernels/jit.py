"""The one place for numba's options. `inner`, `inlined` and `allocating` functions are compiled into their
callers; entries have signatures.

No fastmath: results are the plain twin's, bit for bit. error_model="numpy" only removes division checks, whose
operands the callers keep away from 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

from scheduler import layout
from scheduler.kernels.linking import add_part, linked_once

_F = TypeVar("_F", bound=Callable[..., Any])

void = numba.void
int64 = numba.int64
float64 = numba.float64
ints = numba.int64[::1]
ints_2d = numba.int64[:, ::1]
floats = numba.float64[::1]
floats_2d = numba.float64[:, ::1]
floats_3d = numba.float64[:, :, ::1]
floats_4d = numba.float64[:, :, :, ::1]
floats_5d = numba.float64[:, :, :, :, ::1]
float32s_2d = numba.float32[:, ::1]
float32s_3d = numba.float32[:, :, ::1]
int8s_2d = numba.int8[:, ::1]


def records(dtype: np.dtype[np.void]) -> Any:
    """The type of a contiguous array of records."""
    return numba.from_dtype(dtype)[::1]


def records_2d(dtype: np.dtype[np.void]) -> Any:
    """The type of a contiguous two-dimensional array of records."""
    return numba.from_dtype(dtype)[:, ::1]


slots_type = records(layout.SLOT)
graphs_type = records(layout.GRAPH)
policy_type = records(layout.POLICY)
decision_type = records(layout.DECISION)
candidates_type = records(layout.CANDIDATE)
views_type = records(layout.VIEW)
frames_type = records(layout.FRAME)
lanes_type = records_2d(layout.LANE)
lane_rows_type = records(layout.LANE)
participants_type = records_2d(layout.PARTICIPANT)


def inner(function: _F) -> _F:
    """A kernel's part, which allocates no array and returns none.

    Called by kernels only: without wrappers for Python, which took most of the compile time, and without counting
    references to arrays, which took most of the run time: a part is passed a dozen of them.
    """
    add_part(function.__qualname__)
    compiled: _F = numba.njit(error_model="numpy", _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
    return compiled


def inlined(function: _F) -> _F:
    """An `inner` part that is short or often called: its code replaces the call, which passes a hundred words."""
    add_part(function.__qualname__)
    options = {"error_model": "numpy", "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    compiled: _F = numba.njit(forceinline=True, **options)(function)
    return compiled


def allocating(function: _F) -> _F:
    """A kernel's part that makes arrays, or calls one that returns them.

    _nrt says so: without it such a part would take over its caller's setting.
    """
    add_part(function.__qualname__)
    compiled: _F = numba.njit(error_model="numpy", _nrt=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
    return compiled


def entry(signature: Any) -> Callable[[_F], _F]:
    """A kernel called from Python, compiled when its module is imported, or read from the cache."""

    def compile_now(function: _F) -> _F:
        with linked_once():
            compiled: _F = numba.njit(signature, cache=True, error_model="numpy", no_cfunc_wrapper=True)(function)
        return compiled

    return compile_now
