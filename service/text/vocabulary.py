"""Which bytes each token stands for, so that any token sequence decodes piece by piece."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer

from service.text.errors import TextModelError


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte, inverted: character to byte value."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    alphabet.update({chr(256 + n): byte for n, byte in enumerate(others)})
    return alphabet


_BYTE_OF_CHARACTER = _byte_level_alphabet()


def _byte_level_bytes(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:  # an added token in plain text
        return token.encode("utf-8")


def _byte_fallback_bytes(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode("utf-8")


def _decoder_types(decoder: dict[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    if decoder["type"] == "Sequence":
        return set().union(*(_decoder_types(part) for part in decoder["decoders"]))
    return {str(decoder["type"])}


class TokenTable:
    """Token id to bytes for one tokenizer. Special tokens (and unknown ids) are empty: they are never output.

    `strip_first_space`: one space at the very start of a text is dropped, as SentencePiece models expect.
    Raises TextModelError for a decoder that is neither byte-level nor byte-fallback.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        state = None if tokenizer.decoder is None else json.loads(tokenizer.decoder.__getstate__())
        types = _decoder_types(state)
        if "ByteLevel" in types:
            to_bytes = _byte_level_bytes
        elif "ByteFallback" in types or "Metaspace" in types:
            to_bytes = _byte_fallback_bytes
        else:
            raise TextModelError(
                f"the tokenizer's decoder {sorted(types) or 'none'} is not supported; byte-level BPE and "
                "byte-fallback BPE are"
            )
        self.strip_first_space = "ByteLevel" not in types
        special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        size = tokenizer.get_vocab_size(with_added_tokens=True)
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self._bytes = [b""] * max(size, max(vocabulary.values(), default=-1) + 1)
        self._special: dict[int, str] = {}
        for token, token_id in vocabulary.items():
            if token_id in special:
                self._special[token_id] = token
            else:
                self._bytes[token_id] = to_bytes(token)

    def __len__(self) -> int:
        return len(self._bytes)

    def bytes_of(self, token_id: int) -> bytes:
        """The token's bytes; empty for special tokens and for ids outside the vocabulary."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def written_bytes_of(self, token_id: int) -> bytes:
        """As bytes_of(), but a special token's are those of the text that stands for it in a prompt."""
        special = self._special.get(token_id)
        return self.bytes_of(token_id) if special is None else special.encode("utf-8")

    def is_special(self, token_id: int) -> bool:
        """Whether the token is never output as text."""
        return token_id in self._special
