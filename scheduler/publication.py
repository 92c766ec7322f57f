"""Notes whose output has become visible (S9); the state's next refresh() applies it, all of it in one call."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.errors import InvalidFence
from scheduler.records import RequestHandle
from scheduler.state import SchedulerState


def note_visible(state: SchedulerState, handles: Sequence[RequestHandle], fence: int) -> None:
    """Output of the last completed frame, `fence`, is visible now to all of `handles`; repeats count once.

    Raises InvalidFence, with nothing noted, when `fence` is another frame or did not serve one of the handles.
    """
    served, slots = state.served, []
    current = state.completed_fence == fence and fence is not True
    for handle in handles:
        try:
            slot = handle.slot
            known = current and served[slot] == handle.generation
        except (AttributeError, KeyError, TypeError):  # not served, or no handle
            known = False
        if not known:
            raise InvalidFence(f"{handle!r} has no output of fence {fence!r} to publish")
        slots.append(slot)
    visible, now_ns = state.visible, state.now_ns
    for slot in slots:
        visible[slot] = now_ns
    if slots:
        state.views_stale = True
