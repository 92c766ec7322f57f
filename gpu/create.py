"""Building a device from settings."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Sequence

import torch

from gpu.allocation import create_allocator
from gpu.capacity import CatalogLimits, MixedSizes, build_catalog, state_buckets
from gpu.cpu_device import CpuDevice
from gpu.cuda.availability import find_cuda
from gpu.cuda.memory import GpuMemory, plan_kv_pages, programs_bytes
from gpu.cuda.stream import CudaStream
from gpu.cuda_device import CudaDevice
from gpu.device import Device, DeviceLimits, DeviceUnavailable, InvalidSettings
from gpu.draft_heads import choose_draft_head
from gpu.model.config import ModelConfig
from gpu.model.draft_head import DraftHead, load_draft_head
from gpu.model.source import expected_shapes
from gpu.model.weights import Model, load_model, open_source
from gpu.pages import PAGE_TOKENS, KvCache, page_bytes, pages_for
from gpu.programs.create import STATE_KINDS, create_copy_program, create_init_program, create_program
from gpu.programs.interface import ExecutionStyle, ProgramContext
from gpu.sampling import SamplingTable
from gpu.sampling.device_table import DeviceSamplingTable
from gpu.state import SlotState
from gpu.transport import Run
from scheduler.shapes import Allocation, GraphKind, GraphShape

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_ALLOCATIONS = {allocation.value: allocation for allocation in Allocation}
_ONE_PROMPT = MixedSizes()
_DEFAULT_CONTEXT = 2048
_DEFAULT_FULL_CONTEXTS = 16
_DEFAULT_SNAPSHOTS_PER_SLOT = 2
_MEMORY_SHARE = 4  # the default pool takes at most a quarter of the machine's memory
_COPIED_WEIGHTS_SHARE = 16  # weights are copied for one-row steps when they take at most this part of memory
_CGROUP_LIMIT = pathlib.Path("/sys/fs/cgroup/memory.max")
_MIXED_DECLARED = True  # Llama-architecture models, the only ones that load, treat prompt and decode rows alike


def create_device(
    model_path: str | os.PathLike[str],
    *,
    device: str = "cpu",
    dtype: str = "float32",
    prefill_capacities: Sequence[int] = (4, 16, 32, 64, 128, 256, 512),
    scored_capacities: Sequence[int] | None = None,
    decode_batches: Sequence[int] = (1, 2, 4, 8, 16),
    request_slots: int = 64,
    max_context: int | None = None,
    kv_pages: int | None = None,
    threads: int = 1,
    draft_head: str | os.PathLike[str] | None = None,
    draft_tokens: int = 0,
    speculative_token_capacity: int = 32,
    allocation: str = "none",
    mixed: bool = False,
    mixed_sizes: MixedSizes = _ONE_PROMPT,
    snapshot_rows: int | None = None,
) -> Device:
    """Load the GGUF file or checkpoint directory at `model_path` and prepare its programs, without running them.

    `device`: cpu or cuda. `threads` sets torch's thread count for the process. `max_context` (tokens of prompt plus
    output) defaults to the model's own limit, at most 2,048. `kv_pages` defaults to 16 full contexts, within a quarter
    of the machine's memory; on a GPU to what its free memory holds beside the programs. `scored_capacities` (prompts
    with log-probabilities) defaults to every second prefill capacity. `draft_tokens`: the deepest draft of a round, 0
    for plain decoding. `draft_head`: a head's file, "auto" for a shipped one that fits, None for copies alone.
    `speculative_token_capacity`: target rows of a round with drafts. `allocation`: none, host or device. `mixed`:
    prepare programs of `mixed_sizes` for prompts beside decoding requests. `snapshot_rows`: cached states, twice the
    request slots by default; 0 for no prefix cache, no preemption and whole reservations.
    Raises DeviceUnavailable, InvalidSettings or ModelError.
    """
    place = _place(device)
    _check_choices(dtype, threads, request_slots)
    catalog = CatalogLimits(
        batches=tuple(decode_batches),
        prefill_capacities=tuple(prefill_capacities),
        scored_capacities=_scored(scored_capacities, prefill_capacities),
        draft_tokens=draft_tokens,
        speculative_token_capacity=speculative_token_capacity,
        allocation=_allocation(allocation),
        mixed_prefill=mixed,
        mixed_declared=_MIXED_DECLARED,
        mixed_sizes=mixed_sizes,
        concurrency=request_slots,
        state_batches=state_buckets(decode_batches) if snapshot_rows != 0 else (),
    )
    shapes = build_catalog(catalog)
    torch.set_num_threads(threads)
    loaded = _load(pathlib.Path(model_path), _DTYPES[dtype], max_context, draft_tokens, draft_head, place)
    _check_allocation(catalog.allocation, loaded)
    limits = _limits(loaded, request_slots, _snapshot_rows(snapshot_rows, request_slots), draft_tokens)
    limits = dataclasses.replace(limits, kv_pages=_pages(shapes, limits, loaded, place, kv_pages))
    return _build(shapes, limits, loaded, threads, place)


@dataclasses.dataclass(frozen=True, slots=True)
class _Loaded:
    """A model, its draft head if any, and the tokens of prompt plus output that it is loaded for."""

    model: Model
    head: DraftHead | None
    context: int

    @property
    def layers(self) -> int:
        """Layers of KV: the model's, and the draft head's one."""
        return self.model.config.layers + (self.head is not None)


def _place(device: str) -> torch.device:
    if device == "cpu":
        return torch.device("cpu")
    if device == "cuda":
        return find_cuda()
    raise DeviceUnavailable(f"there is no device {device!r}; use --device cpu or --device cuda")


def _build(
    shapes: Sequence[GraphShape], limits: DeviceLimits, loaded: _Loaded, threads: int, place: torch.device
) -> Device:
    """Memory, state and one program for each shape."""
    context = create_context(limits, loaded.model, loaded.head, place, captured=place.type == "cuda")
    if place.type == "cuda":
        return CudaDevice(shapes, limits, context, CudaStream(place))
    programs = {shape: _program(shape, context) for shape in shapes}
    return CpuDevice(programs, limits, context.state, context.sampling, threads)


def create_context(
    limits: DeviceLimits, model: Model, head: DraftHead | None, place: torch.device, captured: bool
) -> ProgramContext:
    """KV pages, slots' state and sampling tables on `place`, for programs in captured form or not."""
    columns = pages_for(limits.context_tokens + limits.draft_tokens)
    hidden, rows, vocab = model.config.hidden_size, limits.snapshot_rows, model.config.vocab_size
    layers = model.config.layers + (head is not None)
    slots = limits.request_slots
    return ProgramContext(
        model=model,
        cache=KvCache(model.config, limits.kv_pages, model.dtype, layers, place),
        state=SlotState(
            slots,
            columns,
            hidden,
            model.dtype,
            snapshot_rows=rows,
            device=place,
        ),
        sampling=SamplingTable(slots, vocab),
        draft_head=head,
        allocate_rows=create_allocator(place),
        device_sampling=DeviceSamplingTable(slots, vocab, place) if captured or place.type != "cpu" else None,
        style=ExecutionStyle.CAPTURED if captured else ExecutionStyle.EAGER,
    )


