"""The catalog: which programs a device prepares, from its limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable

from gpu.allocation.buffers import MAX_LANES
from gpu.device import InvalidSettings
from scheduler.capacity import (
    MIXED_BATCH_MAX,
    MIXED_PROMPT_ROWS_MAX,
    MIXED_PROMPT_STEP,
    mixed_batch_buckets,
    mixed_prompt_buckets,
    mixed_shapes,
    speculative_shapes,
)
from scheduler.errors import InvalidCatalog, InvalidShape
from scheduler.shapes import MAX_TARGET_WIDTH, Allocation, GraphKind, GraphShape

MAX_DRAFT_TOKENS = MAX_TARGET_WIDTH - 1
MIN_SPECULATIVE_ROWS = 2
_STATE_KINDS = (GraphKind.INIT, GraphKind.RESTORE, GraphKind.SNAPSHOT, GraphKind.TERMINAL_SNAPSHOT)


@dataclasses.dataclass(frozen=True, slots=True)
class MixedSizes:
    """Which mixed programs there are. `prompt_rows`: prompts that one of them carries at the most.

    `batch_step`: beside the decode batches, multiples of so many requests through those that may be resident.
    `prompt_step`: beside the prefill capacities, multiples of so many tokens up to the largest of them. 0: none.

    Raises InvalidSettings, which says what is allowed.
    """

    prompt_rows: int = 1
    batch_step: int = 0
    prompt_step: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.prompt_rows <= MIXED_PROMPT_ROWS_MAX:
            raise InvalidSettings(
                f"mixed prompt rows are {self.prompt_rows}; a mixed program carries 1 to {MIXED_PROMPT_ROWS_MAX}"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class CatalogLimits:
    """What bounds a catalog.

    `batches`: requests per decode program, see batch_buckets(). `prefill_capacities`, `scored_capacities`: prompt
    tokens per program, without and with log-probabilities. `draft_tokens` D: the deepest draft, 0 without speculation.
    `speculative_token_capacity` R: target rows of a round of more than one row per lane. `allocation`: who divides
    the rows of ragged rounds; NONE: all rounds are rectangular. `mixed_prefill`: the flag; `mixed_declared`: the model
    can run a prompt beside decoding requests; mixed programs need both. `concurrency`: requests that may be resident,
    for `mixed_sizes`. `state_batches`: requests per init, restore, snapshot and terminal snapshot; empty: no such
    programs.

    Raises InvalidSettings, which says what is allowed.
    """

    batches: tuple[int, ...]
    prefill_capacities: tuple[int, ...]
    scored_capacities: tuple[int, ...] = ()
    draft_tokens: int = 0
    speculative_token_capacity: int = 0
    allocation: Allocation = Allocation.NONE
    mixed_prefill: bool = False
    mixed_declared: bool = False
    mixed_sizes: MixedSizes = MixedSizes()
    concurrency: int = 0
    state_batches: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.prefill_capacities or not self.batches:
            raise InvalidSettings("prefill_capacities and decode_batches need at least one entry each")
        for name in ("batches", "prefill_capacities", "scored_capacities", "state_batches"):
            if any(size < 1 for size in getattr(self, name)):
                setting = "decode_batches" if name == "batches" else name
                raise InvalidSettings(f"{setting} are {getattr(self, name)}; all must be at least 1")
        if not 0 <= self.draft_tokens <= MAX_DRAFT_TOKENS:
            raise InvalidSettings(f"draft_tokens is {self.draft_tokens}; it must be from 0 to {MAX_DRAFT_TOKENS}")
        if self.draft_tokens and self.speculative_token_capacity < MIN_SPECULATIVE_ROWS:
            raise InvalidSettings(
                f"speculative_token_capacity is {self.speculative_token_capacity}; with draft_tokens it must be at "
                f"least {MIN_SPECULATIVE_ROWS}, one row for the pending token and one for a draft"
            )
        if self.allocation is not Allocation.NONE and not self.draft_tokens:
            raise InvalidSettings(f"allocation {self.allocation.value!r} divides rows of drafts; set draft_tokens")
        if self.allocation is Allocation.DEVICE and max(self.batches) > MAX_LANES:
            raise InvalidSettings(f"with allocation 'device' decode_batches are at most {MAX_LANES} requests")


def batch_buckets(concurrency: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to the power of two that holds `concurrency` requests, the padded concurrency."""
    return tuple(1 << n for n in range((concurrency - 1).bit_length() + 1))


