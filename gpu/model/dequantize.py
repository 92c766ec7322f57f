"""GGUF blocks to float32, whole tensors at a time. The twin is the gguf package's own `dequantize`."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt

from gpu.device import ModelError

_BLOCK = 32
_Q4_1_BYTES = 20  # float16 scale, float16 minimum, 16 bytes of two 4-bit values
_Q8_0_BYTES = 34  # float16 scale, 32 signed bytes

Float32 = npt.NDArray[np.float32]


def dequantize(data: npt.NDArray[np.generic], quantization: gguf.GGMLQuantizationType) -> Float32:
    """Values [rows, columns] of a tensor whose blocks are `data` [rows, bytes per row].

    Q4_1, Q8_0, F32 and F16 take the quick way, other kinds the gguf package's (ten times slower).
    Raises ModelError for kinds that the package cannot read.
    """
    if quantization == gguf.GGMLQuantizationType.F32:
        return np.array(data, dtype=np.float32)
    if quantization == gguf.GGMLQuantizationType.F16:
        return data.astype(np.float32)
    if quantization == gguf.GGMLQuantizationType.Q4_1:
        return _dequantize_q4_1(data.view(np.uint8))
    if quantization == gguf.GGMLQuantizationType.Q8_0:
        return _dequantize_q8_0(data.view(np.uint8))
    try:
        return np.array(gguf.dequantize(data, quantization), dtype=np.float32)
    except NotImplementedError as error:
        raise ModelError(f"GGUF tensors of kind {quantization.name} are not supported") from error


def _dequantize_q4_1(data: npt.NDArray[np.uint8]) -> Float32:
    """Bytes [rows, blocks * 20] to values [rows, blocks * 32]: scale * q + minimum."""
    blocks = np.ascontiguousarray(data).reshape(-1, _Q4_1_BYTES)
    scales = blocks[:, :4].copy().view(np.float16).astype(np.float32)
    packed = blocks[:, 4:]
    values = np.empty((len(blocks), _BLOCK), dtype=np.float32)
    np.bitwise_and(packed, 15, out=values[:, :16], casting="unsafe")
    np.right_shift(packed, 4, out=values[:, 16:], casting="unsafe")
    values *= scales[:, :1]
    values += scales[:, 1:]
    return values.reshape(data.shape[0], -1)


def _dequantize_q8_0(data: npt.NDArray[np.uint8]) -> Float32:
    """Bytes [rows, blocks * 34] to values [rows, blocks * 32]: scale * q."""
    blocks = np.ascontiguousarray(data).reshape(-1, _Q8_0_BYTES)
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    values = blocks[:, 2:].view(np.int8).astype(np.float32)
    values *= scales
    return values.reshape(data.shape[0], -1)