def _program(shape: GraphShape, context: ProgramContext) -> Run:
    if shape.kind is GraphKind.INIT:
        return create_init_program(shape, context).run
    if shape.kind in STATE_KINDS:
        return create_copy_program(shape, context).run
    return create_program(shape, context).run


def _load(
    path: pathlib.Path,
    dtype: torch.dtype,
    max_context: int | None,
    draft_tokens: int,
    draft_head: str | os.PathLike[str] | None,
    place: torch.device,
) -> _Loaded:
    """Drafts reach up to draft_tokens positions beyond the context."""
    source = open_source(path)
    context = context_limit(source.config, max_context)
    one_row_copies = place.type == "cpu" and _affords_one_row_copies(source.config)
    model = load_model(source, dtype, context + draft_tokens, one_row_copies, place)
    wanted = None if draft_head is None else os.fspath(draft_head)
    head_path = choose_draft_head(wanted, path) if draft_tokens else None
    return _Loaded(model, None if head_path is None else load_draft_head(head_path, model), context)


def _check_choices(dtype: str, threads: int, request_slots: int) -> None:
    if dtype not in _DTYPES:
        raise InvalidSettings(f"dtype is {dtype!r}; it must be one of {', '.join(_DTYPES)}")
    for name, value in (("threads", threads), ("request_slots", request_slots)):
        if value < 1:
            raise InvalidSettings(f"{name} is {value}; it must be at least 1")


