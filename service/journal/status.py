"""What is wrong with a journal: losses by cause, and the telling of each episode once.

Causes are the metrics' label values too. Only `sync_failed` loses nothing by itself: what a power cut would.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Mapping
from typing import NamedTuple

DISK_FULL = "disk_full"
WRITE_FAILED = "write_failed"
OVER_BUDGET = "over_budget"
UNWRITABLE = "unwritable_record"
SYNC_FAILED = "sync_failed"
LOSSES = (DISK_FULL, WRITE_FAILED, OVER_BUDGET, UNWRITABLE)
CAUSES = (*LOSSES, SYNC_FAILED)

WARNINGS = {
    DISK_FULL: "the trace is losing records: disk full",
    WRITE_FAILED: "the trace is losing records: the journal cannot be written",
    OVER_BUDGET: "the trace is losing records: --journal-budget does not hold what the recorder has not delivered yet",
    UNWRITABLE: "the trace is losing records: some cannot be encoded or do not fit into a segment",
    SYNC_FAILED: "the journal cannot be synced to disk: a power cut may lose more than --journal-sync-ms",
}
EPISODE_NS = 10_000_000_000
"""A cause that showed nothing for this long is over."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_log = logging.getLogger(__name__)


class BudgetTaken(OSError):
    """The journal's own budget has no room for a segment, because others cannot be removed; the disk may have it."""


def cause_of(error: OSError) -> str:
    """DISK_FULL, also for a disk's quota or a size limit; OVER_BUDGET for BudgetTaken; WRITE_FAILED for the rest."""
    if isinstance(error, BudgetTaken):
        return OVER_BUDGET
    return DISK_FULL if error.errno in _FULL else WRITE_FAILED


class JournalStatus(NamedTuple):
    """One look at a writer: records lost so far by cause, failed syncs, and why it has no segment now, if so."""

    lost: Mapping[str, int]
    sync_failures: int
    stuck: str | None


class Episodes:
    """Which causes act now. Logs the beginning and the end of each episode, and nothing in between."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(CAUSES, 0)
        self._before = dict(self._counts)
        self._seen_ns: dict[str, int] = {}

    def look(self, status: JournalStatus, now_ns: int) -> frozenset[str]:
        """The causes of the episodes that last at `now_ns`."""
        counts = {**status.lost, SYNC_FAILED: status.sync_failures}
        for cause in CAUSES:
            if counts[cause] > self._counts[cause] or status.stuck == cause:
                if cause not in self._seen_ns:
                    self._before[cause] = self._counts[cause]
                    _log.warning("%s", WARNINGS[cause])
                self._seen_ns[cause] = now_ns
            elif cause in self._seen_ns and now_ns - self._seen_ns[cause] >= EPISODE_NS:
                del self._seen_ns[cause]
                _log.warning("over (%d in all): %s", counts[cause] - self._before[cause], WARNINGS[cause])
        self._counts = counts
        return frozenset(self._seen_ns)
