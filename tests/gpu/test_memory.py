"""Pages and snapshot rows are conserved under any mix of open, grow, snapshot, restore and close."""

import collections

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpu.device import PagesExhausted, RequestExceedsPool
from gpu.memory import Memory
from gpu.pages import pages_for
from gpu.prefix_cache import Role

TEXT = np.arange(1000, dtype=np.int64)


def state_at(memory, tokens, role=Role.EXTRA):
    """Put a state of `tokens` into the cache, from a request that ends."""
    request = memory.open(pages_for(len(tokens)), None)
    snapshot = memory.begin_snapshot(request, tokens, role, move=True)
    memory.finish_snapshot(snapshot, copied=True)
    memory.close(request)


def endpoints(memory):
    return sorted(state.endpoint for state in memory.cache)


class MemoryMachine(RuleBasedStateMachine):
    """Requests over two texts that part after 40 tokens, so that states alias each other's pages."""

    @initialize(pages=st.integers(1, 14), rows=st.integers(0, 5))
    def start(self, pages, rows):
        self.memory, self.pages, self.rows = Memory(pages, rows), pages, rows
        self.requests, self.copying = [], []

    @rule(length=st.integers(1, 90), parted=st.booleans())
    def open(self, length, parted):
        prompt = np.concatenate((TEXT[:40], TEXT[40 + 500 * parted : 100 + 500 * parted]))[:length]
        start = self.memory.cache.find(prompt)
        free, held = self.memory.free_pages, self.memory.used_pages
        try:
            request = self.memory.open(pages_for(length), start)
        except (PagesExhausted, RequestExceedsPool):
            assert (self.memory.free_pages, self.memory.used_pages) == (free, held)
            return
        assert len(request.pages) == pages_for(length)
        if start is not None:
            assert request.pages[: len(start.pages) - 1] == list(start.pages[:-1])
            assert start.pages[-1] not in request.pages
        self.requests.append((request, prompt))

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def grow(self, data):
        chosen = data.draw(st.lists(st.sampled_from(self.requests), unique_by=id, min_size=1, max_size=3))
        wanted = [(request, data.draw(st.integers(1, 130))) for request, _ in chosen]
        before = [list(request.pages) for request, _ in wanted]
        try:
            self.memory.reserve(wanted)
        except (PagesExhausted, RequestExceedsPool):
            assert [request.pages for request, _ in wanted] == before
            return
        for (request, tokens), old in zip(wanted, before, strict=True):
            assert request.pages[: len(old)] == old
            assert len(request.pages) == max(len(old), pages_for(tokens))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), move=st.booleans(), role=st.sampled_from(Role))
    def begin_snapshot(self, data, move, role):
        request, prompt = data.draw(st.sampled_from(self.requests))
        if any(owner is request for owner, _ in self.copying):
            return
        tokens = prompt[: data.draw(st.integers(0, len(prompt)))]
        snapshot = self.memory.begin_snapshot(request, tokens, role, move)
        if snapshot is not None:
            assert snapshot.moved == move
            self.copying.append((request, snapshot))

    @precondition(lambda self: self.copying)
    @rule(data=st.data(), copied=st.booleans())
    def finish_snapshot(self, data, copied):
        request, snapshot = self.copying.pop(data.draw(st.integers(0, len(self.copying) - 1)))
        self.memory.finish_snapshot(snapshot, copied)
        if snapshot.moved:  # a request that gave its last page away only closes
            self._close(request)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def restored(self, data):
        self.memory.restored(data.draw(st.sampled_from(self.requests))[0])

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def close(self, data):
        self._close(data.draw(st.sampled_from(self.requests))[0])

    def _close(self, request):
        """Cancel, finish, preempt and error all end here, after the copies in flight."""
        for entry in [entry for entry in self.copying if entry[0] is request]:
            self.copying.remove(entry)
            self.memory.finish_snapshot(entry[1], copied=False)
        self.requests = [entry for entry in self.requests if entry[0] is not request]
        self.memory.close(request)

    @invariant()
    def every_page_has_one_place(self):
        pool, states = self.memory.pool, list(self.memory.cache)
        held = {page for request, _ in self.requests for page in request.pages}
        held |= {snapshot.pages[-1] for _, snapshot in self.copying}
        held |= {page for state in states if state.pins for page in state.pages}
        kept = {page for state in states for page in state.pages} - held
        assert (pool.held, pool.free) == (len(held), self.pages - len(held) - len(kept))
        assert self.memory.free_pages + self.memory.used_pages == self.pages
        assert held | kept <= set(range(1, self.pages + 1))

    @invariant()
    def nobody_writes_what_another_reads(self):
        """A request's own last page is no state's and no other request's."""
        owners = collections.Counter(state.pages[-1] for state in self.memory.cache)
        owners.update(request.pages[-1] for request, _ in self.requests)
        assert all(count == 1 for count in owners.values())

    @invariant()
    def every_row_has_one_owner(self):
        states = list(self.memory.cache)
        taken = [state.row for state in states] + [snapshot.row for _, snapshot in self.copying]
        pinned = sum(1 for state in states if state.pins)
        assert len(set(taken)) == len(taken)
        assert set(taken) <= set(range(self.rows))
        assert self.memory.cache.available_rows == self.rows - len(self.copying) - pinned

    def teardown(self):
        if not hasattr(self, "memory"):
            return
        for request, _ in list(self.requests):
            self._close(request)
        assert (self.memory.used_pages, self.memory.free_pages) == (0, self.pages)
        assert self.memory.cache.available_rows == self.rows


MemoryMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestMemory = MemoryMachine.TestCase


def test_the_state_that_saves_most_is_found_and_a_prompts_last_token_is_never_saved():
    memory = Memory(20, 6)
    for endpoint in (1, 16, 20, 32, 33):
        state_at(memory, TEXT[:endpoint])
    found = {length: memory.cache.find(TEXT[:length]) for length in (1, 2, 16, 17, 20, 33, 34)}
    assert {length: state and state.endpoint for length, state in found.items()} == {
        1: None,
        2: 1,
        16: 16,  # all but its last token
        17: 16,
        20: 20,
        33: 32,  # saves as much as the one of the whole prompt, and has the hidden state before its last token
        34: 33,
    }
    assert [memory.cache.find_usable(TEXT[:20], tokens).endpoint for tokens in (1, 16, 19)] == [1, 16, 20]
    assert memory.cache.find_usable(TEXT[:33], 32).endpoint == 32
    assert memory.cache.find_usable(TEXT[:20], 18) is None
    other = TEXT[:40].copy()
    other[18] = 7
    assert memory.cache.find(other).endpoint == 16
    assert memory.cache.find_at(TEXT[:40], 20).endpoint == 20
    assert memory.cache.find_at(other, 20) is None
    assert memory.cache.find_at(TEXT[:40], 21) is None


def test_tokens_are_compared_and_not_only_their_digests(monkeypatch):
    class Same:
        def __init__(self, *_args, **_options): ...

        def update(self, _data): ...

        def digest(self):
            return b"same"

    monkeypatch.setattr("gpu.prefix_cache.hashlib.blake2b", Same)
    memory = Memory(20, 4)
    state_at(memory, TEXT[:20])
    state_at(memory, TEXT[100:120])  # the same length and digest: not kept
    assert endpoints(memory) == [20]
    assert memory.cache.find(TEXT[100:130]) is None
    assert memory.cache.find_at(TEXT[100:130], 20) is None
    assert memory.cache.find(TEXT[:30]).endpoint == 20
    assert (memory.pool.free, memory.cache.available_rows) == (18, 4)


def test_states_give_way_by_age_role_and_length():
    memory = Memory(40, 4)
    state_at(memory, TEXT[:10])
    for length, role in ((11, Role.ANCHOR), (12, Role.PROMPT_END), (13, Role.EXTRA)):
        state_at(memory, TEXT[100 : 100 + length], role)
    for _ in range(20):  # the first state is asked for; the others grow old together
        memory.cache.pin(pinned := memory.cache.find(TEXT[:11]))
        memory.cache.unpin(pinned)
    left = []
    for rows in (1, 2, 3, 4):
        assert memory.cache.make_room(0, rows)
        left.append(endpoints(memory))
    assert left == [[10, 11, 12], [10, 11], [10], []]


