"""Measured catalogs: durations by shape and context length, and the shapes that Helios prepares from them."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping

from scheduler.errors import InvalidShape
from scheduler.shapes import Allocation, GraphKind, GraphShape
from scheduler.simulation.errors import InvalidTable
from scheduler.simulation.tables import Row, read_rows

COLUMNS = ("kind", "B", "D", "W", "P", "prefill_capacity", "duration_ms")
KINDS = {kind.value: kind for kind in (GraphKind.PREFILL, GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED)}
LONGEST_MS = 3_600_000
"""One hour, the longest duration that the scheduler takes for a measurement."""
REFERENCE_CONTEXT_TOKENS = 1024
"""The context length at which a catalog without context lengths was measured; 0 for prefill."""


@dataclasses.dataclass(frozen=True, slots=True)
class Extent:
    """The measured extents of one graph.

    `batch`: decoders; in a mixed row the prompt row is not among them. `target_rows`: verification rows without the
    prompt's; 0 becomes batch * target_width, so only ragged graphs name it.
    """

    kind: GraphKind
    batch: int
    draft_depth: int = 0
    target_width: int = 1
    prefill_capacity: int = 0
    target_rows: int = 0

    def __post_init__(self) -> None:
        if self.kind is not GraphKind.PREFILL and self.target_rows == 0:
            object.__setattr__(self, "target_rows", self.batch * self.target_width)


class ContextCurve:
    """Duration in ms over context length: linear between measured points.

    Outside them the nearest segment goes on, since attention grows linearly with context, but never below half of the
    nearest point.
    """

    def __init__(self, points: Mapping[int, float]) -> None:
        self.contexts = sorted(points)
        self.durations_ms = [points[context] for context in self.contexts]

    def at(self, context_tokens: float) -> float:
        """Duration in ms at this mean context length."""
        contexts, durations = self.contexts, self.durations_ms
        if len(contexts) == 1:
            return durations[0]
        left = min(max(bisect.bisect_right(contexts, context_tokens) - 1, 0), len(contexts) - 2)
        share = (context_tokens - contexts[left]) / (contexts[left + 1] - contexts[left])
        value = durations[left] + share * (durations[left + 1] - durations[left])
        return max(value, 0.5 * durations[0 if share < 0 else -1]) if not 0 <= share <= 1 else value

    @property
    def reference_ms(self) -> float:
        """The duration at the reference context."""
        return self.at(REFERENCE_CONTEXT_TOKENS)


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredTable:
    """A catalog CSV as it is, in the file's order of extents."""

    curves: Mapping[Extent, ContextCurve]

    @property
    def by_context(self) -> bool:
        """Whether any graph was measured at more than one context length."""
        return any(len(curve.contexts) > 1 for curve in self.curves.values())


def parse_catalog(text: str, name: str) -> MeasuredTable:
    """The table of a catalog CSV, with (`ctx`) or without context lengths. Raises InvalidTable."""
    points: dict[Extent, dict[int, float]] = {}
    for row in read_rows(text, name, COLUMNS):
        context = row.count("ctx") if row.text("ctx") else REFERENCE_CONTEXT_TOKENS
        extent = _extent(row)
        at = points.setdefault(extent, {})
        if context in at:
            raise row.wrong("ctx", f"another one than before: {extent.kind.value} B={extent.batch} is listed twice")
        duration_ms = row.number("duration_ms", maximum=LONGEST_MS)
        if duration_ms == 0:
            raise row.wrong("duration_ms", "above 0")
        at[context] = duration_ms
    return MeasuredTable({extent: ContextCurve(curve) for extent, curve in points.items()})


def _extent(row: Row) -> Extent:
    kind = KINDS.get(row.text("kind"))
    if kind is None:
        raise row.wrong("kind", f"one of {', '.join(KINDS)}")
    has_prompt = kind in (GraphKind.PREFILL, GraphKind.MIXED)
    batch = row.count("B", 1)
    width = row.count("W", 0 if kind is GraphKind.PREFILL else 1)
    capacity = row.count("prefill_capacity", 1 if has_prompt else 0)
    target_rows = row.count("P") - capacity
    low, high = (0, 0) if kind is GraphKind.PREFILL else (batch, batch * width)
    if not low <= target_rows <= high:
        raise row.wrong("P", f"B*W + prefill_capacity, here {high + capacity}, or less down to {low + capacity}")
    depth = row.count("D")
    if kind is GraphKind.DECODE and (depth, width) != (0, 1):
        raise row.wrong("D" if depth else "W", "0, and W 1: a wider graph is speculative" if depth else "1")
    return Extent(kind, batch, depth, width, capacity, target_rows)


