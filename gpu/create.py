"""Building a device from settings."""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Sequence

import torch

from gpu.cpu_device import CpuDevice, Program
from gpu.device import Device, DeviceLimits, DeviceUnavailable, InvalidSettings
from gpu.model.config import ModelConfig
from gpu.model.source import expected_shapes
from gpu.model.weights import load_model, open_source
from gpu.pages import PAGE_TOKENS, KvCache, page_bytes, pages_for
from gpu.programs.decode import DecodeProgram
from gpu.programs.prefill import PrefillProgram
from scheduler.shapes import GraphKind, GraphShape

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_DEFAULT_CONTEXT = 2048
_DEFAULT_FULL_CONTEXTS = 16
_MEMORY_SHARE = 4  # the default pool takes at most a quarter of the machine's memory
_COPIED_WEIGHTS_SHARE = 16  # weights are copied for one-row steps when they take at most this part of memory
_CGROUP_LIMIT = pathlib.Path("/sys/fs/cgroup/memory.max")


def create_device(
    model_path: str | os.PathLike[str],
    *,
    device: str = "cpu",
    dtype: str = "float32",
    prefill_capacities: Sequence[int] = (64, 128, 256, 512),
    decode_batches: Sequence[int] = (1, 2, 4, 8, 16),
    request_slots: int = 64,
    max_context: int | None = None,
    kv_pages: int | None = None,
    threads: int = 1,
) -> Device:
    """Load the GGUF file or checkpoint directory at `model_path` and prepare its programs, without running them.

    `max_context` (tokens of prompt plus output) defaults to the model's own limit, at most 2,048. `kv_pages` defaults
    to 16 full contexts, within a quarter of the machine's memory. `threads` sets torch's thread count for the process.
    Raises DeviceUnavailable, InvalidSettings or ModelError.
    """
    if device != "cpu":
        raise DeviceUnavailable(f"the device {device!r} is not available in this version; use --device cpu")
    if dtype not in _DTYPES:
        raise InvalidSettings(f"dtype is {dtype!r}; it must be one of {', '.join(_DTYPES)}")
    for name, value in (("threads", threads), ("request_slots", request_slots)):
        if value < 1:
            raise InvalidSettings(f"{name} is {value}; it must be at least 1")
    shapes = _shapes(prefill_capacities, decode_batches)
    torch.set_num_threads(threads)
    source = open_source(pathlib.Path(model_path))
    config, precision = source.config, _DTYPES[dtype]
    context = _context_tokens(config, max_context)
    pages = _kv_pages(config, precision, context, kv_pages)
    model = load_model(source, precision, context, _affords_one_row_copies(config))
    cache = KvCache(config, pages, precision)
    columns = pages_for(context)
    programs: dict[GraphShape, Program] = {
        shape: PrefillProgram(model, cache, shape.prefill_capacity, columns)
        if shape.kind is GraphKind.PREFILL
        else DecodeProgram(model, cache, shape.batch_capacity, columns)
        for shape in shapes
    }
    limits = DeviceLimits(
        context_tokens=context,
        kv_pages=pages,
        page_tokens=PAGE_TOKENS,
        vocab_size=config.vocab_size,
        request_slots=request_slots,
    )
    return CpuDevice(programs, limits, threads)


def _shapes(prefill_capacities: Sequence[int], decode_batches: Sequence[int]) -> tuple[GraphShape, ...]:
    if not prefill_capacities or not decode_batches:
        raise InvalidSettings("prefill_capacities and decode_batches need at least one entry each")
    if min(*prefill_capacities, *decode_batches) < 1:
        raise InvalidSettings("prefill_capacities and decode_batches must be at least 1")
    prefills = (GraphShape(GraphKind.PREFILL, 1, prefill_capacity=size) for size in sorted(set(prefill_capacities)))
    decodes = (GraphShape(GraphKind.DECODE, size) for size in sorted(set(decode_batches)))
    return (*prefills, *decodes)


def _context_tokens(config: ModelConfig, wanted: int | None) -> int:
    if wanted is None:
        return min(config.context_tokens, _DEFAULT_CONTEXT)
    if not 2 <= wanted <= config.context_tokens:
        raise InvalidSettings(f"max_context is {wanted}; this model allows 2 to {config.context_tokens} tokens")
    return wanted


def _kv_pages(config: ModelConfig, dtype: torch.dtype, context: int, wanted: int | None) -> int:
    size = page_bytes(config, dtype)
    memory = _memory_bytes()
    if wanted is None:
        affordable = memory // _MEMORY_SHARE // size
        return max(1, min(_DEFAULT_FULL_CONTEXTS * pages_for(context), affordable))
    if wanted < 1 or wanted * size > memory:
        raise InvalidSettings(
            f"kv_pages is {wanted}; each takes {size / 2**20:.1f} MiB and this machine has room for "
            f"1 to {memory // size}"
        )
    return wanted


def _affords_one_row_copies(config: ModelConfig) -> bool:
    weights = sum(math.prod(shape) for shape in expected_shapes(config).values())
    return weights * torch.float32.itemsize * _COPIED_WEIGHTS_SHARE <= _memory_bytes()


def _memory_bytes() -> int:
    """The machine's memory, or less where a control group limits it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(memory, int(_CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no control group, or "max"
        return memory
