"""Every kernel that Python calls."""

from scheduler.kernels.commitment import (
    LANE_MOVED,
    NEEDS_FEEDBACK,
    NO_SUCH_SLOT,
    PAGES_GONE,
    SNAPSHOT_ROW_GONE,
    commit_frame,
)
from scheduler.kernels.completion import (
    admit_slot,
    complete_frame,
    confidence_fits,
    publish_lanes,
    rebuild_acceptance,
    start_memories,
)
from scheduler.kernels.plan import plan

__all__ = [
    "LANE_MOVED",
    "NEEDS_FEEDBACK",
    "NO_SUCH_SLOT",
    "PAGES_GONE",
    "SNAPSHOT_ROW_GONE",
    "admit_slot",
    "commit_frame",
    "complete_frame",
    "confidence_fits",
    "plan",
    "publish_lanes",
    "rebuild_acceptance",
    "start_memories",
]
