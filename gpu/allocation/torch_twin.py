"""Device allocation in torch operations on static shapes: no branch and no shape depends on a tensor's values.

So it runs on any device and can be captured in a CUDA graph.
"""

from __future__ import annotations

import torch

from gpu.allocation.buffers import check_buffers

_NOT_OFFERED = -1.0


def allocate_rows(
    joint: torch.Tensor, limits: torch.Tensor, slots: torch.Tensor, target_rows: int, rows: torch.Tensor
) -> None:
    """A RowAllocator: one stable sort of all drafts, of which the first that rows are left for get one.

    A lane's scores never rise with depth (their running minimum is sorted), so the row-after-row choice is this order.
    """
    check_buffers(joint, limits, slots, rows)
    lanes, depths = joint.shape
    by_slot = torch.argsort(slots, stable=True)
    scores = torch.where(joint > 0, joint, 0.0).cummin(dim=1).values  # NaN counts as 0
    offered = torch.arange(1, depths + 1, device=joint.device) < limits[:, None]
    scores = torch.where(offered, scores, _NOT_OFFERED)[by_slot]
    ranked = torch.sort(scores.T.reshape(-1), descending=True, stable=True)  # equal scores stay by depth, then slot
    place = torch.arange(lanes * depths, device=joint.device)
    active = limits > 0
    kept = (place < target_rows - active.sum()) & (ranked.values >= 0)
    rows.copy_(active)
    rows.scatter_add_(0, by_slot[ranked.indices % lanes], kept.to(torch.int64))
