"""What a layer does to its rows besides products and attention: norms and rotations, for every step.

Torch's operations are the twin, and what every device, precision and captured program runs. On a CPU they are short
beside what calling them takes: a norm of 16 rows is eight operations, each of which finds its code in a cache that the
products have emptied. Compiled loops do each step in one call.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812

_MOST_THREADS = 2
"""The loops have one thread."""

Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Query [rows, queries, head_dim], key and value [rows, kv_heads * head_dim], contiguous but for torch's query."""


class RowOperations(Protocol):
    """Over x [rows, width] and weights [width]. A row's result depends on no other row."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Return x / sqrt(mean(x²) + epsilon) * weight (Zhang and Sennrich, "Root Mean Square Layer Normalization")."""

    def add_and_norm(self, x: torch.Tensor, addend: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Add `addend` [rows, width] to x in place, then norm() of x."""

    def split_heads(self, fused: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], kv_heads: int) -> Heads:
        """Rotate queries and keys of `fused` [rows, queries + 2 * kv_heads, head_dim]; there may be no queries.

        `rotation`: cosines and sines [rows, 1, head_dim], the sines' first half negated (Su et al., "RoFormer", 2021,
        with the halves of a head as pairs).
        """


class TorchRows:
    """By torch."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, epsilon)

    def add_and_norm(self, x: torch.Tensor, addend: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        x += addend
        return self.norm(x, weight, epsilon)

    def split_heads(self, fused: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], kv_heads: int) -> Heads:
        rows, width = len(fused), kv_heads * fused.shape[2]
        turned, queries = fused.shape[1] - kv_heads, fused.shape[1] - 2 * kv_heads
        rotated = rotate(fused[:, :turned], *rotation)
        return rotated[:, :queries], rotated[:, queries:].reshape(rows, width), fused[:, turned:].reshape(rows, width)


class HostRows:
    """By compiled loops, for contiguous float32 tensors in the host's memory that need no gradient."""

    def __init__(self) -> None:
        kernels = load_kernels()
        self._norm, self._add_and_norm = kernels.norm_rows, kernels.add_and_norm_rows
        self._split_heads = kernels.split_heads

    def norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        normed = torch.empty_like(x)
        self._norm(x.numpy(), weight.numpy(), epsilon, normed.numpy())
        return normed

    def add_and_norm(self, x: torch.Tensor, addend: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        normed = torch.empty_like(x)
        self._add_and_norm(x.numpy(), addend.numpy(), weight.numpy(), epsilon, normed.numpy())
        return normed

    def split_heads(self, fused: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], kv_heads: int) -> Heads:
        rows, heads, dim = fused.shape
        query = torch.empty((rows, heads - 2 * kv_heads, dim))
        key, value = torch.empty((2, rows, kv_heads, dim))
        cosines, sines = rotation
        self._split_heads(fused.numpy(), cosines.numpy(), sines.numpy(), query.numpy(), key.numpy(), value.numpy())
        return query, key.view(rows, -1), value.view(rows, -1)


TORCH_ROWS = TorchRows()


def row_operations(dtype: torch.dtype, device: torch.device, eager: bool) -> RowOperations:
    """The quickest for a model's `dtype` on `device`; programs that are not `eager` are captured, as torch's are."""
    if eager and device.type == "cpu" and dtype == torch.float32 and torch.get_num_threads() <= _MOST_THREADS:
        return HostRows()
    return TORCH_ROWS


def rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Rotate x [rows, heads, head_dim]; the sines' first half is negated."""
    return torch.addcmul(x * cosines, x.roll(x.shape[-1] // 2, dims=-1), sines)


@functools.cache
def load_kernels() -> Any:
    """The module of compiled loops; the first call compiles them in some seconds, or reads numba's cache."""
    return importlib.import_module("gpu.model.row_kernels")