def state_buckets(batches: Iterable[int]) -> tuple[int, ...]:
    """1, 4, 16, ... up to the largest of `batches`: state programs are quick, and few keep planning quick."""
    return tuple(1 << n for n in range(0, max(batches, default=0).bit_length(), 2))


def build_catalog(limits: CatalogLimits) -> tuple[GraphShape, ...]:
    """Every shape to prepare, in catalog order: state, prefill, scored prefill, decode or speculative, mixed.

    With draft_tokens all decoding is in rounds, those of width one included; without, it is plain decode.
    Raises InvalidSettings for sizes that no program can have, and for mixed_prefill without a fitting size.
    """
    try:
        return (
            *_state_shapes(limits.state_batches),
            *_prefill_shapes(GraphKind.PREFILL, limits.prefill_capacities),
            *_prefill_shapes(GraphKind.SCORED_PREFILL, limits.scored_capacities),
            *_generation_shapes(limits),
            *_mixed_shapes(limits),
        )
    except (InvalidShape, InvalidCatalog) as error:
        raise InvalidSettings(str(error)) from error


def catalog_summary(shapes: Collection[GraphShape]) -> str:
    """What is prepared, in one line: how many programs, and the most token rows that one of them computes.

    The rows of a mixed program are its packed extent, C + (B-1)*W (S12).
    """
    mixed = [shape for shape in shapes if shape.kind is GraphKind.MIXED]
    rows = max(map(packed_rows, shapes), default=0)
    most = f", up to {rows} token rows"
    if not mixed:
        return f"{len(shapes)} programs{most}"
    prompts = max(shape.prompt_rows for shape in mixed)
    return f"{len(shapes)} programs{most}; {len(mixed)} mixed, with {prompts} prompt{'s' * (prompts > 1)} at the most"


def packed_rows(shape: GraphShape) -> int:
    """Token rows that a program computes, padding included; 0 for state programs."""
    if shape.kind is GraphKind.MIXED:
        return shape.prefill_capacity + (shape.batch_capacity - 1) * shape.target_width
    return shape.physical_rows


def draft_capacity(shapes: Iterable[GraphShape]) -> int:
    """The catalog's largest draft depth, at least 1: the last extent of confidence and survival."""
    return max(1, *(shape.draft_depth for shape in shapes))


def _state_shapes(batches: Iterable[int]) -> list[GraphShape]:
    return [GraphShape(kind, batch) for kind in _STATE_KINDS for batch in sorted(set(batches))]


def _prefill_shapes(kind: GraphKind, capacities: Iterable[int]) -> list[GraphShape]:
    return [GraphShape(kind, 1, prefill_capacity=size) for size in sorted(set(capacities))]


def _generation_shapes(limits: CatalogLimits) -> Iterable[GraphShape]:
    if not limits.draft_tokens:
        return [GraphShape(GraphKind.DECODE, batch) for batch in sorted(set(limits.batches))]
    return speculative_shapes(limits.batches, limits.draft_tokens, limits.speculative_token_capacity, limits.allocation)


def _mixed_shapes(limits: CatalogLimits) -> tuple[GraphShape, ...]:
    if not (limits.mixed_prefill and limits.mixed_declared):
        return ()
    speculation, sizes = limits.draft_tokens > 0, limits.mixed_sizes
    batches = mixed_batch_buckets(limits.batches, sizes.batch_step, limits.concurrency)
    capacities = mixed_prompt_buckets(limits.prefill_capacities, sizes.prompt_step)
    prompts = [tokens for tokens in capacities if tokens > limits.draft_tokens]
    if not batches or not prompts:
        raise InvalidSettings(
            f"mixed prefill needs a decode batch that is a power of two from 2 to {MIXED_BATCH_MAX} and a prefill "
            f"capacity that is a multiple of {MIXED_PROMPT_STEP}, above draft_tokens"
        )
    envelope = limits.speculative_token_capacity
    return mixed_shapes(batches, prompts, limits.draft_tokens, envelope, speculation, sizes.prompt_rows)
