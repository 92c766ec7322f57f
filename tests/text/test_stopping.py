"""Stop strings over piece borders, against a character-by-character twin."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.text import StopMatcher


def slow_answer(text: str, stops: list[str]) -> tuple[str, bool]:
    """The whole text cut at the stop string that is complete first; of those the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


def run(pieces: list[str], stops: list[str]) -> tuple[str, bool, list[str]]:
    matcher = StopMatcher(stops)
    deltas = [matcher.feed(piece) for piece in pieces]
    deltas.append(matcher.finish())
    return "".join(deltas), matcher.stopped, deltas


letters = st.text(alphabet="ab<", max_size=4)


@given(pieces=st.lists(letters, max_size=10), stops=st.lists(letters.filter(bool), max_size=4))
@settings(max_examples=1500, deadline=None)
def test_any_cut_gives_the_answer_of_the_whole_text(pieces, stops):
    joined, stopped, _ = run(pieces, stops)
    assert (joined, stopped) == slow_answer("".join(pieces), stops)


@given(pieces=st.lists(letters, max_size=10), stops=st.lists(letters.filter(bool), min_size=1, max_size=4))
@settings(max_examples=500, deadline=None)
def test_nothing_is_withheld_that_no_stop_string_begins_with(pieces, stops):
    matcher = StopMatcher(stops)
    text = emitted = ""
    for piece in pieces:
        text += piece
        emitted += matcher.feed(piece)
        held = text[len(emitted) :]
        if not matcher.stopped:
            assert held == "" or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_split_over_pieces_does_not_leak_its_beginning():
    assert run(["a", "<", "st", "op", ">b"], ["<stop>"])[:2] == ("a", True)


def test_a_beginning_that_never_becomes_a_stop_string_is_output_whole():
    joined, stopped, _ = run(["a", "<", "st", "op", ">b"], ["<stopx"])
    assert (joined, stopped) == ("a<stop>b", False)


def test_text_after_a_stop_adds_nothing():
    assert run(["x.", "one", "two", "three"], ["."])[2] == ["x", "", "", "", ""]


@pytest.mark.parametrize("text", ["", "plain"])
def test_without_stop_strings_text_passes_at_once(text):
    assert StopMatcher([]).feed(text) == text
