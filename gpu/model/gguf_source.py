"""Weights from a GGUF file through the gguf package, under Hugging Face's names and row order."""

from __future__ import annotations

import pathlib
import struct
from typing import Any

import gguf
import numpy as np
import torch
from gguf.gguf_reader import ReaderTensor

from gpu.device import ModelError
from gpu.model.config import ModelConfig, config_from_gguf
from gpu.model.dequantize import dequantize
from gpu.model.source import EMBEDDING, FINAL_NORM, OUTPUT_HEAD

_TOP_LEVEL = {EMBEDDING: "token_embd", FINAL_NORM: "output_norm", OUTPUT_HEAD: "output"}
_PER_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class WeightReader(gguf.GGUFReader):
    """A reader that steps over arrays: a vocabulary takes the package 2.5 s, and weights need none of it."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type != gguf.GGUFValueType.ARRAY:
            parts: tuple[int, list[Any], list[int], list[Any]] = super()._get_field_parts(orig_offs, raw_type)
            return parts
        buffer = memoryview(self.data.data)
        item_type, count = struct.unpack_from("<IQ", buffer, orig_offs)
        end = _skip_items(buffer, orig_offs + 12, gguf.GGUFValueType(item_type), count)
        return end - orig_offs, [], [], [gguf.GGUFValueType.ARRAY]


def _skip_items(buffer: memoryview, offset: int, item_type: gguf.GGUFValueType, count: int) -> int:
    """The offset after an array's items. Raises ValueError for arrays of arrays, struct.error past the file's end."""
    if item_type == gguf.GGUFValueType.STRING:
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(count):
            offset += 8 + unpack(buffer, offset)[0]
        return offset
    scalar = gguf.GGUFReader.gguf_scalar_to_np.get(item_type)
    if scalar is None:
        raise ValueError(f"metadata holds an array of {item_type.name}")
    return int(offset + count * np.dtype(scalar).itemsize)


class GgufSource:
    """An open GGUF file. Raises ModelError when it is damaged, cut short or of an unsupported kind."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        try:
            reader = WeightReader(path)
        except (OSError, ValueError, KeyError, IndexError, struct.error) as error:
            raise ModelError(f"{path} cannot be read as GGUF: {error}") from error
        self._tensors: dict[str, ReaderTensor] = {tensor.name: tensor for tensor in reader.tensors}
        metadata = {name: field.contents() for name, field in reader.fields.items() if len(field.data) == 1}
        self._config = config_from_gguf(
            metadata,
            vocab_size=int(self._find("token_embd.weight").shape[1]),
            tied_embeddings="output.weight" not in self._tensors,
        )

    @property
    def config(self) -> ModelConfig:
        """The extents that the tensors must have."""
        return self._config

    @property
    def rope_frequency_factors(self) -> torch.Tensor | None:
        """Llama 3 files bring `rope_freqs` [head_dim / 2]."""
        if "rope_freqs.weight" not in self._tensors:
            return None
        return self._values("rope_freqs.weight")

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor in float32, q and k rows in Hugging Face's order. Raises ModelError when absent."""
        values = self._values(_gguf_name(name))
        if name.endswith("q_proj.weight"):
            return _unpermute(values, self._config.heads)
        if name.endswith("k_proj.weight"):
            return _unpermute(values, self._config.kv_heads)
        return values

    def _find(self, gguf_name: str) -> ReaderTensor:
        tensor = self._tensors.get(gguf_name)
        if tensor is None:
            raise ModelError(f"{self._path} holds no tensor {gguf_name}")
        return tensor

    def _values(self, gguf_name: str) -> torch.Tensor:
        tensor = self._find(gguf_name)
        shape = tuple(int(extent) for extent in reversed(tensor.shape))
        data = np.atleast_2d(tensor.data)
        return torch.from_numpy(dequantize(data, tensor.tensor_type).reshape(shape))


def _gguf_name(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` -> `blk.3.ffn_up.weight`."""
    if name in _TOP_LEVEL:
        return f"{_TOP_LEVEL[name]}.weight"
    layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{layer}.{_PER_LAYER[part]}.weight"


def _unpermute(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """GGUF interleaves each head's rotary pairs as (0, half, 1, half + 1, …); put the halves back, [rows, hidden]."""
    rows, hidden = weight.shape
    return weight.view(heads, rows // heads // 2, 2, hidden).transpose(1, 2).reshape(rows, hidden)
