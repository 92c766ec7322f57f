"""Every kernel that Python calls."""

from scheduler.kernels.completion import (
    admit_slot,
    commit_frame,
    complete_frame,
    publish_lanes,
    rebuild_acceptance,
    start_memories,
)
from scheduler.kernels.plan import plan

__all__ = [
    "admit_slot",
    "commit_frame",
    "complete_frame",
    "plan",
    "publish_lanes",
    "rebuild_acceptance",
    "start_memories",
]
