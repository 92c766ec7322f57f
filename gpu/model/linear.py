"""Matrix products with a fixed weight, each in the layout that is quickest on this CPU.

oneDNN's packed float32 layout saves a third of a decode step at 8 rows against torch's plain one, but reads a wide
weight slowly for a single row; a transposed copy saves a fifth of a one-row step where memory allows it. A CPU without
bfloat16 arithmetic multiplies bfloat16 rows one by one, so from a few rows on widening the weight first is cheaper.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812

_PACKING_ROWS = 16
_WIDEN_FROM_ROWS = 8


class Linear(Protocol):
    """x [rows, inputs] -> x @ weight.T [rows, outputs], contiguous, in x's precision."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply; x must be contiguous."""


class PlainLinear:
    """The weight as it is, [outputs, inputs]."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight.contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        return F.linear(x, self._weight)


class PackedLinear:
    """A weight in oneDNN's blocked layout, and with `one_row_copy` transposed [inputs, outputs] as well."""

    def __init__(self, weight: torch.Tensor, one_row_copy: bool = False) -> None:
        self._transposed = weight.t().contiguous() if one_row_copy else None
        self._weight = torch.ops.mkldnn._reorder_linear_weight.default(weight.contiguous(), _PACKING_ROWS)
        self._multiply = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        if self._transposed is not None and x.shape[0] == 1:
            return torch.mm(x, self._transposed)
        product: torch.Tensor = self._multiply(x, self._weight, None, "none", [], "")
        return product


class WidenedLinear:
    """bfloat16 weight, multiplied in float32 when there are enough rows to pay for widening it."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight.contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        if x.shape[0] < _WIDEN_FROM_ROWS:
            return F.linear(x, self._weight)
        return F.linear(x.float(), self._weight.float()).to(x.dtype)


def can_pack() -> bool:
    """Whether this build of torch has oneDNN's packed products."""
    return torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def multiplies_bfloat16() -> bool:
    """Whether this CPU has bfloat16 arithmetic that oneDNN uses."""
    return torch._C._has_mkldnn and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def make_linear(weight: torch.Tensor, one_row_copies: bool = False) -> Linear:
    """The quickest Linear for a weight [outputs, inputs] on this CPU; a weight on another device stays as it is.

    `one_row_copies` allows a second copy of a weight with more outputs than inputs; others gain nothing from one.
    """
    if weight.device.type != "cpu":
        return PlainLinear(weight)
    if weight.dtype == torch.float32 and can_pack():
        return PackedLinear(weight, one_row_copies and weight.shape[0] > weight.shape[1])
    if weight.dtype == torch.bfloat16 and not multiplies_bfloat16():
        return WidenedLinear(weight)
    if weight.dtype == torch.bfloat16 and can_pack():
        return PackedLinear(weight)
    return PlainLinear(weight)
