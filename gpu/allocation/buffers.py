"""The tensors of a device allocation, and the sizes that it is built for."""

from __future__ import annotations

from typing import Protocol

import torch

from gpu.device import InvalidSettings

MAX_LANES = 64
MAX_DRAFTS = 63


class RowAllocator(Protocol):
    """Divides a round's target rows among its lanes."""

    def __call__(
        self, joint: torch.Tensor, limits: torch.Tensor, slots: torch.Tensor, target_rows: int, rows: torch.Tensor
    ) -> None:
        """Write `rows` int64 [B], each lane's target rows, without waiting for the device.

        Active lanes (limit above 0) get the row of their pending token; the other rows go, one by one, to the
        likeliest draft that some lane could verify next. Ties go to the shorter prefix, then to the lower slot.
        Drafts of probability 0 come last and still get rows that are left.

        `joint` float32 [B, D]: probability that all drafts up to a depth are accepted; NaN counts as 0. `limits`
        int64 [B]: most rows of a lane, its pending token's included; 0 when inactive. `slots` int64 [B]: request
        slots, different for active lanes. All are contiguous and on one device. The caller keeps the active lanes
        within `target_rows`: that cannot be checked here, and each would still get its one row. Raises
        InvalidSettings for tensors that do not fit.
        """


def check_buffers(joint: torch.Tensor, limits: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Raises InvalidSettings unless the tensors are what RowAllocator says; reads no device memory."""
    if joint.dim() != 2 or not (1 <= joint.shape[0] <= MAX_LANES and 1 <= joint.shape[1] <= MAX_DRAFTS):
        allowed = f"[1 to {MAX_LANES} lanes, 1 to {MAX_DRAFTS} drafts]"
        raise InvalidSettings(f"joint has the shape {list(joint.shape)}; it must be {allowed}")
    if joint.dtype is not torch.float32 or not joint.is_contiguous():
        raise InvalidSettings(f"joint is {joint.dtype}; it must be contiguous torch.float32")
    for name, tensor in (("limits", limits), ("slots", slots), ("rows", rows)):
        if tensor.shape != joint.shape[:1] or tensor.dtype is not torch.int64 or not tensor.is_contiguous():
            found = f"{tensor.dtype} {list(tensor.shape)}"
            raise InvalidSettings(f"{name} is {found}; it must be contiguous torch.int64 [{joint.shape[0]}]")
        if tensor.device != joint.device:
            raise InvalidSettings(f"{name} is on {tensor.device}, joint on {joint.device}")