def test_within_an_age_and_a_role_the_shorter_state_goes_first():
    memory = Memory(40, 9)
    for start, length in ((0, 30), (100, 10), (200, 20), (300, 5)):
        state_at(memory, TEXT[start : start + length])
    for _ in range(4):  # the shortest is asked for; the others are of one age class from here on
        memory.cache.pin(asked := memory.cache.find(TEXT[300:306]))
        memory.cache.unpin(asked)
    left = []
    for rows in (6, 7, 8):
        assert memory.cache.make_room(0, rows)
        left.append(endpoints(memory))
    assert left == [[5, 20, 30], [5, 30], [5]]


def test_a_victim_is_worth_what_it_frees_alone():
    memory = Memory(6, 9)
    request = memory.open(3, None)  # 48 tokens, shared with three states while it is open
    for endpoint in (20, 36):
        memory.finish_snapshot(memory.begin_snapshot(request, TEXT[:endpoint], Role.EXTRA, False), copied=True)
    assert (memory.pool.free, memory.free_pages) == (1, 3)
    memory.reserve([(request, 64)])
    assert endpoints(memory) == [20, 36]  # nothing had to go
    memory.reserve([(request, 80)])
    assert endpoints(memory) == [36]  # the shorter one frees its own page, the rest is the request's
    with pytest.raises(PagesExhausted, match="2 KV pages and 1 are free"):
        memory.reserve([(request, 112)])
    assert endpoints(memory) == [36]


def test_a_victim_that_a_later_one_makes_needless_stays():
    memory = Memory(5, 9)
    state_at(memory, TEXT[:10])
    state_at(memory, TEXT[100:164])
    assert memory.pool.free == 0
    memory.open(4, None)
    assert endpoints(memory) == [10]


def test_a_pinned_state_outlives_any_need_until_it_is_restored():
    memory = Memory(6, 2)
    state_at(memory, TEXT[:20])
    request = memory.open(2, memory.cache.find(TEXT[:21]))
    assert memory.used_pages == 3  # the shared page, the state's own last page and the request's
    with pytest.raises(PagesExhausted, match="4 KV pages and 3 are free"):
        memory.open(4, None)
    assert (memory.cache.available_rows, memory.cache.make_room(0, 2)) == (1, False)
    memory.restored(request)
    memory.restored(request)
    memory.open(4, None)
    assert endpoints(memory) == []
    assert memory.used_pages == 6


def test_a_pinned_state_is_passed_over_for_newer_ones():
    memory = Memory(20, 4)
    state_at(memory, TEXT[:20])
    memory.open(2, memory.cache.find(TEXT[:21]))
    for start in (100, 200, 300):
        state_at(memory, TEXT[start : start + 40])
        for _ in range(3):
            memory.cache.pin(newer := memory.cache.find(TEXT[start : start + 41]))
            memory.cache.unpin(newer)
    assert memory.cache.make_room(0, 2)
    assert endpoints(memory) == [20, 40]


def test_a_state_that_is_known_is_not_copied_twice():
    memory = Memory(9, 2)
    request = memory.open(2, None)
    first = memory.begin_snapshot(request, TEXT[:20], Role.EXTRA, False)
    second = memory.begin_snapshot(request, TEXT[:20], Role.ANCHOR, False)  # before the first is published
    for snapshot in (first, second):
        memory.finish_snapshot(snapshot, copied=True)
    assert [state.role for state in memory.cache] == [Role.ANCHOR]
    assert memory.begin_snapshot(request, TEXT[:20], Role.EXTRA, False) is None
    assert (memory.used_pages, memory.pool.free, memory.cache.available_rows) == (2, 6, 2)


def test_a_request_can_give_its_last_page_away_when_no_other_is_left():
    memory = Memory(2, 1)
    request = memory.open(2, None)
    assert memory.free_snapshot_rows == 0
    assert memory.begin_snapshot(request, TEXT[:20], Role.TERMINAL, False) is None
    snapshot = memory.begin_snapshot(request, TEXT[:20], Role.TERMINAL, True)
    assert snapshot.pages == tuple(request.pages)
    memory.finish_snapshot(snapshot, copied=True)
    memory.close(request)
    assert memory.cache.find(TEXT[:30]).pages == snapshot.pages
    assert (memory.used_pages, memory.free_pages, memory.free_snapshot_rows) == (0, 2, 1)


def test_without_rows_nothing_is_cached():
    memory = Memory(4, 0)
    request = memory.open(1, None)
    assert memory.begin_snapshot(request, TEXT[:5], Role.TERMINAL, True) is None
    assert memory.free_snapshot_rows == 0
