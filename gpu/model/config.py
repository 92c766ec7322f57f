"""The extents and constants of a Llama-architecture model, from config.json or GGUF metadata."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from gpu.device import ModelError

_IGNORED_ROPE_TYPES = (None, "default", "none")


@dataclasses.dataclass(frozen=True, slots=True)
class Llama3RopeScaling:
    """Llama 3's stretching of the low rotary frequencies. `original_context` is in tokens."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclasses.dataclass(frozen=True, slots=True)
class ModelConfig:
    """Extents of one model. `context_tokens` is the most that its positions were trained for."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context_tokens: int
    norm_epsilon: float
    rope_theta: float
    tied_embeddings: bool
    rope_scaling: Llama3RopeScaling | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "layers", "heads", "kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ModelError(f"the model's {name} is {getattr(self, name)}; it must be at least 1")
        if self.context_tokens < 2:
            raise ModelError(f"the model's context is {self.context_tokens} tokens; at least 2 are needed")
        if self.heads % self.kv_heads:
            raise ModelError(f"{self.heads} query heads do not divide into {self.kv_heads} groups of key heads")
        if self.head_dim % 2:
            raise ModelError(f"the model's head_dim is {self.head_dim}; rotary positions need an even one")

    @property
    def group(self) -> int:
        """Query heads that share one key head."""
        return self.heads // self.kv_heads


def config_from_json(values: Mapping[str, Any]) -> ModelConfig:
    """Read a Hugging Face config.json. Raises ModelError on a missing field or an unsupported feature."""
    _refuse_unsupported(values)
    heads = _integer(values, "num_attention_heads")
    hidden = _integer(values, "hidden_size")
    rope = values.get("rope_parameters") or {}
    theta = rope.get("rope_theta", values.get("rope_theta", 10000.0))
    return ModelConfig(
        vocab_size=_integer(values, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_integer(values, "intermediate_size"),
        layers=_integer(values, "num_hidden_layers"),
        heads=heads,
        kv_heads=_integer(values, "num_key_value_heads", heads),
        head_dim=_integer(values, "head_dim", hidden // max(heads, 1)),
        context_tokens=_integer(values, "max_position_embeddings", 2048),
        norm_epsilon=float(values.get("rms_norm_eps", 1e-6)),
        rope_theta=float(theta),
        tied_embeddings=bool(values.get("tie_word_embeddings", False)),
        rope_scaling=_rope_scaling(rope or values.get("rope_scaling") or {}),
    )


def config_from_gguf(values: Mapping[str, Any], vocab_size: int, tied_embeddings: bool) -> ModelConfig:
    """Read GGUF metadata. Raises ModelError on a missing field or an unsupported feature."""
    architecture = values.get("general.architecture")
    if architecture != "llama":
        raise ModelError(f"the GGUF file's architecture is {architecture!r}; only 'llama' is supported")
    scaling = values.get("llama.rope.scaling.type")
    if scaling not in _IGNORED_ROPE_TYPES:
        raise ModelError(f"rope scaling {scaling!r} in a GGUF file is not supported")
    if values.get("llama.expert_count"):
        raise ModelError("mixture-of-experts models are not supported")
    heads = _integer(values, "llama.attention.head_count")
    hidden = _integer(values, "llama.embedding_length")
    head_dim = _integer(values, "llama.attention.key_length", hidden // max(heads, 1))
    if _integer(values, "llama.rope.dimension_count", head_dim) != head_dim:
        raise ModelError("rotary positions over a part of each head are not supported")
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=_integer(values, "llama.feed_forward_length"),
        layers=_integer(values, "llama.block_count"),
        heads=heads,
        kv_heads=_integer(values, "llama.attention.head_count_kv", heads),
        head_dim=head_dim,
        context_tokens=_integer(values, "llama.context_length"),
        norm_epsilon=float(values.get("llama.attention.layer_norm_rms_epsilon", 1e-6)),
        rope_theta=float(values.get("llama.rope.freq_base", 10000.0)),
        tied_embeddings=tied_embeddings,
    )


def _refuse_unsupported(values: Mapping[str, Any]) -> None:
    architectures = values.get("architectures") or []
    if "LlamaForCausalLM" not in architectures:
        raise ModelError(f"config.json names the architectures {architectures!r}; only LlamaForCausalLM is supported")
    if values.get("hidden_act", "silu") != "silu":
        raise ModelError(f"the activation {values['hidden_act']!r} is not supported, only 'silu'")
    for name in ("attention_bias", "mlp_bias"):
        if values.get(name):
            raise ModelError(f"{name} is set in config.json; biases are not supported")
    if values.get("quantization_config"):
        raise ModelError("quantised safetensors are not supported; use the float checkpoint or a GGUF file")


def _rope_scaling(values: Mapping[str, Any]) -> Llama3RopeScaling | None:
    kind = values.get("rope_type", values.get("type"))
    if kind in _IGNORED_ROPE_TYPES:
        return None
    if kind != "llama3":
        raise ModelError(f"rope scaling {kind!r} is not supported; 'default' and 'llama3' are")
    try:
        return Llama3RopeScaling(
            factor=float(values["factor"]),
            low_freq_factor=float(values["low_freq_factor"]),
            high_freq_factor=float(values["high_freq_factor"]),
            original_context=int(values["original_max_position_embeddings"]),
        )
    except KeyError as error:
        raise ModelError(f"llama3 rope scaling lacks {error.args[0]} in config.json") from error


def _integer(values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = values.get(name)
    if value is None:
        value = default
    if value is None:
        raise ModelError(f"the model's configuration lacks {name}")
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelError(f"the model's {name} is {value!r}; a whole number was expected")
    return value
