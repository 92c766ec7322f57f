"""Pages are conserved, and padding's page is never handed out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.device import PagesExhausted, RequestExceedsPool
from gpu.pages import PADDING_PAGE, PagePool, pages_for

ACTIONS = st.lists(st.one_of(st.integers(1, 12), st.just("release")), max_size=200)


@given(total=st.integers(1, 40), actions=ACTIONS, data=st.data())
def test_free_and_held_pages_are_constant_and_never_shared(total, actions, data):
    pool, held = PagePool(total), []
    for action in actions:
        if action == "release":
            if held:
                pool.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
        else:
            before = pool.free
            try:
                held.append(pool.allocate(action))
            except RequestExceedsPool:
                assert action > total
                assert pool.free == before
            except PagesExhausted:
                assert before < action <= total
                assert pool.free == before
        pages = [page for owner in held for page in owner]
        assert len(pages) + pool.free == total
        assert len(set(pages)) == len(pages)
        assert set(pages) <= set(range(1, total + 1)) - {PADDING_PAGE}


def test_a_page_released_twice_is_noticed():
    pool = PagePool(2)
    pages = pool.allocate(2)
    pool.release(pages)
    with pytest.raises(AssertionError, match="twice"):
        pool.release(pages)


@pytest.mark.parametrize(("tokens", "pages"), [(1, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_pages_are_counted_up(tokens, pages):
    assert pages_for(tokens) == pages
