"""Cached states: complete states of past requests at a token endpoint, found again by the tokens that led there.

A state at endpoint e has the KV pages of tokens 0 to e-1 and a snapshot row. Its full pages are shared by reference
with requests and other states; its last page is its own, since whoever continues writes into a copy of it.

Which state goes first when room is needed (`_worth`): the one least recently asked for, in classes that double in age;
within a class by role, then the shorter one, then the older one. A victim is worth what it frees alone: pages that
others still use are not counted, and victims that turn out to be unneeded stay. Pinned states never go.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import hashlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from gpu.pages import PagePool

Int64 = npt.NDArray[np.int64]


class Role(enum.IntEnum):
    """Why a state was captured, the least worth keeping first."""

    EXTRA = 0  # an earlier message's end, or the prompt's end beside an anchor
    PROMPT_END = 1  # the prompt's end where no message ends before it
    TERMINAL = 2  # the end of an answer, or of a preempted request
    ANCHOR = 3  # the last completed message of a conversation


@dataclasses.dataclass(slots=True, eq=False)
class CachedState:
    """One state. Invariants:

    `token_ids` [e], e > 0: the tokens whose keys and values are in `pages`, pages_for(e) of them, the last its own.
    `row`: its snapshot row. `demanded`: the cache's clock when it was last published or asked for.
    `pins`: requests that are being restored from it; while there are any it holds its pages and is no victim.
    """

    token_ids: Int64
    pages: tuple[int, ...]
    row: int
    role: Role
    digest: bytes
    demanded: int = 0
    pins: int = 0

    @property
    def endpoint(self) -> int:
        """Tokens e."""
        return len(self.token_ids)


class PrefixCache:
    """All cached states over one page pool and `rows` snapshot rows, numbered from 0."""

    def __init__(self, pool: PagePool, rows: int) -> None:
        self._pool = pool
        self._free_rows = list(range(rows - 1, -1, -1))
        self._states: dict[tuple[int, bytes], CachedState] = {}
        self._lengths: collections.Counter[int] = collections.Counter()
        self._pinned = 0
        self._clock = 0

    def __len__(self) -> int:
        """Cached states."""
        return len(self._states)

    def __iter__(self) -> Iterator[CachedState]:
        return iter(list(self._states.values()))

    @property
    def available_rows(self) -> int:
        """Snapshot rows that are free or belong to a state that may go."""
        return len(self._free_rows) + len(self._states) - self._pinned

    def find(self, prompt: Int64) -> CachedState | None:
        """The state that saves most of `prompt` [n], which it starts or is: at most n - 1 tokens (`usable_tokens`).

        Of a state of the whole prompt and one that is a token shorter, which save as much, the shorter one: it has
        the hidden state that its next token's draft entry needs.
        """
        found = None
        for state in self._starting(prompt, len(prompt)):
            if found is None or usable_tokens(state, len(prompt)) > found.endpoint:
                found = state
        return found if found is not None and usable_tokens(found, len(prompt)) else None

    def find_usable(self, prompt: Int64, tokens: int) -> CachedState | None:
        """The state of which `prompt` [n] uses `tokens` tokens, as find() chooses it."""
        exact = self.find_at(prompt, tokens)
        return self.find_at(prompt, tokens + 1) if exact is None and tokens == len(prompt) - 1 else exact

    def find_at(self, prompt: Int64, endpoint: int) -> CachedState | None:
        """The state of the first `endpoint` tokens of `prompt`."""
        state = self._states.get((endpoint, _digest(prompt[:endpoint])))
        return state if state is not None and np.array_equal(state.token_ids, prompt[:endpoint]) else None

    def pin(self, state: CachedState) -> None:
        """Keep the state until unpin(), and note that it was asked for."""
        self._pool.share(state.pages)
        self._pinned += state.pins == 0
        state.pins += 1
        self._touch(state)

    def unpin(self, state: CachedState) -> None:
        """Undo one pin()."""
        assert state.pins > 0, "a cached state was unpinned twice"
        state.pins -= 1
        self._pinned -= state.pins == 0
        self._pool.release(state.pages)

    def publish(self, token_ids: Int64, pages: tuple[int, ...], row: int, role: Role) -> None:
        """Keep `pages`, which the caller holds, as the state of `token_ids`, in a row from take_row().

        Where the state is known already it counts as asked for, and the row is free again.
        """
        known = self.find_at(token_ids, len(token_ids))
        if known is not None:
            known.role = max(known.role, role)
            self._touch(known)
            self.give_row(row)
            return
        state = CachedState(token_ids, pages, row, role, _digest(token_ids))
        if (state.endpoint, state.digest) in self._states:  # another text with the same digest: never seen
            self.give_row(row)
            return
        self._pool.keep(pages)
        self._states[state.endpoint, state.digest] = state
        self._lengths[state.endpoint] += 1
        self._touch(state)

    def take_row(self) -> int:
        """A free snapshot row; make_room() has seen to it that there is one."""
        return self._free_rows.pop()

    def give_row(self, row: int) -> None:
        """Give a row back that no state uses."""
        assert row not in self._free_rows, "a snapshot row was given back twice"
        self._free_rows.append(row)

    def make_room(self, pages: int, rows: int) -> bool:
        """Drop states until `pages` pages and `rows` rows are free; False, and nothing is dropped, when that fails."""
        if pages > self._pool.available or rows > self.available_rows:
            return False
        missing_pages, missing_rows = pages - self._pool.free, rows - len(self._free_rows)
        if missing_pages > 0 or missing_rows > 0:
            for victim in self._victims(missing_pages, missing_rows):
                self._drop(victim)
        return True

    def _starting(self, prompt: Int64, longest: int) -> Iterator[CachedState]:
        """States that start the prompt, shortest first, of at most `longest` tokens."""
        running, at = hashlib.blake2b(digest_size=16), 0
        for length in sorted(length for length in self._lengths if length <= longest):
            running.update(prompt[at:length].tobytes())
            at = length
            state = self._states.get((length, running.digest()))
            if state is not None and np.array_equal(state.token_ids, prompt[:length]):
                yield state

    def _victims(self, pages: int, rows: int) -> list[CachedState]:
        """The states to drop for that many more pages and rows, those last that are worth most."""
        chosen: list[CachedState] = []
        taken: collections.Counter[int] = collections.Counter()
        freed = 0
        for state in sorted((s for s in self._states.values() if s.pins == 0), key=self._worth):
            if freed >= pages and len(chosen) >= rows:
                break
            chosen.append(state)
            taken.update(state.pages)
            freed += self._frees(state, taken)
        for state in reversed(chosen[:-1]):  # an earlier victim may be spared because of what later ones free
            alone = self._frees(state, taken)
            if freed - alone >= pages and len(chosen) - 1 >= rows:
                freed -= alone
                taken.subtract(state.pages)
                chosen.remove(state)
        return chosen

    def _frees(self, state: CachedState, taken: collections.Counter[int]) -> int:
        """Pages that are free with all victims of `taken` (times per page) gone, and not without this one."""
        return sum(1 for page in state.pages if taken[page] == self._pool.keepers(page))

    def _worth(self, state: CachedState) -> tuple[int, int, int, int]:
        age_class = (self._clock - state.demanded).bit_length()
        return -age_class, state.role, state.endpoint, state.demanded

    def _drop(self, state: CachedState) -> None:
        del self._states[state.endpoint, state.digest]
        self._lengths[state.endpoint] -= 1
        if self._lengths[state.endpoint] == 0:
            del self._lengths[state.endpoint]
        self._pool.forget(state.pages)
        self.give_row(state.row)

    def _touch(self, state: CachedState) -> None:
        self._clock += 1
        state.demanded = self._clock


def usable_tokens(state: CachedState, prompt_tokens: int) -> int:
    """Tokens that a prompt need not compute when it starts from `state`; its last one is always computed."""
    return min(state.endpoint, prompt_tokens - 1)


def _digest(token_ids: Int64) -> bytes:
    return hashlib.blake2b(token_ids.tobytes(), digest_size=16).digest()
