"""KV pages: who holds which, and the memory behind them.

Page 0 is the padding page and never handed out. Its row 0 takes what padding rows write; its row 1 is zero and stands
for every position that a program must not read, so that no stale or unwritten memory ever enters a product.
"""

from __future__ import annotations

from collections.abc import Iterable

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
    """Page numbers 1 to `pages`, each with two counts: its holders, and the cached states that keep it.

    A page with a holder is *held*; one that cached states alone keep is *cached*; one with neither is *free*.
    free + cached + held = pages, always. Holders are open requests, copies in flight and pinned states.
    """

    def __init__(self, pages: int) -> None:
        self._total = pages
        self._free = list(range(pages, PADDING_PAGE, -1))
        self._holders = [0] * (pages + 1)
        self._keepers = [0] * (pages + 1)
        self._held = 0

    @property
    def total(self) -> int:
        """Pages in all."""
        return self._total

    @property
    def free(self) -> int:
        """Pages that nobody holds or keeps."""
        return len(self._free)

    @property
    def held(self) -> int:
        """Pages that have a holder."""
        return self._held

    @property
    def available(self) -> int:
        """Pages that are free or kept by cached states alone."""
        return self._total - self._held

    def check_fits(self, count: int) -> None:
        """Raises RequestExceedsPool when there are fewer than `count` pages in all."""
        if count > self._total:
            raise RequestExceedsPool(
                f"the request needs {count} KV pages and the server has {self._total} in all; "
                "shorten the prompt or max_tokens, or start with more --kv-pages"
            )

    def allocate(self, count: int) -> tuple[int, ...]:
        """Take `count` free pages, all or none, as their first holder. Raises RequestExceedsPool or PagesExhausted."""
        self.check_fits(count)
        if count > len(self._free):
            raise PagesExhausted(f"the request needs {count} KV pages and {len(self._free)} are free")
        pages = tuple(self._free.pop() for _ in range(count))
        for page in pages:
            self._holders[page] = 1
        self._held += count
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """One more holder for pages that somebody holds or keeps."""
        for page in pages:
            assert self._holders[page] or self._keepers[page], "a free KV page cannot be shared"
            self._held += self._holders[page] == 0
            self._holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One holder less; without holders and keepers a page is free."""
        for page in pages:
            assert self._holders[page] > 0, "a KV page was released twice"
            self._holders[page] -= 1
            if self._holders[page] == 0:
                self._held -= 1
                self._free_if_unused(page)

    def keep(self, pages: Iterable[int]) -> None:
        """One more cached state for pages that somebody holds or keeps."""
        for page in pages:
            assert self._holders[page] or self._keepers[page], "a free KV page cannot be kept"
            self._keepers[page] += 1

    def forget(self, pages: Iterable[int]) -> None:
        """One cached state less; without holders and keepers a page is free."""
        for page in pages:
            assert self._keepers[page] > 0, "a KV page was forgotten twice"
            self._keepers[page] -= 1
            if self._holders[page] == 0:
                self._free_if_unused(page)

    def keepers(self, page: int) -> int:
        """Cached states that must be forgotten before the page is free; 0 when that frees nothing: it is held."""
        return 0 if self._holders[page] else self._keepers[page]

    def _free_if_unused(self, page: int) -> None:
        if self._keepers[page] == 0:
            self._free.append(page)


class KvCache:
    """The memory of all pages: per layer one tensor for keys and one for values, [rows, kv_heads * head_dim].

    Row r is token r % 16 of page r // 16. `layers` defaults to the model's; a draft head's layer comes after them.
    """

    def __init__(
        self,
        config: ModelConfig,
        pages: int,
        dtype: torch.dtype,
        layers: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        rows, width = (pages + 1) * PAGE_TOKENS, config.kv_heads * config.head_dim
        count = config.layers if layers is None else layers
        self.keys = tuple(_rows(rows, width, dtype, device) for _ in range(count))
        self.values = tuple(_rows(rows, width, dtype, device) for _ in range(count))


def page_bytes(config: ModelConfig, dtype: torch.dtype, layers: int | None = None) -> int:
    """Memory of one page over all layers, in bytes. `layers` defaults to the model's."""
    count = config.layers if layers is None else layers
    return 2 * count * PAGE_TOKENS * config.kv_heads * config.head_dim * dtype.itemsize


def _rows(rows: int, width: int, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """Untouched memory but for the padding page, so that a large pool costs nothing until it is used."""
    memory = torch.empty((rows, width), dtype=dtype, device=device)
    memory[:PAGE_TOKENS].zero_()
    return memory
