"""Load-time rules: the generation mode, fixed verification, and the bounds of shapes (S1, S2, S12)."""

from __future__ import annotations

import re

from scheduler.errors import InvalidCatalog
from scheduler.shapes import MAX_TARGET_WIDTH, Allocation, GraphKind, GraphShape

LARGEST_MIXED_BATCH = 64
MIXED_BATCH_STEP = 4
MOST_PROMPT_ROWS = 4
PROMPT_BUCKET = 64


def fixed_width(verification: str) -> int:
    """0 for "adaptive", N for "fixed:N"; raises InvalidCatalog for anything else."""
    if verification == "adaptive":
        return 0
    match = re.fullmatch(r"fixed:([1-9][0-9]?)", verification)
    if match is None or int(match[1]) > MAX_TARGET_WIDTH:
        raise InvalidCatalog(f"verification {verification!r}; allowed are adaptive and fixed:N with N from 1 to 64")
    return int(match[1])


def lane_width(shape: GraphShape) -> int:
    """Rows that one lane can use: min(D + 1, W)."""
    return min(shape.draft_depth + 1, shape.target_width)


def generates(shape: GraphShape) -> bool:
    """Whether the shape can produce output tokens of decoding lanes."""
    return shape.kind in (GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED)


def usable_shapes(shapes: tuple[GraphShape, ...], width: int, token_capacity: int) -> list[bool]:
    """Which shapes this load may use. Raises InvalidCatalog for a shape or a width that cannot be loaded."""
    for shape in shapes:
        check_shape(shape, width, token_capacity)
    speculative = any(shape.kind is GraphKind.SPECULATIVE for shape in shapes)
    usable = [not generates(shape) or in_mode(shape, speculative, width) for shape in shapes]
    generation = [use for shape, use in zip(shapes, usable, strict=True) if generates(shape)]
    if generation and not any(generation):
        raise InvalidCatalog("the verification width leaves no usable generation graph")
    return usable


def in_mode(shape: GraphShape, speculative: bool, width: int) -> bool:
    """Whether a generation shape belongs to the load's mode and fixed width."""
    if width and (shape.kind is GraphKind.DECODE or shape.target_width != width):
        return False
    if shape.kind is GraphKind.MIXED:
        return shape.speculation_enabled == speculative
    return (shape.kind is GraphKind.SPECULATIVE) == speculative


def check_shape(shape: GraphShape, width: int, token_capacity: int) -> None:
    """Raises InvalidCatalog for a shape outside the bounds of a load."""
    if shape.kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL) and shape.batch_capacity != 1:
        raise InvalidCatalog(f"{shape.label}: a prefill graph holds one request")
    if shape.kind is GraphKind.MIXED:
        check_mixed(shape, token_capacity)
    ragged = generates(shape) and shape.target_rows < shape.batch_capacity * lane_width(shape)
    if ragged and shape.allocation is Allocation.NONE:
        raise InvalidCatalog(f"{shape.label}: nobody divides its rows")
    if width and shape.allocation is Allocation.DEVICE and shape.draft_depth > 0:
        raise InvalidCatalog(f"{shape.label}: fixed verification needs rows that the host divides")


def check_mixed(shape: GraphShape, token_capacity: int) -> None:
    """S12's bounds."""
    batch, rows = shape.batch_capacity, shape.target_rows
    power_of_two = batch & (batch - 1) == 0
    if not 2 <= batch <= LARGEST_MIXED_BATCH or not (power_of_two or batch % MIXED_BATCH_STEP == 0):
        raise InvalidCatalog(f"{shape.label}: the batch of a mixed graph is 2 or a multiple of 4 up to 64")
    if shape.prompt_rows > min(batch, MOST_PROMPT_ROWS):
        raise InvalidCatalog(f"{shape.label}: a mixed graph carries at most 4 prompts, and no more than its batch")
    if shape.target_width > token_capacity or rows != batch * shape.target_width:
        raise InvalidCatalog(f"{shape.label}: a mixed graph is rectangular and at most {token_capacity} rows wide")
    if shape.prefill_capacity % PROMPT_BUCKET or shape.prefill_capacity < shape.target_width:
        raise InvalidCatalog(f"{shape.label}: prompt capacities are multiples of 64 that hold a decoder's rows")
