"""A tokenizer whose token ids are the bytes of the text's UTF-8, as tokenizer.json."""

from __future__ import annotations

import json
import pathlib

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

END = "<|end|>"
END_ID = 256
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_FIRST_STAND_IN = 0x100


def byte_characters() -> list[str]:
    """The character by which byte-level tokenizers write each byte, 0 to 255."""
    stand_ins = iter(range(_FIRST_STAND_IN, 2 * _FIRST_STAND_IN))
    printable = frozenset(_PRINTABLE)
    return [chr(byte if byte in printable else next(stand_ins)) for byte in range(256)]


def write_byte_tokenizer(directory: pathlib.Path) -> None:
    """Write tokenizer.json, and tokenizer_config.json with a plain chat template."""
    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary | {END: END_ID}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
