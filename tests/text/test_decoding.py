"""Incremental decoding against decoding everything at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from service.text import IncrementalDecoder, TextModel, TextModelError
from service.text.vocabulary import TokenTable


def ids_of_bytes(tokenizer: Tokenizer, data: bytes) -> list[int]:
    table = TokenTable(tokenizer)
    by_byte = {table.bytes_of(i): i for i in range(len(table))}
    return [by_byte[bytes([byte])] for byte in data]


def split(items: list[int], cuts: list[int]) -> list[list[int]]:
    places = sorted({cut % (len(items) + 1) for cut in cuts})
    return [items[a:b] for a, b in zip([0, *places], [*places, len(items)], strict=True)]


@given(data=st.binary(max_size=40), cuts=st.lists(st.integers(0, 100), max_size=8))
@settings(max_examples=300, deadline=None)
def test_deltas_of_any_bytes_joined_equal_the_library_decoding_all_of_them(data, cuts, byte_tokenizer):
    ids = ids_of_bytes(byte_tokenizer, data)
    decoder = IncrementalDecoder(TokenTable(byte_tokenizer))
    joined = "".join(decoder.feed(part) for part in split(ids, cuts)) + decoder.finish()
    assert joined == byte_tokenizer.decode(ids) == data.decode("utf-8", errors="replace")


@given(text=st.text(max_size=20))
@settings(max_examples=200, deadline=None)
def test_no_half_character_is_ever_emitted(text, byte_tokenizer):
    decoder = IncrementalDecoder(TokenTable(byte_tokenizer))
    so_far = ""
    for token_id in ids_of_bytes(byte_tokenizer, text.encode()):
        so_far += decoder.feed([token_id])
        assert text.startswith(so_far)
    assert so_far == text
    assert decoder.finish() == ""


@given(ids=st.lists(st.integers(0, 49_151), max_size=40), cuts=st.lists(st.integers(0, 100), max_size=8))
@settings(max_examples=300, deadline=None)
def test_random_smollm_tokens_decode_as_the_library_does(ids, cuts, smollm: TextModel):
    decoder = smollm.decoder()
    joined = "".join(decoder.feed(part) for part in split(ids, cuts)) + decoder.finish()
    assert joined == smollm.decode(ids) == smollm.tokenizer.decode(ids, skip_special_tokens=True)


def test_an_unfinished_character_at_the_end_becomes_one_replacement(byte_tokenizer):
    decoder = IncrementalDecoder(TokenTable(byte_tokenizer))
    assert decoder.feed(ids_of_bytes(byte_tokenizer, "é".encode()[:1])) == ""
    assert decoder.finish() == "\ufffd"


def test_special_tokens_and_unknown_ids_are_silent(byte_tokenizer):
    table = TokenTable(byte_tokenizer)
    end = byte_tokenizer.token_to_id("<end>")
    decoder = IncrementalDecoder(table)
    assert decoder.feed([end, -1, len(table), 10**12]) == ""


def test_byte_fallback_vocabularies_decode_as_the_library_does():
    vocabulary = {"▁Hi": 0, "▁you": 1, "<0xC3>": 2, "<0xA9>": 3, "!": 4}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    ids = [0, 1, 2, 3, 4]
    decoder = IncrementalDecoder(TokenTable(tokenizer))
    deltas = [decoder.feed([i]) for i in ids]
    assert deltas == ["Hi", " you", "", "é", "!"]
    assert "".join(deltas) == tokenizer.decode(ids)


def test_a_decoder_of_another_kind_is_refused_with_its_name(byte_tokenizer):
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(TextModelError, match="WordPiece"):
        TokenTable(tokenizer)
