"""Decoding lanes of one row each, which read their keys and values in place: a CPU's quick way.

gpu.programs.attention.LaneWindow does the same with torch's own operations, for every width, precision and device; it
copies each lane's keys and values together first, which takes most of its time.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gpu.model.config import ModelConfig
from gpu.pages import PAGE_TOKENS
from gpu.programs.interface import ExecutionStyle, Int64, ProgramContext

_MOST_THREADS = 2
"""The kernel has one thread and was 2.3 times as fast as one of torch's (16 lanes of 170 tokens, RESULTS.md)."""


def reads_pages_in_place(context: ProgramContext, width: int) -> bool:
    """Whether PagedWindow should stand in for a LaneWindow of `width` rows per lane."""
    return (
        context.state.device.type == "cpu"
        and context.style is ExecutionStyle.EAGER
        and context.model.dtype == torch.float32
        and width == 1
        and torch.get_num_threads() <= _MOST_THREADS
    )


class PagedWindow:
    """Lanes of one row each. A lane without a row gets zeros."""

    def __init__(self, config: ModelConfig, pages: Int64, cursors: Int64, lengths: Int64) -> None:
        """`pages` [lanes, columns], `cursors` and `lengths` (0 or 1) [lanes]: a lane's row is at position cursor.

        In numpy, for the reason that host_rows gives.
        """
        self._kernel = load_kernel()
        self._pages = np.ascontiguousarray(pages)
        self._counts = np.where(lengths > 0, cursors + 1, 0)
        self._scale = config.head_dim**-0.5
        self._weights = np.empty((1, pages.shape[1] * PAGE_TOKENS), dtype=np.float32)
        self._output = (len(pages), config.heads * config.head_dim)

    def attend(self, keys: torch.Tensor, values: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        """Query [lanes, heads, head_dim] over a layer's `keys` and `values` -> [lanes, heads * head_dim]."""
        mixed = torch.empty(self._output)
        self._kernel(
            keys.numpy(),
            values.numpy(),
            query.contiguous().numpy(),
            self._pages,
            self._counts,
            PAGE_TOKENS,
            self._scale,
            self._weights,
            mixed.numpy(),
        )
        return mixed


@functools.cache
def load_kernel() -> Callable[..., Any]:
    """The compiled loop; the first call compiles it in a few seconds, or reads numba's cache."""
    kernel: Callable[..., Any] = importlib.import_module("gpu.programs.paged_attention_kernel").attend_rows
    return kernel