@dataclasses.dataclass(frozen=True, slots=True)
class LoadReport:
    """What became of a table's extents. Counts are extents.

    `single_mixed`: mixed rows with B = 1, which would hold a prompt row and no decoder. `tree_verification`: rows whose
    target width exceeds D + 1, which a chain of D drafts can never fill. `other_mode`: rows of the generation mode that
    is not loaded, or deeper than the drafts allowed. `beyond_slots`: batches larger than all request slots need.
    `mixed_counts_one_more`: loaded mixed shapes, whose duration was measured with one decoder more than they can serve.
    """

    loaded: int
    single_mixed: int
    tree_verification: int
    other_mode: int
    beyond_slots: int
    mixed_counts_one_more: int


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedGraphs:
    """The shapes that a scheduler is given, with their durations, in the table's order."""

    curves: Mapping[GraphShape, ContextCurve]
    report: LoadReport

    @property
    def shapes(self) -> tuple[GraphShape, ...]:
        """The catalog's shapes."""
        return tuple(self.curves)


def scheduler_shapes(
    table: MeasuredTable, request_slots: int = 64, draft_tokens: int = 0, allocation: Allocation = Allocation.HOST
) -> PreparedGraphs:
    """The shapes that Helios prepares from `table`.

    With `draft_tokens` 0 the ordinary mode is loaded: decode graphs and width-one mixed graphs. Otherwise the
    speculative mode: decode rows become its width-one programs (D = 0; what those spend on keeping draft state is not
    in the table), and speculative and mixed rows with at most so many drafts join. `allocation`: who divides the rows
    of programs with D > 0. Mixed rows count decoders without the prompt row; they get batch_capacity B (one decoder
    less than was measured) and the verification rows alone as target_rows. Raises InvalidTable when nothing can both
    prefill and generate.
    """
    skipped = {"single_mixed": 0, "tree_verification": 0, "other_mode": 0, "beyond_slots": 0}
    curves: dict[GraphShape, ContextCurve] = {}
    for extent, curve in table.curves.items():
        why = _left_out(extent, table, request_slots, draft_tokens)
        if why is not None:
            skipped[why] += 1
        else:
            curves[_shape(extent, draft_tokens > 0, allocation)] = curve
    kinds = {shape.kind for shape in curves}
    if not kinds & {GraphKind.PREFILL, GraphKind.MIXED}:
        raise InvalidTable("the catalog holds no prefill graph and no mixed graph, so no prompt can be read")
    if not kinds - {GraphKind.PREFILL}:
        raise InvalidTable("the catalog holds no decode, speculative or mixed graph, so nothing can be generated")
    mixed = sum(shape.kind is GraphKind.MIXED for shape in curves)
    return PreparedGraphs(curves, LoadReport(loaded=len(curves), mixed_counts_one_more=mixed, **skipped))


def _left_out(extent: Extent, table: MeasuredTable, request_slots: int, draft_tokens: int) -> str | None:
    """The LoadReport field that counts this extent, or None when it is loaded."""
    if extent.kind is GraphKind.PREFILL:
        return None
    if extent.target_width > extent.draft_depth + 1:
        return "tree_verification"
    if extent.draft_depth > draft_tokens or (extent.kind is GraphKind.SPECULATIVE and not draft_tokens):
        return "other_mode"
    own = draft_tokens and dataclasses.replace(extent, kind=GraphKind.SPECULATIVE) in table.curves
    if own and extent.kind is GraphKind.DECODE:
        return "other_mode"  # a decode row stands in for a width-one program only where the table has none
    if extent.kind is GraphKind.MIXED and extent.batch == 1:
        return "single_mixed"
    covering = 1 << (request_slots - 1).bit_length()
    return "beyond_slots" if extent.batch > covering else None


def _shape(extent: Extent, speculative: bool, allocation: Allocation) -> GraphShape:
    kind = extent.kind
    generates = kind is not GraphKind.PREFILL
    if kind is GraphKind.DECODE and speculative:
        kind = GraphKind.SPECULATIVE
    try:
        return GraphShape(
            kind,
            extent.batch,
            draft_depth=extent.draft_depth,
            target_width=extent.target_width if generates else 1,
            target_rows=extent.target_rows,
            prefill_capacity=extent.prefill_capacity,
            speculation_enabled=speculative and generates,
            allocation=allocation if extent.draft_depth else Allocation.NONE,
        )
    except InvalidShape as error:
        raise InvalidTable(f"the catalog has a graph that Helios cannot prepare: {error}") from None
