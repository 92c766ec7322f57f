"""Projection (S10): what memories and visible times will be at the queue's expected end, in the view_* fields."""

from __future__ import annotations

from scheduler.kernels.accounting import NS_PER_MS, after_delivery, after_interval, delivered_memory, survives
from scheduler.kernels.jit import inner
from scheduler.layout import FREE


@inner
def view_as_is(slot):
    """The view of a slot that nothing is expected of."""
    slot["view_token_memory"] = slot["token_memory"]
    slot["view_delivery_memory"] = slot["delivery_memory"]
    slot["view_visible_ns"] = slot["last_visible_ns"]


@inner
def project_completed(slots, frame, participants, adaptation_ms):
    """Output that is complete but not visible yet counts as delivered at its completion."""
    for s in range(slots.shape[0]):
        if participants[s]["unpublished"] != 1 or not survives(participants[s], slots[s]):
            continue
        slots[s]["view_visible_ns"] = frame["completed_ns"]
        if participants[s]["open"] == 1:
            slots[s]["view_delivery_memory"] = delivered_memory(participants[s], frame["interval_ms"], adaptation_ms)


@inner
def project_frame(slots, frame, participants, adaptation_ms):
    """Adds one frame in flight: its selected cost as interval, its lanes' expected tokens and deliveries.

    A frame of unknown cost leaves the memories alone.
    """
    cost_ms = frame["selected_cost_ns"] / NS_PER_MS
    for s in range(slots.shape[0]):
        if not survives(participants[s], slots[s]):
            continue
        if participants[s]["delivers"] == 1:
            slots[s]["view_visible_ns"] = frame["expected_end_ns"]
        if cost_ms == 0.0:
            continue
        token, rate = slots[s]["view_token_memory"], participants[s]["token_rate"]
        slots[s]["view_token_memory"] = after_interval(token, cost_ms, participants[s]["served"], rate, adaptation_ms)
        delivery, rate = slots[s]["view_delivery_memory"], participants[s]["delivery_rate"]
        if participants[s]["delivers"] == 1:
            slots[s]["view_delivery_memory"] = after_delivery(delivery, cost_ms, rate, adaptation_ms)
        else:
            slots[s]["view_delivery_memory"] = after_interval(delivery, cost_ms, 0.0, rate, adaptation_ms)


@inner
def project(first, second, completed, slots, frames, participants, adaptation_ms):
    """Projects every occupied slot over the frames in flight, `first` before `second` (-1: none)."""
    for s in range(slots.shape[0]):
        if slots[s]["stage"] != FREE:
            view_as_is(slots[s])
    if completed >= 0:
        project_completed(slots, frames[completed], participants[completed], adaptation_ms)
    for frame in (first, second):
        if frame >= 0:
            project_frame(slots, frames[frame], participants[frame], adaptation_ms)
