"""The quick dequantisation gives the gguf package's bits."""

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.device import ModelError
from gpu.model.dequantize import dequantize
from gpu.model.gguf_source import WeightReader

KINDS = [gguf.GGMLQuantizationType[name] for name in ("Q4_1", "Q8_0", "F32", "F16", "BF16", "Q4_0", "Q6_K")]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 40), blocks=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_random_blocks_have_the_bits_of_the_gguf_package(kind, rows, blocks, seed):
    values = np.random.default_rng(seed).normal(size=(rows, blocks * 256)).astype(np.float32)
    if kind == gguf.GGMLQuantizationType.Q6_K:  # the package reads but does not write this kind
        size = gguf.GGML_QUANT_SIZES[kind][1]
        data = np.random.default_rng(seed).integers(0, 120, size=(rows, blocks * size)).astype(np.uint8)
    else:
        data = gguf.quantize(values, kind)
    expected = gguf.dequantize(data, kind)
    assert dequantize(data, kind).tobytes() == np.asarray(expected, dtype=np.float32).tobytes()


def test_the_real_file_has_the_bits_of_the_gguf_package(smollm2_path):
    tensors = {tensor.name: tensor for tensor in WeightReader(smollm2_path).tensors}
    for name in ("blk.0.attn_q.weight", "blk.29.ffn_down.weight", "output_norm.weight", "token_embd.weight"):
        tensor = tensors[name]
        rows = np.atleast_2d(tensor.data)[:50]
        expected = gguf.dequantize(rows, tensor.tensor_type)
        assert dequantize(rows, tensor.tensor_type).tobytes() == expected.tobytes(), name


def test_a_kind_that_nobody_reads_is_refused():
    with pytest.raises(ModelError, match="I8"):
        dequantize(np.zeros((1, 32), dtype=np.int8), gguf.GGMLQuantizationType.I8)
