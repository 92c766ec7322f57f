"""Prefix reuse: blocks, named prefixes, plain statements, and forgetting."""

from __future__ import annotations

import pytest

from scheduler.simulation.errors import SimulationError
from scheduler.simulation.prefixes import PrefixCache
from scheduler.simulation.workload import Arrival


def request(prompt: int, **known) -> Arrival:
    return Arrival(0, 0, prompt, 100, **known)


def test_a_prompt_reuses_its_leading_blocks_that_an_earlier_request_left():
    cache = PrefixCache(None)
    cache.finished(request(1536, blocks=(1, 2, 3)))
    assert cache.cached_tokens(request(2000, blocks=(1, 2, 9, 3))) == 1024
    assert cache.cached_tokens(request(2000, blocks=(9, 1, 2))) == 0


def test_at_least_one_prompt_token_is_computed():
    cache = PrefixCache(None)
    cache.finished(request(1024, blocks=(1, 2)))
    assert cache.cached_tokens(request(1024, blocks=(1, 2))) == 1023


def test_blocks_are_forgotten_from_the_end_of_the_chain_that_was_used_longest_ago():
    cache = PrefixCache(5 * 512)
    cache.finished(request(1536, blocks=(1, 2, 3)))
    cache.finished(request(1024, blocks=(8, 9)))
    assert cache.cached_tokens(request(9000, blocks=(1, 2, 3))) == 1536  # used again: now 8, 9 are older
    cache.finished(request(512, blocks=(20,)))
    assert cache.cached_tokens(request(9000, blocks=(8, 9))) == 512
    assert cache.cached_tokens(request(9000, blocks=(1, 2, 3))) == 1536


def test_a_session_reuses_what_its_last_turn_left_behind():
    cache = PrefixCache(None)
    turn = request(900, prefix="session 1", shared_prefix_tokens=800)
    assert cache.cached_tokens(turn) == 0
    cache.finished(request(300, prefix="session 1"))
    assert cache.cached_tokens(turn) == 400  # 300 prompt tokens and 100 of the answer
    cache.finished(request(5000, prefix="session 2"))
    assert cache.cached_tokens(turn) == 400
    cache.finished(request(850, prefix="session 1"))
    assert cache.cached_tokens(turn) == 800


def test_a_prefix_beyond_the_budget_is_forgotten_whole():
    cache = PrefixCache(1000)
    cache.finished(request(500, prefix="a"))
    cache.finished(request(500, prefix="b"))
    assert cache.cached_tokens(request(900, prefix="a", shared_prefix_tokens=500)) == 0
    assert cache.cached_tokens(request(900, prefix="b", shared_prefix_tokens=500)) == 500


def test_a_shared_prefix_that_names_nobody_is_taken_at_its_word():
    assert PrefixCache(None).cached_tokens(request(900, shared_prefix_tokens=512)) == 512


def test_a_cache_without_room_reuses_nothing():
    cache = PrefixCache(0)
    cache.finished(request(1536, blocks=(1, 2, 3)))
    assert cache.cached_tokens(request(1536, blocks=(1, 2, 3))) == 0
    assert cache.cached_tokens(request(900, shared_prefix_tokens=512)) == 0


def test_a_negative_budget_is_refused():
    with pytest.raises(SimulationError, match="-1 tokens"):
        PrefixCache(-1)
