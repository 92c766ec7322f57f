"""The models that are checked: the shipped byte-level one where it is, and random ones of any size."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib

import torch
from safetensors.torch import save_file

from gpu.draft_heads import AUTO, choose_draft_head
from gpu.model.config import ModelConfig
from gpu.model.source import expected_shapes

BYTE_MODEL = pathlib.Path(__file__).parents[1] / "assets" / "byte-model"
_INPUT_DIMENSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """A model's folder, and its draft head if there is one."""

    path: pathlib.Path
    head: pathlib.Path | None


def tiny_config() -> ModelConfig:
    """Two layers with two query heads to each key head."""
    return random_config(vocab=257, hidden=64, inner=96, layers=2, heads=4, kv_heads=2, context=512)


def billion_config() -> ModelConfig:
    """1.2 thousand million weights, with the extents of a common model of that size."""
    return random_config(vocab=128256, hidden=2048, inner=8192, layers=16, heads=32, kv_heads=8, context=4096)


def random_config(
    *, vocab: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, context: int
) -> ModelConfig:
    """A Llama model with tied embeddings."""
    return ModelConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=inner,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        context_tokens=context,
        norm_epsilon=1e-5,
        rope_theta=10000.0,
        tied_embeddings=True,
    )


def write_random_model(
    folder: pathlib.Path, config: ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float32
) -> pathlib.Path:
    """A Hugging Face checkpoint of random weights that keep the hidden states' size; returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in expected_shapes(config).items():
        if len(shape) == 1:
            tensors[name] = torch.ones(shape, dtype=dtype)
        else:
            deviation = 1.0 / math.sqrt(shape[_INPUT_DIMENSION])
            tensors[name] = torch.empty(shape, dtype=dtype).normal_(0.0, deviation, generator=generator)
    save_file(tensors, folder / "model.safetensors")
    fields = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "max_position_embeddings": config.context_tokens,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tied_embeddings,
    }
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    return folder


def choose_subject(folder: pathlib.Path) -> Subject:
    """The shipped byte-level model; a tiny random one in `folder`, without a draft head, where it was not installed."""
    if (BYTE_MODEL / "model.safetensors").is_file():
        return Subject(BYTE_MODEL, choose_draft_head(AUTO, BYTE_MODEL))
    return Subject(write_random_model(folder, tiny_config()), None)
