"""What copy programs are told: from a slot to a cached state, and back."""

from __future__ import annotations

from gpu.memory import RequestPages, Snapshot
from gpu.pages import PAGE_TOKENS
from gpu.programs.interface import StateCopy


def snapshot_copy(slot: int, snapshot: Snapshot) -> StateCopy:
    """A slot's hidden state and last page into a cached state's; of a page that is given away no row is copied."""
    return StateCopy(
        source_page=snapshot.source_page,
        target_page=snapshot.pages[-1],
        rows=0 if snapshot.moved else _rows_in_last_page(len(snapshot.token_ids)),
        source_slot=slot,
        target_row=snapshot.row,
    )


def restore_copy(slot: int, memory: RequestPages, cursor: int) -> StateCopy:
    """The state that a request starts from into its slot and its own last page; its full pages are shared.

    `cursor`: tokens of it that the request uses, all or all but the last; what is behind them is written anew.
    """
    state = memory.restoring
    assert state is not None, "only a request that starts from a cached state is restored"
    return StateCopy(
        source_page=state.pages[-1],
        target_page=memory.pages[len(state.pages) - 1],
        rows=_rows_in_last_page(state.endpoint),
        source_row=state.row,
        target_slot=slot,
        cursor=cursor,
    )


def _rows_in_last_page(tokens: int) -> int:
    return (tokens - 1) % PAGE_TOKENS + 1
