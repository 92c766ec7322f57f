"""What a GPU's memory is divided into: weights, the programs' own memory, and KV pages with what is left."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from gpu.device import InvalidSettings
from gpu.model.config import ModelConfig
from gpu.pages import PAGE_TOKENS
from gpu.programs.prompt_rows import prompt_blocks
from scheduler.shapes import GraphKind, GraphShape

_FLOAT_BYTES = 4
_SAMPLING_BYTES = 64
"""Of one logit while a row is sampled: float32 and float64 copies, sorted values and their int64 order."""
_HIDDEN_COPIES = 4
_SPARE_SHARE = 20  # a twentieth of the GPU stays free: CUDA's context grows, and the allocator rounds up


@dataclasses.dataclass(frozen=True, slots=True)
class GpuMemory:
    """`free` and `total` bytes of the device, with the weights loaded."""

    free: int
    total: int

    @staticmethod
    def of(device: torch.device) -> GpuMemory:
        """Ask the driver, after giving back what torch keeps in reserve."""
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        return GpuMemory(free, total)


def programs_bytes(shapes: Sequence[GraphShape], config: ModelConfig, columns: int, dtype: torch.dtype) -> int:
    """An upper estimate of what the programs need beside weights, KV pages and the slots' state.

    Graphs share one pool, so that the largest counts; it is there twice, since the eager warm-up has memory of its
    own. Every graph keeps its logits, for log-probabilities.
    """
    sizes = [_program_bytes(shape, config, columns, dtype) for shape in shapes]
    kept = sum(_logit_rows(shape) * config.vocab_size * _FLOAT_BYTES for shape in shapes)
    return 2 * max(sizes, default=0) + kept


def plan_kv_pages(memory: GpuMemory, page_bytes: int, reserved_bytes: int, useful: int, wanted: int | None) -> int:
    """KV pages to make: `wanted`, or as many as fit, at most `useful`.

    `reserved_bytes`: what programs and state need. Raises InvalidSettings when that many, or none at all, fit.
    """
    room = max(0, memory.free - reserved_bytes - memory.total // _SPARE_SHARE) // page_bytes
    if wanted is None and room >= 1:
        return min(useful, room)
    if wanted is not None and 1 <= wanted <= room:
        return wanted
    asked = "" if wanted is None else f"kv_pages is {wanted}; "
    raise InvalidSettings(
        f"{asked}each KV page takes {page_bytes / 2**20:.1f} MiB, and beside the model and its programs "
        f"({reserved_bytes / 2**30:.1f} GiB) this GPU has room for {room} of them; choose a smaller model, bfloat16, a "
        "shorter context, or smaller programs"
    )


def _program_bytes(shape: GraphShape, config: ModelConfig, columns: int, dtype: torch.dtype) -> int:
    keys, (gathers, cells, mask_rows) = columns * PAGE_TOKENS, _prompt_attention(shape, config)
    rows = max(shape.physical_rows, cells, shape.batch_capacity)
    kv_width, size = config.kv_heads * config.head_dim, dtype.itemsize
    query_width = (config.heads + 2 * config.kv_heads) * config.head_dim
    activations = rows * (_HIDDEN_COPIES * config.hidden_size + 2 * query_width + 3 * config.intermediate_size) * size
    gathered = (shape.batch_capacity + gathers) * keys * kv_width * 2 * size
    masks = (shape.batch_capacity * shape.target_width * config.group + mask_rows) * keys * size
    sampling = _logit_rows(shape) * config.vocab_size * _SAMPLING_BYTES
    return activations + 2 * gathered + 2 * masks + sampling


def _prompt_attention(shape: GraphShape, config: ModelConfig) -> tuple[int, int, int]:
    """(lanes' keys gathered, cells with a query, rows of the mask) where a captured program's prompts attend."""
    if shape.prompt_rows == 1:
        return 1, shape.prefill_capacity, shape.prefill_capacity
    blocks, size = prompt_blocks(shape.prefill_capacity, shape.prompt_rows)
    return blocks, blocks * size, blocks * size * config.group


def _logit_rows(shape: GraphShape) -> int:
    if shape.kind is GraphKind.MIXED:
        return shape.batch_capacity * shape.target_width
    if shape.prefill_capacity:
        return 1
    return shape.target_rows
