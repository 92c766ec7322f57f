"""Rechecks of a plan at commit, and the pages that its lanes then hold (S10)."""

from __future__ import annotations

from scheduler.kernels.jit import entry, inner, int64, lane_rows_type, slots_type, void
from scheduler.layout import SNAPSHOT

PAGES_GONE, NEEDS_FEEDBACK, SNAPSHOT_ROW_GONE = -1, -2, -3
LANE_MOVED = -10
"""LANE_MOVED - i: lane i of the plan is not the request, or not in the state, that the plan was made for."""


@inner
def _pages(lane, slot, draft_extent, page_tokens):
    """Pages that a lane needs in all; 0 for a lane of a state graph."""
    if lane["prompt_tokens"] > 0:
        tokens = slot["consumed"] + lane["prompt_tokens"] + 1
    elif lane["ceiling"] > 0:
        tokens = slot["consumed"] + slot["emitted"] + slot["pending"] + lane["ceiling"] + draft_extent
    else:
        tokens = 0
    return (tokens + page_tokens - 1) // page_tokens


@entry(int64(*(int64, int64, int64, int64, int64), lane_rows_type, slots_type))
def recheck_lanes(queued, page_tokens, free_pages, draft_extent, free_rows, cohort, slots):
    """New pages that the plan's lanes need, 0 or more, or one of the codes above.

    queued: 1 when a frame is in flight. page_tokens 0: pages without end. free_rows: free snapshot rows.
    """
    pages = 0
    for i in range(cohort.shape[0]):
        lane, slot = cohort[i], slots[cohort[i]["slot"]]
        if slot["generation"] != lane["generation"] or slot["epoch"] != lane["epoch"] or slot["cancelled"] == 1:
            return LANE_MOVED - i
        if queued == 1 and slot["in_flight"] > 0 and slot["feedback"] == 1:
            return NEEDS_FEEDBACK
        if slot["stage"] == SNAPSHOT and slot["window"] == 1 and free_rows < 1:
            return SNAPSHOT_ROW_GONE
        if page_tokens > 0:
            pages += max(0, _pages(lane, slot, draft_extent, page_tokens) - slot["pages_held"])
    return PAGES_GONE if pages > free_pages else pages


@entry(void(int64, int64, lane_rows_type, slots_type))
def hold_pages(page_tokens, draft_extent, cohort, slots):
    """The lanes' slots hold the pages that recheck_lanes() counted. Called before the lanes count as in flight."""
    for i in range(cohort.shape[0]):
        slot = slots[cohort[i]["slot"]]
        slot["pages_held"] = max(slot["pages_held"], _pages(cohort[i], slot, draft_extent, page_tokens))
