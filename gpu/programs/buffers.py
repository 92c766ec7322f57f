"""The static inputs of one prepared program, refilled whole before every run.

Rows beyond the active ones are padding: token 0 at position 0, written to the padding page. They compute with legal
values, touch no request's state, and nobody reads their outputs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from gpu.pages import PADDING_PAGE, PADDING_WRITE_ROW, PAGE_TOKENS, ZERO_ROW, pages_for
from gpu.requests import LaneWork


class ProgramBuffers:
    """Token ids, positions, KV rows to write [rows] and page table [lanes, columns], as torch and numpy twins.

    `columns` pages hold the longest context.
    """

    def __init__(self, lanes: int, rows: int, columns: int) -> None:
        self.token_ids = torch.zeros(rows, dtype=torch.int64)
        self.positions = torch.zeros(rows, dtype=torch.int64)
        self.write_rows = torch.full((rows,), PADDING_WRITE_ROW, dtype=torch.int64)
        self.page_table = torch.full((lanes, columns), PADDING_PAGE, dtype=torch.int64)
        self._token_ids = self.token_ids.numpy()
        self._positions = self.positions.numpy()
        self._write_rows = self.write_rows.numpy()
        self._page_table = self.page_table.numpy()
        self._key_positions = torch.arange(columns * PAGE_TOKENS)

    def fill(self, works: tuple[LaneWork, ...]) -> int:
        """Lay the lanes' rows one after the other, pad the rest, and return the page columns that the frame reads.

        The columns are those of the longest lane, so that a program's cost follows the real context. An eager CPU
        program may have any width; a captured one will round up to the widths that were captured.
        """
        row, longest = 0, 1
        for lane, work in enumerate(works):
            end = row + len(work.token_ids)
            positions = np.arange(work.start, work.start + len(work.token_ids))
            self._token_ids[row:end] = work.token_ids
            self._positions[row:end] = positions
            pages = work.request.page_row
            self._write_rows[row:end] = pages[positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS
            self._page_table[lane, : len(pages)] = pages
            self._page_table[lane, len(pages) :] = PADDING_PAGE
            row, longest = end, max(longest, work.start + len(work.token_ids))
        self._token_ids[row:] = 0
        self._positions[row:] = 0
        self._write_rows[row:] = PADDING_WRITE_ROW
        self._page_table[len(works) :] = PADDING_PAGE
        return pages_for(longest)

    def read_rows(self, columns: int, last_positions: torch.Tensor) -> torch.Tensor:
        """KV rows [lanes, columns * 16] to gather; positions after a lane's last one [lanes] read the zero row."""
        keys = self._key_positions[: columns * PAGE_TOKENS]
        rows = self.page_table[:, :columns].repeat_interleave(PAGE_TOKENS, dim=1) * PAGE_TOKENS + keys % PAGE_TOKENS
        return torch.where(keys <= last_positions[:, None], rows, ZERO_ROW)

    def mask(self, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """Additive mask [rows, columns * 16]: 0 where the key's position is not after the row's, else -inf."""
        later = self._key_positions[: columns * PAGE_TOKENS] > self.positions[:, None]
        return torch.zeros(later.shape, dtype=dtype).masked_fill_(later, -torch.inf)


Logits = npt.NDArray[np.float32]
