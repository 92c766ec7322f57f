"""What a load may use of its catalog: generation mode, verification, bounds; and joint catalogs (S1, S2, S12)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

from scheduler.errors import InvalidCatalog
from scheduler.shapes import MAX_TARGET_WIDTH, Allocation, GraphKind, GraphShape

DEFAULT_COMPLETION_TOKEN_CAPACITY = 8
MIXED_BATCH_MAX = 64
MIXED_PROMPT_STEP = 64
MIXED_BATCH_STEP = 4
MIXED_PROMPT_ROWS_MAX = 4

_SINGLE_PROMPT_KINDS = frozenset({GraphKind.PREFILL, GraphKind.SCORED_PREFILL})
_GENERATION_KINDS = frozenset({GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED})


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """What the load uses. `usable`: per shape in catalog order; kinds without verification always are.

    `fixed_width`: N of "fixed:N", 0 for adaptive verification.
    """

    mode: GraphKind
    fixed_width: int
    usable: tuple[bool, ...]


def verification_width(verification: str) -> int:
    """0 for "adaptive", N for "fixed:N". Raises InvalidCatalog for anything else."""
    if verification == "adaptive":
        return 0
    match = re.fullmatch(r"fixed:(\d{1,2})", verification, flags=re.ASCII) if isinstance(verification, str) else None
    if match is None or not 1 <= int(match[1]) <= MAX_TARGET_WIDTH:
        raise InvalidCatalog(
            f"verification {verification!r}: write adaptive, or fixed:N with N from 1 to {MAX_TARGET_WIDTH}"
        )
    return int(match[1])


def select(
    shapes: Sequence[GraphShape],
    verification: str = "adaptive",
    completion_token_capacity: int = DEFAULT_COMPLETION_TOKEN_CAPACITY,
) -> Selection:
    """Checks the shapes' bounds at load and says which of them this load uses (S2).

    Raises InvalidCatalog for a shape outside its bounds and when verification leaves no generation shape.
    """
    width = verification_width(verification)
    for shape in shapes:
        check_bounds(shape, completion_token_capacity)
    speculative = any(shape.kind is GraphKind.SPECULATIVE for shape in shapes)
    mode = GraphKind.SPECULATIVE if speculative else GraphKind.DECODE
    if width:
        _refuse_device_allocation(shapes, verification)
    usable = tuple(_usable(shape, mode, width) for shape in shapes)
    generation = [use for shape, use in zip(shapes, usable, strict=True) if shape.kind in _GENERATION_KINDS]
    if generation and not any(generation):
        raise InvalidCatalog(f"verification {verification} leaves none of the catalog's generation graphs")
    return Selection(mode, width, usable)


def _usable(shape: GraphShape, mode: GraphKind, width: int) -> bool:
    if shape.kind not in _GENERATION_KINDS:
        return True
    if shape.kind is GraphKind.MIXED:
        of_mode = shape.speculation_enabled == (mode is GraphKind.SPECULATIVE)
    else:
        of_mode = shape.kind is mode
    return of_mode and (not width or (shape.kind is not GraphKind.DECODE and shape.target_width == width))


def _refuse_device_allocation(shapes: Iterable[GraphShape], verification: str) -> None:
    for shape in shapes:
        if shape.allocation is Allocation.DEVICE and shape.draft_depth > 0:
            raise InvalidCatalog(f"{shape.label}: device allocation needs adaptive verification, not {verification}")


def check_bounds(shape: GraphShape, completion_token_capacity: int = DEFAULT_COMPLETION_TOKEN_CAPACITY) -> None:
    """Load-time bounds of one shape (S2, S12). Raises InvalidCatalog.

    The packed extent of a MIXED graph, prefill_capacity + (B-1)*W rows, is bounded through its parts.
    """
    if shape.kind in _SINGLE_PROMPT_KINDS and shape.batch_capacity != 1:
        raise InvalidCatalog(f"{shape.label}: a prefill graph serves one request, B = 1")
    if shape.ragged and shape.allocation is Allocation.NONE:
        raise InvalidCatalog(f"{shape.label}: P < B*min(D+1, W) needs an allocation, host or device")
    if shape.kind is GraphKind.MIXED:
        _check_mixed(shape, completion_token_capacity)


def _check_mixed(shape: GraphShape, completion_token_capacity: int) -> None:
    batch, width, prompt = shape.batch_capacity, shape.target_width, shape.prefill_capacity
    if not 2 <= batch <= MIXED_BATCH_MAX or (batch % MIXED_BATCH_STEP and batch & (batch - 1)):
        raise InvalidCatalog(
            f"{shape.label}: B of a mixed graph is a power of two or a multiple of {MIXED_BATCH_STEP}, from 2 to "
            f"{MIXED_BATCH_MAX}"
        )
    if shape.prompt_rows > MIXED_PROMPT_ROWS_MAX:
        raise InvalidCatalog(f"{shape.label}: a mixed graph carries at most {MIXED_PROMPT_ROWS_MAX} prompts")
    if width > completion_token_capacity:
        raise InvalidCatalog(f"{shape.label}: W of a mixed graph is at most {completion_token_capacity}")
    if prompt % MIXED_PROMPT_STEP or prompt < width:
        raise InvalidCatalog(f"{shape.label}: C of a mixed graph is a multiple of {MIXED_PROMPT_STEP}, at least W")
    if shape.target_rows != batch * width:
        raise InvalidCatalog(f"{shape.label}: a mixed graph is rectangular, P = B*W")


def _powers_of_two(first: int, last: int) -> tuple[int, ...]:
    return tuple(1 << n for n in range(last.bit_length()) if first <= 1 << n <= last)


def mixed_batch_buckets(buckets: Iterable[int], step: int, concurrency: int) -> tuple[int, ...]:
    """The powers of two of `buckets` within S12's bounds, and every multiple of `step` through `concurrency` requests.

    `step` 0: none beside them. The last multiple is the first that holds all of them, within the bounds of S12.
    Raises InvalidCatalog for a step that is no multiple of 4.
    """
    if step < 0 or step % MIXED_BATCH_STEP:
        raise InvalidCatalog(f"mixed batches go in steps of {step}; it must be a multiple of {MIXED_BATCH_STEP}")
    own = {batch for batch in buckets if 2 <= batch <= MIXED_BATCH_MAX and batch.bit_count() == 1}
    steps = range(step, min(MIXED_BATCH_MAX, concurrency + step - 1) + 1, step) if step else ()
    return tuple(sorted(own.union(steps)))


def mixed_prompt_buckets(buckets: Iterable[int], step: int) -> tuple[int, ...]:
    """Those of `buckets` that a MIXED graph can have, and every multiple of `step` up to the largest of `buckets`.

    `step` 0: none beside them. Raises InvalidCatalog for a step that is no multiple of 64.
    """
    if step < 0 or step % MIXED_PROMPT_STEP:
        raise InvalidCatalog(
            f"mixed prompts go in steps of {step} tokens; it must be a multiple of {MIXED_PROMPT_STEP}"
        )
    given = tuple(buckets)
    own = {tokens for tokens in given if tokens % MIXED_PROMPT_STEP == 0}
    return tuple(sorted(own.union(range(step, max(given, default=0) + 1, step) if step else ())))


def mixed_shapes(
    batch_buckets: Sequence[int],
    prompt_buckets: Sequence[int],
    draft_tokens: int,
    target_token_envelope: int,
    speculation: bool,
    prompt_rows: int = 1,
) -> tuple[GraphShape, ...]:
    """The joint catalog of MIXED graphs (S12): by batch bucket, then prompt bucket, then width.

    Each bucket of two rows and more has every prompt bucket at W = 1. With speculation each wider W up to
    draft_tokens + 1 with B*W within the envelope has one prompt bucket p, which minimises max(p/p_min, p_max/p),
    ties to the smaller. Each carries up to `prompt_rows` prompts, as many as it has rows at the most. Raises
    InvalidCatalog without a prompt bucket and for shapes out of bounds.
    """
    if not prompt_buckets:
        raise InvalidCatalog("mixed graphs need at least one prompt bucket")
    prompts = sorted(set(prompt_buckets))
    middle = min(prompts, key=lambda p: (max(p / prompts[0], prompts[-1] / p), p))
    shapes = []
    for batch in sorted(b for b in set(batch_buckets) if b >= 2):
        rows = min(prompt_rows, batch)
        shapes += [_mixed(batch, 1, prompt, speculation, rows) for prompt in prompts]
        widths = [w for w in range(2, draft_tokens + 2) if speculation and batch * w <= target_token_envelope]
        shapes += [_mixed(batch, width, middle, True, rows) for width in widths]
    for shape in shapes:
        check_bounds(shape, max(DEFAULT_COMPLETION_TOKEN_CAPACITY, draft_tokens + 1))
    return tuple(shapes)


def _mixed(batch: int, width: int, prompt: int, speculation: bool, prompt_rows: int) -> GraphShape:
    return GraphShape(
        GraphKind.MIXED,
        batch,
        draft_depth=width - 1,
        target_width=width,
        prefill_capacity=prompt,
        speculation_enabled=speculation,
        prompt_rows=prompt_rows,
    )


def speculative_shapes(
    batch_buckets: Sequence[int],
    draft_tokens: int,
    target_token_envelope: int,
    allocation: Allocation = Allocation.NONE,
) -> tuple[GraphShape, ...]:
    """The rounds that a recipe captures within an envelope of R target rows (S2).

    Allocation NONE: per bucket a rectangular round for every width W up to draft_tokens + 1, D = W - 1; W = 1 always,
    wider ones with B*W <= R. Otherwise: per bucket the round of width one, and with D = draft_tokens one for every
    power of two P above B up to min(B*(D+1), R), B*(D+1) itself when it is within R. Rows that a full width would
    need are never exceeded.
    """
    shapes: list[GraphShape] = []
    for batch in sorted(set(batch_buckets)):
        shapes.append(_round(batch, 0, 1, batch, Allocation.NONE))
        if allocation is Allocation.NONE:
            widths = [w for w in range(2, draft_tokens + 2) if batch * w <= target_token_envelope]
            shapes += [_round(batch, w - 1, w, batch * w, Allocation.NONE) for w in widths]
        elif draft_tokens:
            full = batch * (draft_tokens + 1)
            rows = {full, *_powers_of_two(batch + 1, full)}
            fitting = sorted(p for p in rows if batch < p <= target_token_envelope)
            shapes += [_round(batch, draft_tokens, draft_tokens + 1, p, allocation) for p in fitting]
    return tuple(shapes)


def _round(batch: int, depth: int, width: int, rows: int, allocation: Allocation) -> GraphShape:
    return GraphShape(
        GraphKind.SPECULATIVE,
        batch,
        draft_depth=depth,
        target_width=width,
        target_rows=rows,
        speculation_enabled=True,
        allocation=allocation,
    )
