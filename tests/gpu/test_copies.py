"""Copy proposals against the search through the whole text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.copies import CopyIndex
from gpu.reference.copies import propose

TEXTS = st.lists(st.integers(0, 3), max_size=60) | st.lists(st.integers(0, 50_000), max_size=12)


@given(prompt=TEXTS, output=TEXTS, limit=st.integers(0, 9))
def test_proposals_are_those_of_the_whole_search_at_every_length(prompt, output, limit):
    index = CopyIndex(prompt)
    assert index.propose(limit) == propose(prompt, limit)
    for length, token in enumerate(output, start=1):
        index.extend([token])
        assert index.propose(limit) == propose(prompt + output[:length], limit)


@pytest.mark.parametrize(
    ("text", "proposals"),
    [
        ([], []),
        ([1], []),
        ([1, 2, 3], []),
        ([1, 2, 9, 1, 2], [9, 1, 2, 9]),
        ([1, 2, 7, 1, 2, 8, 1, 2], [8, 1, 2, 8]),  # the most recent occurrence
        ([5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], [7, 6, 1, 2]),  # the longer match, although it is older
        ([4, 4, 4], [4, 4, 4, 4]),
    ],
)
def test_what_followed_the_longest_latest_match_is_proposed(text, proposals):
    assert CopyIndex(text).propose(4) == proposals
    assert propose(text, 4) == proposals


def test_a_hash_that_collides_proposes_nothing_wrong(monkeypatch):
    monkeypatch.setattr("gpu.copies._BASE", 0)  # every n-gram is known by its last token alone
    text = [1, 2, 3, 9, 2, 5, 2]
    assert CopyIndex(text).propose(4) == []
    index = CopyIndex(text[:4])
    index.extend(text[4:])
    assert index.propose(4) == []
