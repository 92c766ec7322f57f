"""State graphs: clearing slots, and copying one page and one hidden state between slots and cached states."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gpu.device import InvalidFrame
from gpu.pages import PADDING_PAGE, PADDING_WRITE_ROW, PAGE_TOKENS, KvCache
from gpu.programs.interface import StateCopy
from gpu.state import NO_TOKEN, SlotState
from scheduler.shapes import GraphShape


class InitProgram:
    """Clears cursor, pending token and hidden state of up to B slots; the count of emitted tokens stays.

    A request that goes on after a preemption has emitted tokens before it has any state.
    """

    def __init__(self, shape: GraphShape, state: SlotState) -> None:
        self.shape = shape
        self._state = state
        self._staged_slots = torch.full((shape.batch_capacity,), state.padding_slot, dtype=torch.int64)
        self._slots = self._staged_slots.to(state.device)

    def run(self, slots: Sequence[int]) -> None:
        """Clear `slots`; () warms up. Raises InvalidFrame when there are more than B."""
        self.upload(slots)
        with torch.inference_mode():
            self.execute()

    def upload(self, slots: Sequence[int]) -> None:
        """Write the static inputs. Raises InvalidFrame when there are more than B."""
        _check_count(self.shape, len(slots))
        self._staged_slots.fill_(self._state.padding_slot)
        self._staged_slots[: len(slots)] = torch.tensor(slots, dtype=torch.int64)
        self._slots.copy_(self._staged_slots)

    def execute(self) -> None:
        """Everything between inputs and state."""
        state = self._state
        state.cursor.index_fill_(0, self._slots, 0)
        state.pending.index_fill_(0, self._slots, NO_TOKEN)
        state.last_hidden.index_fill_(0, self._slots, 0.0)


class CopyProgram:
    """Up to B copies, each of one page's first rows in every layer and of one hidden state."""

    def __init__(self, shape: GraphShape, cache: KvCache, state: SlotState) -> None:
        self.shape = shape
        self._cache = cache
        self._state = state
        batch = shape.batch_capacity
        self._staged = torch.zeros((6, batch), dtype=torch.int64)
        self._inputs = self._staged.to(state.device)
        self._in_page = torch.arange(PAGE_TOKENS, device=state.device)

    def run(self, copies: Sequence[StateCopy]) -> None:
        """Copy; () warms up and touches padding only. Raises InvalidFrame when there are more than B."""
        self.upload(copies)
        with torch.inference_mode():
            self.execute()

    def upload(self, copies: Sequence[StateCopy]) -> None:
        """Write the static inputs. Raises InvalidFrame when there are more than B."""
        _check_count(self.shape, len(copies))
        slots, snapshots = self._state.slots, self._state.snapshot_rows
        # Hidden states are numbered slots first, then snapshot rows; both have their own padding row.
        padding = [PADDING_PAGE, PADDING_PAGE, 0, slots, slots, -1]
        rows = [padding] * len(self._staged[0])
        for lane, copy in enumerate(copies):
            source = copy.source_slot if copy.source_slot is not None else _snapshot(copy.source_row, slots, snapshots)
            target = copy.target_slot if copy.target_slot is not None else _snapshot(copy.target_row, slots, snapshots)
            cursor = -1 if copy.cursor is None else copy.cursor
            rows[lane] = [copy.source_page, copy.target_page, copy.rows, source, target, cursor]
        self._staged.copy_(torch.tensor(rows, dtype=torch.int64).T)
        self._inputs.copy_(self._staged)

    def execute(self) -> None:
        """Everything between inputs and state."""
        state = self._state
        source_pages, target_pages, counts, source, target, cursors = self._inputs
        copied = self._in_page < counts[:, None]
        sources = torch.where(copied, source_pages[:, None] * PAGE_TOKENS + self._in_page, PADDING_WRITE_ROW).view(-1)
        targets = torch.where(copied, target_pages[:, None] * PAGE_TOKENS + self._in_page, PADDING_WRITE_ROW).view(-1)
        for memory in (*self._cache.keys, *self._cache.values):
            memory.index_copy_(0, targets, memory.index_select(0, sources))
        self._copy_hidden(source, target)
        slots = target.clamp(max=state.slots)
        state.cursor.index_copy_(0, slots, torch.where(cursors >= 0, cursors, state.cursor.index_select(0, slots)))

    def _copy_hidden(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Numbers up to S are slots (S: padding), those after them snapshot rows."""
        state = self._state
        from_slots = state.last_hidden.index_select(0, source.clamp(max=state.slots))
        from_rows = state.snapshot_hidden.index_select(0, (source - state.slots - 1).clamp(min=0))
        hidden = torch.where((source <= state.slots)[:, None], from_slots, from_rows)
        to_slot, to_row = target.clamp(max=state.slots), target - state.slots - 1
        to_row = torch.where(to_row >= 0, to_row, state.snapshot_rows)
        state.last_hidden.index_copy_(0, to_slot, hidden)
        state.snapshot_hidden.index_copy_(0, to_row, hidden)


def _snapshot(row: int | None, slots: int, snapshots: int) -> int:
    """A snapshot row's number among hidden states; that of the padding row for none."""
    return slots + 1 + (snapshots if row is None else row)


def _check_count(shape: GraphShape, count: int) -> None:
    if count > shape.batch_capacity:
        raise InvalidFrame(f"{count} lanes for {shape.label}")