def _limits(loaded: _Loaded, request_slots: int, snapshot_rows: int, draft_tokens: int) -> DeviceLimits:
    """All but the number of KV pages, which depends on what else needs memory."""
    return DeviceLimits(
        context_tokens=loaded.context,
        kv_pages=0,
        page_tokens=PAGE_TOKENS,
        vocab_size=loaded.model.config.vocab_size,
        request_slots=request_slots,
        snapshot_rows=snapshot_rows,
        draft_tokens=draft_tokens,
        learned_drafts=loaded.head is not None,
    )


def _scored(wanted: Sequence[int] | None, prefill_capacities: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(set(prefill_capacities))[::2] if wanted is None else wanted)


def _snapshot_rows(wanted: int | None, request_slots: int) -> int:
    rows = _DEFAULT_SNAPSHOTS_PER_SLOT * request_slots if wanted is None else wanted
    if rows < 0:
        raise InvalidSettings(f"snapshot_rows is {rows}; it must be 0 (no prefix cache) or more")
    return rows


def _check_allocation(allocation: Allocation, loaded: _Loaded) -> None:
    if allocation is Allocation.DEVICE and loaded.head is None:
        raise InvalidSettings(
            "allocation 'device' follows a draft head's confidence, and no head is loaded; use 'host'"
        )


def _allocation(name: str) -> Allocation:
    if name not in _ALLOCATIONS:
        raise InvalidSettings(f"allocation is {name!r}; it must be one of {', '.join(_ALLOCATIONS)}")
    return _ALLOCATIONS[name]


def context_limit(config: ModelConfig, wanted: int | None) -> int:
    """Tokens of prompt plus output that a request may have. Raises InvalidSettings."""
    if wanted is None:
        return min(config.context_tokens, _DEFAULT_CONTEXT)
    if not 2 <= wanted <= config.context_tokens:
        raise InvalidSettings(f"max_context is {wanted}; this model allows 2 to {config.context_tokens} tokens")
    return wanted


def _kv_pages(loaded: _Loaded, wanted: int | None) -> int:
    size = page_bytes(loaded.model.config, loaded.model.dtype, loaded.layers)
    memory = _memory_bytes()
    if wanted is None:
        affordable = memory // _MEMORY_SHARE // size
        return max(1, min(_DEFAULT_FULL_CONTEXTS * pages_for(loaded.context), affordable))
    if wanted < 1 or wanted * size > memory:
        raise InvalidSettings(
            f"kv_pages is {wanted}; each takes {size / 2**20:.1f} MiB and this machine has room for "
            f"1 to {memory // size}"
        )
    return wanted


def _pages(
    shapes: Sequence[GraphShape], limits: DeviceLimits, loaded: _Loaded, place: torch.device, wanted: int | None
) -> int:
    """KV pages of the pool."""
    if place.type == "cpu":
        return _kv_pages(loaded, wanted)
    return _gpu_pages(shapes, limits, loaded, place, wanted)


def _gpu_pages(
    shapes: Sequence[GraphShape], limits: DeviceLimits, loaded: _Loaded, place: torch.device, wanted: int | None
) -> int:
    """As many as every slot's longest request and the cached states can use, if they fit."""
    config, dtype = loaded.model.config, loaded.model.dtype
    columns = pages_for(limits.context_tokens + limits.draft_tokens)
    tables = limits.request_slots * config.vocab_size * DeviceSamplingTable.ENTRY_BYTES
    reserved = programs_bytes(shapes, config, columns, dtype) + tables
    useful = limits.request_slots * columns + limits.snapshot_rows
    return plan_kv_pages(GpuMemory.of(place), page_bytes(config, dtype, loaded.layers), reserved, useful, wanted)


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
