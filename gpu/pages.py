"""KV pages: who holds which, and the memory behind them.

Page 0 is the padding page and never handed out. Its row 0 takes what padding rows write; its row 1 is zero and stands
for every position that a program must not read, so that no stale or unwritten memory ever enters a product.
"""

from __future__ import annotations

import torch

from gpu.device import PagesExhausted, RequestExceedsPool
from gpu.model.config import ModelConfig

PAGE_TOKENS = 16
PADDING_PAGE = 0
PADDING_WRITE_ROW = 0
ZERO_ROW = 1


def pages_for(tokens: int) -> int:
    """Pages that hold `tokens` tokens."""
    return -(-tokens // PAGE_TOKENS)


class PagePool:
    """Page numbers 1 to `pages`. Free pages plus held pages are constant."""

    def __init__(self, pages: int) -> None:
        self._total = pages
        self._free = list(range(pages, PADDING_PAGE, -1))

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def allocate(self, count: int) -> tuple[int, ...]:
        """Take `count` pages, all or none. Raises RequestExceedsPool or PagesExhausted."""
        if count > self._total:
            raise RequestExceedsPool(
                f"the request needs {count} KV pages and the server has {self._total} in all; "
                "shorten the prompt or max_tokens, or start with more --kv-pages"
            )
        if count > len(self._free):
            raise PagesExhausted(f"the request needs {count} KV pages and {len(self._free)} are free")
        return tuple(self._free.pop() for _ in range(count))

    def release(self, pages: tuple[int, ...]) -> None:
        """Give pages back."""
        self._free.extend(reversed(pages))
        assert len(self._free) <= self._total, "a KV page was released twice"


class KvCache:
    """The memory of all pages: per layer one tensor for keys and one for values, [rows, kv_heads * head_dim].

    Row r is token r % 16 of page r // 16.
    """

    def __init__(self, config: ModelConfig, pages: int, dtype: torch.dtype) -> None:
        rows, width = (pages + 1) * PAGE_TOKENS, config.kv_heads * config.head_dim
        self.keys = tuple(_rows(rows, width, dtype) for _ in range(config.layers))
        self.values = tuple(_rows(rows, width, dtype) for _ in range(config.layers))


def page_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Memory of one page over all layers, in bytes."""
    return 2 * config.layers * PAGE_TOKENS * config.kv_heads * config.head_dim * dtype.itemsize


def _rows(rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Untouched memory but for the padding page, so that a large pool costs nothing until it is used."""
    memory = torch.empty((rows, width), dtype=dtype)
    memory[:PAGE_TOKENS].zero_()
    return memory
