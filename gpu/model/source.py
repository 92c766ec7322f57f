"""What a weight file offers: its configuration and one tensor at a time, under Hugging Face's names."""

from __future__ import annotations

from typing import Protocol

import torch

from gpu.model.config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
OUTPUT_HEAD = "lm_head.weight"


class WeightSource(Protocol):
    """A file or directory of weights. Tensors come on demand, so that two copies of a model never coexist."""

    @property
    def config(self) -> ModelConfig:
        """The extents that the tensors must have."""

    @property
    def rope_frequency_factors(self) -> torch.Tensor | None:
        """Divisors of the rotary frequencies [head_dim / 2] where the file brings its own, else None."""

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor in the file's precision (float32 when it was quantised). Raises ModelError when absent."""


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model and its shape, in the order of use."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden)}
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "self_attn.q_proj.weight": (query, hidden),
            prefix + "self_attn.k_proj.weight": (key, hidden),
            prefix + "self_attn.v_proj.weight": (key, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, query),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "mlp.gate_proj.weight": (inner, hidden),
            prefix + "mlp.up_proj.weight": (inner, hidden),
            prefix + "mlp.down_proj.weight": (hidden, inner),
        }
    shapes[FINAL_NORM] = (hidden,)
    if not config.tied_embeddings:
        shapes[OUTPUT_HEAD] = (config.vocab_size, hidden)
    return shapes
