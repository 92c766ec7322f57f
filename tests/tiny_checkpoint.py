"""A random Llama checkpoint of 0.1 million weights with a byte-level tokenizer, small enough to serve in every test."""

from __future__ import annotations

import json
import pathlib

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()

END = "<|end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tiny_config(**changes) -> LlamaConfig:
    """Two layers, 4 query and 2 key heads, 257 tokens: 256 bytes and the end."""
    values = {
        "vocab_size": 257,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,  # wide enough that attention and positions move the logits
        "bos_token_id": None,
        "eos_token_id": 256,
    }
    return LlamaConfig(**(values | changes))


def write_tiny_checkpoint(directory: pathlib.Path, *, seed: int = 0, max_shard_size="1GB", dtype=None, **changes):
    """Write config.json, safetensors and tokenizer files, and return the transformers model.

    With `eos_token_id=None` the tokenizer names no end token either, so that no answer ends by itself.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(tiny_config(**changes)).eval()
    if dtype is not None:
        model = model.to(dtype)
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={text: index for index, text in enumerate([*alphabet, END])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(directory / "tokenizer.json"))
    end = {} if changes.get("eos_token_id", 256) is None else {"eos_token": END}
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE, **end}))
    return model
