"""The entry of a commit: rechecks a plan, then counts its lanes as in flight and their pages as held (S10).

Arguments as in scheduler.kernels.completion.
"""

from __future__ import annotations

from scheduler.kernels.accounting import freeze_rates
from scheduler.kernels.completion import fastest_tables
from scheduler.kernels.jit import (
    entry,
    floats_4d,
    frames_type,
    graphs_type,
    inner,
    int64,
    ints_2d,
    lane_rows_type,
    lanes_type,
    participants_type,
    slots_type,
)
from scheduler.layout import SNAPSHOT

PAGES_GONE, NEEDS_FEEDBACK, SNAPSHOT_ROW_GONE, NO_SUCH_SLOT = -1, -2, -3, -4
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


@inner
def recheck_lanes(queued, page_tokens, free_pages, draft_extent, free_rows, cohort, slots):
    """New pages that the plan's lanes need, 0 or more, or one of the codes above."""
    pages = 0
    for i in range(cohort.shape[0]):
        if cohort[i]["slot"] >= slots.shape[0]:
            return NO_SUCH_SLOT
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


@inner
def submit_lane(lane, slot, participant, tick, draft_extent, page_tokens):
    """Counts one lane; the pages that recheck_lanes() counted for it come before it is in flight."""
    if page_tokens > 0:
        slot["pages_held"] = max(slot["pages_held"], _pages(lane, slot, draft_extent, page_tokens))
    slot["in_flight"] += 1
    slot["pending"] += lane["ceiling"]
    slot["last_served_tick"] = tick
    participant["served"] = lane["prompt_tokens"] + lane["expected_tokens"]
    participant["delivers"] = 1 if lane["expected_tokens"] > 0.0 else 0


@entry(
    int64(
        *(int64, int64, int64, int64, int64, int64, int64, int64, int64),
        *(int64, int64, int64, int64),
        *(lane_rows_type, slots_type, graphs_type, frames_type, lanes_type, participants_type),
        *(floats_4d, ints_2d),
    )
)
def commit_frame(
    frame, fence, graph, reason, known, cost_ns, queued, now_ns, end_ns,
    tick, page_tokens, free_pages, free_rows,
    cohort, slots, graphs, frames, lanes, participants, yields, work,
):  # fmt: skip
    """Submits a plan as frames[frame]: the new pages that its lanes need, or a code above and nothing has changed.

    fence .. end_ns: fields of layout.FRAME, end_ns for expected_end_ns. tick: the number of this commit. page_tokens 0:
    pages without end. free_rows: free snapshot rows. cohort: the plan's lanes, in slot order.

    Freezes the participants before anything else changes. Each lane's slot: its pages held, in_flight + 1, pending +
    ceiling, last_served_tick = tick. Views are stale until publish_lanes.
    """
    draft_extent = graphs[graph]["depth"]
    pages = recheck_lanes(queued, page_tokens, free_pages, draft_extent, free_rows, cohort, slots)
    if pages < 0:
        return pages
    record = frames[frame]
    record["fence"] = fence
    record["graph"] = graph
    record["lanes"] = cohort.shape[0]
    record["reason"] = reason
    record["known"] = known
    record["selected_cost_ns"] = cost_ns
    record["queued"] = queued
    record["committed_ns"] = now_ns
    record["expected_end_ns"] = end_ns
    record["completed_ns"] = 0
    record["interval_ms"] = 0.0
    rounds, prompts = fastest_tables(graphs, yields, work)
    freeze_rates(slots, participants[frame], yields, work, rounds, prompts)
    for i in range(cohort.shape[0]):
        lanes[frame, i] = cohort[i]
        s = cohort[i]["slot"]
        submit_lane(cohort[i], slots[s], participants[frame, s], tick, draft_extent, page_tokens)
    return pages
