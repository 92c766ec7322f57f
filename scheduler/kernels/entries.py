"""Every kernel that Python calls."""

from scheduler.kernels.commitment import (
    LANE_MOVED,
    NEEDS_FEEDBACK,
    PAGES_GONE,
    SNAPSHOT_ROW_GONE,
    hold_pages,
    recheck_lanes,
)
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
    "LANE_MOVED",
    "NEEDS_FEEDBACK",
    "PAGES_GONE",
    "SNAPSHOT_ROW_GONE",
    "admit_slot",
    "commit_frame",
    "complete_frame",
    "hold_pages",
    "plan",
    "publish_lanes",
    "rebuild_acceptance",
    "recheck_lanes",
    "start_memories",
]
