"""What programs know of every request slot: progress, pages and hidden state, as static tensors.

Programs read and advance these tensors themselves, so that a second frame can be queued behind a running one. The
host keeps its own view and follows when it collects. Everything here runs on the executor's thread, between programs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gpu.pages import PADDING_PAGE

NO_TOKEN = -1


class SlotState:
    """One row per request slot, and one more (`padding_slot`) that stands for the inactive lanes of a program.

    cursor [S+1] int64: tokens in KV. pending [S+1] int64: the newest output token, which is not in KV; -1: none.
    emitted [S+1] int64: output tokens so far, those of earlier lives of the request included.
    page_table [S+1, columns] int64: KV pages in the order of positions, PADDING_PAGE where there is none.
    last_hidden [S+1, hidden]: the target's hidden state at position cursor - 1, before the final norm; written by
    programs that have a draft head or score prompts; 0 where it is not known. snapshot_hidden
    [snapshot_rows+1, hidden]: those of cached states; the last row takes the copies of inactive lanes.
    """

    def __init__(
        self,
        slots: int,
        columns: int,
        hidden_size: int,
        dtype: torch.dtype,
        *,
        snapshot_rows: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.slots = slots
        self.columns = columns
        self.snapshot_rows = snapshot_rows
        self.device = torch.device(device)
        self.cursor = torch.zeros(slots + 1, dtype=torch.int64, device=self.device)
        self.pending = torch.full((slots + 1,), NO_TOKEN, dtype=torch.int64, device=self.device)
        self.emitted = torch.zeros(slots + 1, dtype=torch.int64, device=self.device)
        self.page_table = torch.full((slots + 1, columns), PADDING_PAGE, dtype=torch.int64, device=self.device)
        self.last_hidden = torch.zeros((slots + 1, hidden_size), dtype=dtype, device=self.device)
        self.snapshot_hidden = torch.zeros((snapshot_rows + 1, hidden_size), dtype=dtype, device=self.device)

    @property
    def padding_slot(self) -> int:
        """The row of inactive lanes; no request owns it."""
        return self.slots

    def open(self, slot: int, emitted: int = 0) -> None:
        """Make the row that of a new request without pages; `emitted` output tokens stand at its prompt's end."""
        self.cursor[slot] = 0
        self.pending[slot] = NO_TOKEN
        self.emitted[slot] = emitted
        self.page_table[slot] = PADDING_PAGE
        self.last_hidden[slot] = 0

    def forget_hidden(self, slot: int) -> None:
        """The slot's hidden state is not that of its last token; zero stands for none."""
        self.last_hidden[slot] = 0

    def set_pages(self, slot: int, first_column: int, pages: Sequence[int]) -> None:
        """Enter `pages` into the slot's table from `first_column` on; the rest of the row stays."""
        on_cuda = self.device.type == "cuda"  # pinned memory is copied without waiting for the programs before
        entries = torch.tensor(list(pages), dtype=torch.int64, pin_memory=on_cuda)
        self.page_table[slot, first_column : first_column + len(entries)].copy_(entries, non_blocking=True)
