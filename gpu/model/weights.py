"""A loaded model: fused and packed weights, embedding table, output head and rotary tables."""

from __future__ import annotations

import dataclasses
import pathlib

import torch

from gpu.device import ModelError
from gpu.model.config import ModelConfig
from gpu.model.embedding import OutputHead, TokenEmbedding, make_embedding_and_head
from gpu.model.gguf_source import GgufSource
from gpu.model.linear import Linear, make_linear
from gpu.model.rope import inverse_frequencies, position_tables
from gpu.model.safetensors_source import SafetensorsSource
from gpu.model.source import EMBEDDING, FINAL_NORM, OUTPUT_HEAD, WeightSource, expected_shapes


@dataclasses.dataclass(frozen=True, slots=True)
class LayerWeights:
    """One transformer layer. `qkv` rows: query heads, key heads, value heads. `gate_up` rows: gate, then up."""

    attention_norm: torch.Tensor
    qkv: Linear
    attention_output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """Everything that programs read. `cosines` and `sines` are [context, head_dim]."""

    config: ModelConfig
    dtype: torch.dtype
    embedding: TokenEmbedding
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: OutputHead
    cosines: torch.Tensor
    sines: torch.Tensor


def open_source(path: pathlib.Path) -> WeightSource:
    """The weight file or directory at `path`. Raises ModelError."""
    if path.is_dir():
        return SafetensorsSource(path)
    if path.is_file():
        return GgufSource(path)
    raise ModelError(f"there is no model at {path}")


def load_model(
    source: WeightSource,
    dtype: torch.dtype,
    context_tokens: int,
    one_row_copies: bool = False,
    device: torch.device | str = "cpu",
) -> Model:
    """Read, check, fuse and pack every weight. Raises ModelError on a missing tensor or one of the wrong shape.

    `one_row_copies` spends half as much memory again on float32 layers to make one-row steps quicker on a CPU.
    """
    config = source.config
    reader = _CheckedReader(source, dtype, torch.device(device))
    table = reader.read(EMBEDDING)
    head = table if config.tied_embeddings else reader.read(OUTPUT_HEAD)
    embedding, output_head = make_embedding_and_head(table, head)
    del table, head
    frequencies = inverse_frequencies(config, source.rope_frequency_factors)
    cosines, sines = position_tables(frequencies, context_tokens, dtype)
    return Model(
        config=config,
        dtype=dtype,
        embedding=embedding,
        layers=tuple(_load_layer(reader, layer, one_row_copies) for layer in range(config.layers)),
        final_norm=reader.read(FINAL_NORM),
        head=output_head,
        cosines=cosines.to(device),
        sines=sines.to(device),
    )


class _CheckedReader:
    """Reads tensors of the expected shapes, converted to the model's precision, onto its device."""

    def __init__(self, source: WeightSource, dtype: torch.dtype, device: torch.device) -> None:
        self._source = source
        self._dtype = dtype
        self._device = device
        self._shapes = expected_shapes(source.config)

    def read(self, *names: str) -> torch.Tensor:
        """The named tensors one below the other."""
        tensors = [self._read_one(name) for name in names]
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)

    def _read_one(self, name: str) -> torch.Tensor:
        tensor = self._source.tensor(name)
        if tuple(tensor.shape) != self._shapes[name]:
            raise ModelError(f"{name} has the shape {tuple(tensor.shape)}, expected {self._shapes[name]}")
        return tensor.to(device=self._device, dtype=self._dtype)


def _load_layer(reader: _CheckedReader, layer: int, one_row_copies: bool) -> LayerWeights:
    prefix = f"model.layers.{layer}."

    def name(part: str) -> str:
        return f"{prefix}{part}.weight"

    return LayerWeights(
        attention_norm=reader.read(name("input_layernorm")),
        qkv=make_linear(
            reader.read(name("self_attn.q_proj"), name("self_attn.k_proj"), name("self_attn.v_proj")),
            one_row_copies,
        ),
        attention_output=make_linear(reader.read(name("self_attn.o_proj"))),
        mlp_norm=reader.read(name("post_attention_layernorm")),
        gate_up=make_linear(reader.read(name("mlp.gate_proj"), name("mlp.up_proj")), one_row_copies),
        down=make_linear(reader.read(name("mlp.down_proj"))),
    )
