"""What follows from a shape's extents alone (specification S1)."""

from __future__ import annotations

from scheduler.shapes import Allocation, GraphKind, GraphShape

PREFILL_KINDS = frozenset({GraphKind.PREFILL, GraphKind.SCORED_PREFILL})
GENERATION_KINDS = frozenset({GraphKind.DECODE, GraphKind.SPECULATIVE})
PREREQUISITE_KINDS = frozenset({GraphKind.INIT, GraphKind.RESTORE, GraphKind.VISION, GraphKind.SNAPSHOT})
STATE_KINDS = PREREQUISITE_KINDS | {GraphKind.TERMINAL_SNAPSHOT}


def lane_width(shape: GraphShape) -> int:
    """The rows that one lane can use: min(D + 1, W)."""
    return min(shape.draft_depth + 1, shape.target_width)


def is_ragged(shape: GraphShape) -> bool:
    """P does not hold full lanes: somebody divides it."""
    return shape.kind is GraphKind.SPECULATIVE and shape.target_rows < shape.batch_capacity * lane_width(shape)


def uses_forecast(shape: GraphShape) -> bool:
    """Lanes are valued by the confidence forecast (device allocation), not by verified acceptance."""
    return shape.allocation is Allocation.DEVICE


def physical_rows(shape: GraphShape) -> int:
    """P + C; request rows for state kinds and VISION."""
    return shape.batch_capacity if shape.kind in STATE_KINDS else shape.physical_rows


def capacities(shape: GraphShape) -> tuple[int, ...]:
    """B, W, P, C and R, which padding pruning compares."""
    return (
        shape.batch_capacity,
        shape.target_width,
        shape.target_rows,
        shape.prefill_capacity,
        shape.prompt_rows,
    )
