"""Which pages and snapshot rows each request, copy in flight and cached state has. Host bookkeeping, no tensors.

A request's pages grow as its frames need them. When they run out, cached states go (gpu/prefix_cache.py says in which
order); what open requests and copies in flight use is never taken. Callers close a request, and finish a snapshot or
a restore, only after the last submitted frame that uses it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpu.device import PagesExhausted
from gpu.pages import PagePool, pages_for
from gpu.prefix_cache import CachedState, PrefixCache, Role

Int64 = npt.NDArray[np.int64]


@dataclasses.dataclass(slots=True, eq=False)
class RequestPages:
    """An open request's pages, in the order of its tokens. `restoring`: the pinned state that it starts from."""

    pages: list[int]
    restoring: CachedState | None = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A state that is being copied: `pages` [pages_for(e)] and `row` will be those of the cached state.

    `source_page` is the request's last page. It is copied to the last of `pages`, which is the same page when the
    request gives it away (`moved`).
    """

    token_ids: Int64
    role: Role
    pages: tuple[int, ...]
    row: int
    source_page: int

    @property
    def moved(self) -> bool:
        """The request's own last page becomes the state's."""
        return self.pages[-1] == self.source_page


class Memory:
    """The page pool and the prefix cache together."""

    def __init__(self, pages: int, snapshot_rows: int) -> None:
        self._pool = PagePool(pages)
        self._cache = PrefixCache(self._pool, snapshot_rows)

    @property
    def cache(self) -> PrefixCache:
        """The cached states."""
        return self._cache

    @property
    def pool(self) -> PagePool:
        """The pages."""
        return self._pool

    @property
    def free_pages(self) -> int:
        """Pages that can be had: free, or kept by cached states alone."""
        return self._pool.available

    @property
    def used_pages(self) -> int:
        """Pages that requests, copies in flight and pinned states hold."""
        return self._pool.held

    @property
    def free_snapshot_rows(self) -> int:
        """Snapshots that can be taken, a page for each included."""
        return min(self._cache.available_rows, self._pool.available)

    def open(self, pages: int, start: CachedState | None) -> RequestPages:
        """A request's first `pages` pages; those of `start` but its last are shared, and `start` stays pinned.

        Raises RequestExceedsPool or PagesExhausted; nothing is held then.
        """
        shared = () if start is None else start.pages[:-1]
        if start is not None:
            self._cache.pin(start)
        try:
            fresh = self._take(pages - len(shared))
        except Exception:
            if start is not None:
                self._cache.unpin(start)
            raise
        self._pool.share(shared)
        return RequestPages([*shared, *fresh], start)

    def restored(self, request: RequestPages) -> None:
        """The copy out of the state that the request started from is done, or given up."""
        if request.restoring is not None:
            self._cache.unpin(request.restoring)
            request.restoring = None

    def reserve(self, wanted: Sequence[tuple[RequestPages, int]]) -> None:
        """Let each request hold pages for that many tokens, all requests or none.

        Raises RequestExceedsPool or PagesExhausted; nothing has changed then, but that cached states may be gone.
        """
        missing = [max(0, pages_for(tokens) - len(request.pages)) for request, tokens in wanted]
        fresh = iter(self._take(sum(missing)))
        for (request, _), count in zip(wanted, missing, strict=True):
            request.pages.extend(next(fresh) for _ in range(count))

    def close(self, request: RequestPages) -> None:
        """Give a request's pages back."""
        self.restored(request)
        self._pool.release(request.pages)
        request.pages.clear()

    def begin_snapshot(self, request: RequestPages, token_ids: Int64, role: Role, move: bool) -> Snapshot | None:
        """Set a row, and a page unless the request gives its last one away, aside for the state of `token_ids` [e].

        None when there is nothing to capture: no token, the state is cached already, or no room can be had.
        """
        if len(token_ids) == 0 or self._known(token_ids):
            return None
        if not self._cache.make_room(0 if move else 1, 1):
            return None
        pages = request.pages[: pages_for(len(token_ids))]
        target = pages[-1] if move else self._pool.allocate(1)[0]
        return Snapshot(token_ids, role, (*pages[:-1], target), self._cache.take_row(), pages[-1])

    def finish_snapshot(self, snapshot: Snapshot, copied: bool) -> None:
        """Publish the state, or give its row and page back. The request still holds its pages."""
        if copied:
            self._cache.publish(snapshot.token_ids, snapshot.pages, snapshot.row, snapshot.role)
        else:
            self._cache.give_row(snapshot.row)
        if not snapshot.moved:
            self._pool.release(snapshot.pages[-1:])

    def _known(self, token_ids: Int64) -> bool:
        return self._cache.find_at(token_ids, len(token_ids)) is not None

    def _take(self, count: int) -> tuple[int, ...]:
        self._pool.check_fits(count)
        if not self._cache.make_room(count, 0):
            raise PagesExhausted(f"the request needs {count} KV pages and {self._pool.available} are free")
        return self._pool.allocate(count)
