"""Text and tokens of an answer in any cut, against placing every byte of the whole answer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from service.text import AnswerText, IncrementalDecoder, StopMatcher
from service.text.vocabulary import _BYTE_OF_CHARACTER, TokenTable

_BYTE_CHARACTERS = {byte: character for character, byte in _BYTE_OF_CHARACTER.items()}
PIECES = [b"a", b"b", b"<", b"ab", b"<a", b"\xc3", b"\xa9", b"\xa9b", b"a\xe2\x82", b"\xac", b"\xf0", b"\x9f\x98\x80"]


def tokenizer_of_pieces() -> Tokenizer:
    """Tokens that cut characters anywhere, and a special token 0 without text."""
    words = ["".join(_BYTE_CHARACTERS[byte] for byte in piece) for piece in PIECES]
    tokenizer = Tokenizer(models.BPE(vocab={"<end>": 0, **{word: i + 1 for i, word in enumerate(words)}}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


TABLE = TokenTable(tokenizer_of_pieces())


def slow_places(token_ids: list[int]) -> list[int]:
    """Of each token the character with its first byte: decode the bytes before it, and those with it."""
    starts = []
    for at, token_id in enumerate(token_ids):
        before = b"".join(map(TABLE.bytes_of, token_ids[:at]))
        decoder = IncrementalDecoder(TABLE)
        out = len(decoder.feed(token_ids[:at]))
        first = TABLE.bytes_of(token_id)[:1]
        if not first:
            starts.append(out)
            continue
        # The character that holds the byte is the last of everything up to it, whole or not.
        starts.append(len((before + first).decode("utf-8", errors="replace")) - 1)
    return starts


def run(feeds: list[list[int]], stops: list[str], *, aligned: bool) -> tuple[str, list[int], bool, list[str]]:
    answer = AnswerText(IncrementalDecoder(TABLE), stops, aligned=aligned)
    releases = [*map(answer.feed, feeds), answer.finish()]
    texts = [release.text for release in releases]
    return "".join(texts), [start for release in releases for start in release.starts], answer.stopped, texts


tokens = st.lists(st.integers(0, len(PIECES)), max_size=12)
stop_strings = st.lists(st.text(alphabet="ab<é\ufffd", min_size=1, max_size=3), max_size=3)


def split(items: list[int], cuts: list[int]) -> list[list[int]]:
    places = sorted({cut % (len(items) + 1) for cut in cuts})
    return [items[a:b] for a, b in zip([0, *places], [*places, len(items)], strict=True)]


@given(token_ids=tokens, cuts=st.lists(st.integers(0, 20), max_size=6), stops=stop_strings)
@settings(max_examples=1500, deadline=None)
def test_any_cut_gives_the_same_text_and_the_tokens_that_begin_in_it(token_ids, cuts, stops):
    text, starts, stopped, texts = run(split(token_ids, cuts), stops, aligned=True)
    whole = b"".join(map(TABLE.bytes_of, token_ids)).decode("utf-8", errors="replace")
    matcher = StopMatcher(stops)
    assert text == matcher.feed(whole) + matcher.finish()
    assert stopped == matcher.stopped
    assert starts == [start for start in slow_places(token_ids) if not stopped or start < len(text)]
    plain = run(split(token_ids, cuts), stops, aligned=False)
    assert plain[0] == text
    assert plain[1] == []
    assert plain[3] == texts


def slow_whole_tokens(token_ids: list[int], text: str) -> int:
    """The shortest beginning of the tokens whose text reaches this far, unless its last one goes beyond."""
    for count in range(len(token_ids) + 1):
        reached = IncrementalDecoder(TABLE).feed(token_ids[:count])
        if len(reached) >= len(text):
            return count if reached == text else count - 1
    raise AssertionError("the text is not theirs")


def slow_counted_tokens(token_ids: list[int], stops: list[str]) -> int:
    """The shortest beginning of the tokens whose text has a stop string in it."""
    for count in range(len(token_ids) + 1):
        reached = IncrementalDecoder(TABLE).feed(token_ids[:count])
        if any(stop in reached for stop in stops):
            return count
    raise AssertionError("no stop string is in it")


@given(token_ids=tokens, cuts=st.lists(st.integers(0, 20), max_size=6), stops=stop_strings, aligned=st.booleans())
@settings(max_examples=1000, deadline=None)
def test_the_tokens_wholly_before_a_stop_string_are_counted_in_any_cut(token_ids, cuts, stops, aligned):
    answer = AnswerText(IncrementalDecoder(TABLE), stops, aligned=aligned)
    text = "".join(answer.feed(feed).text for feed in split(token_ids, cuts))
    if answer.stopped:
        assert answer.whole_tokens == slow_whole_tokens(token_ids, text)
        assert answer.counted_tokens == slow_counted_tokens(token_ids, stops)


@pytest.mark.parametrize(("stop", "count"), [("b<", 0), ("<", 1), ("<a", 1), ("ab<", 0), ("bb", 2)])
def test_a_token_that_a_stop_string_cuts_is_not_whole(stop, count):
    fed = [PIECES.index(piece) + 1 for piece in (b"ab", b"<a", b"b", b"b")]
    answer = AnswerText(IncrementalDecoder(TABLE), [stop], aligned=False)
    answer.feed(fed)
    assert answer.stopped
    assert answer.whole_tokens == count


@given(token_ids=tokens, stops=stop_strings)
@settings(max_examples=500, deadline=None)
def test_a_token_comes_out_with_its_first_character_and_never_before(token_ids, stops):
    answer = AnswerText(IncrementalDecoder(TABLE), stops, aligned=True)
    text, count, places = "", 0, slow_places(token_ids)
    for at, token_id in enumerate(token_ids):
        release = answer.feed([token_id])
        text += release.text
        count += len(release.starts)
        if not answer.stopped:
            assert count == sum(start < len(text) for start in places[: at + 1])


def test_tokens_of_a_beginning_stop_string_wait_with_it():
    a, less, ab = (PIECES.index(piece) + 1 for piece in (b"a", b"<", b"ab"))
    answer = AnswerText(IncrementalDecoder(TABLE), ["<ab>"], aligned=True)
    releases = [answer.feed([token]) for token in (a, less, ab, a)]
    assert [(release.text, release.starts) for release in releases] == [
        ("a", (0,)),
        ("", ()),
        ("", ()),
        ("<aba", (1, 2, 4)),
    ]


def test_a_token_whose_beginning_is_before_the_stop_string_belongs_to_the_answer():
    tokens = [PIECES.index(piece) + 1 for piece in (b"ab", b"<a", b"b")]
    assert run([tokens], ["b<"], aligned=True)[:3] == ("a", [0], True)
    assert run([tokens], ["ab<"], aligned=True)[:3] == ("", [], True)


def test_the_space_that_sentencepiece_drops_moves_every_place():
    vocabulary = {"▁Hi": 0, "▁": 1, "<0xC3>": 2, "<0xA9>": 3, "!": 4}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    table = TokenTable(tokenizer)
    assert IncrementalDecoder(table).feed_aligned([0, 2, 3, 4, 0]) == ("Hié! Hi", [0, 2, 2, 3, 4])
    assert IncrementalDecoder(table).feed_aligned([1, 0, 4]) == (" Hi!", [0, 0, 3])


@pytest.mark.parametrize("aligned", [True, False])
def test_nothing_comes_after_a_stop(aligned):
    a, b = PIECES.index(b"a") + 1, PIECES.index(b"b") + 1
    answer = AnswerText(IncrementalDecoder(TABLE), ["b"], aligned=aligned)
    assert [answer.feed(ids).text for ids in ([a, b, a], [a], [a])] == ["a", "", ""]
    assert (answer.finish().text, answer.finish().starts) == ("", ())
