"""What one step of a baseline costs on a measured catalog: padded to its graphs, or interpolated to the exact sizes.

d: decoders of the step, each with W rows and D = W - 1 drafts. p: prompt tokens of the step, of one prompt or several.

Padded, a step takes the smallest graphs that hold it:
    p = 0       the decode graph (speculative for W > 1) of the smallest batch >= d
    d = 0       the prefill graph of the smallest capacity >= p
    both        the mixed graph of the smallest batch >= d and the smallest capacity >= p, all prompts packed into its
                capacity; without mixed graphs of this W: the graph for p = 0, then the graph for d = 0
    beyond the largest batch or capacity: whole largest graphs, then the rest.
A mixed row of a catalog counts its decoders without the prompt, and a baseline may fill them all: it serves one decoder
more with the same graph than Helios does, where the prompt is one of the B rows.

Interpolated, the same times are linear between neighbouring sizes (p = 0 is the decode graph). Below the smallest
prompt capacity a prompt-only step takes that capacity's time; beyond the largest sizes the last segment goes on.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import Any

from scheduler.shapes import GraphKind, GraphShape
from scheduler.simulation.errors import InvalidTable
from scheduler.simulation.measured import ContextCurve, Extent, MeasuredTable


class StepGraphs:
    """The graphs of a table that a baseline with decoders of `target_width` rows uses.

    Raises InvalidTable when the table has no prefill graphs, or no generation graphs of this width.
    """

    def __init__(self, table: MeasuredTable, target_width: int = 1) -> None:
        depth = target_width - 1
        kind = GraphKind.SPECULATIVE if depth else GraphKind.DECODE
        self.target_width = target_width
        self._curves = table.curves
        self._kind = kind
        self.batches = self._sizes(kind, depth, "batch")
        self.capacities = self._sizes(GraphKind.PREFILL, None, "prefill_capacity")
        self.mixed_batches = self._sizes(GraphKind.MIXED, depth, "batch")
        self.mixed_capacities = self._sizes(GraphKind.MIXED, depth, "prefill_capacity")
        if not self.batches or not self.capacities:
            missing = "prefill" if self.batches else f"{kind.value} W={target_width}"
            raise InvalidTable(f"the catalog holds no {missing} graphs, which this baseline needs")
        for batch, capacity in itertools.product(self.mixed_batches, self.mixed_capacities):
            if self._mixed_extent(batch, capacity) not in self._curves:
                raise InvalidTable(f"the catalog holds no mixed graph of B={batch} W={target_width} C={capacity}")
        self._held: dict[tuple[int, int], tuple[ContextCurve, ...]] = {}
        self._shapes: dict[tuple[int, int], GraphShape] = {}

    def generation(self, batch: int) -> ContextCurve:
        """The decode or speculative graph of exactly this batch."""
        depth = self.target_width - 1
        return self._curves[Extent(self._kind, batch, depth, self.target_width, 0)]

    def prefill(self, capacity: int) -> ContextCurve:
        """The prefill graph of exactly this capacity."""
        return self._curves[self._prefill_extents[capacity]]

    def mixed(self, batch: int, capacity: int) -> ContextCurve:
        """The mixed graph of exactly these sizes."""
        return self._curves[self._mixed_extent(batch, capacity)]

    def holding(self, decoders: int, prompt_tokens: int) -> tuple[ContextCurve, ...]:
        """The smallest graphs that hold the step, in the order in which they run; empty for an empty step."""
        held = self._held.get((decoders, prompt_tokens))
        if held is None:
            held = self._held[decoders, prompt_tokens] = tuple(self._smallest(decoders, prompt_tokens))
        return held

    def counted_shape(self, decoders: int, prompt_tokens: int) -> GraphShape:
        """What a step is counted as: its kind at padded sizes, also where more than one graph runs."""
        batch = _padded(self.batches, decoders) if decoders else 1
        capacity = _padded(self.capacities, prompt_tokens) if prompt_tokens else 0
        shape = self._shapes.get((batch if decoders else 0, capacity))
        if shape is None:
            depth, width = self.target_width - 1, self.target_width
            if not decoders:
                shape = GraphShape(GraphKind.PREFILL, 1, prefill_capacity=capacity)
            else:
                kind = GraphKind.MIXED if capacity else self._kind
                shape = GraphShape(kind, batch, depth, width, prefill_capacity=capacity, speculation_enabled=depth > 0)
            self._shapes[batch if decoders else 0, capacity] = shape
        return shape

    def _smallest(self, decoders: int, prompt_tokens: int) -> list[ContextCurve]:
        """holding(), computed: one mixed graph as far as it reaches, whatever is left in graphs of its own."""
        graphs = []
        if decoders and prompt_tokens and self.mixed_batches:
            batch, capacity = _padded(self.mixed_batches, decoders), _padded(self.mixed_capacities, prompt_tokens)
            graphs.append(self.mixed(batch, capacity))
            decoders, prompt_tokens = max(0, decoders - batch), max(0, prompt_tokens - capacity)
        graphs += [self.generation(batch) for batch in _pieces(self.batches, decoders)]
        graphs += [self.prefill(capacity) for capacity in _pieces(self.capacities, prompt_tokens)]
        return graphs

    def _mixed_extent(self, batch: int, capacity: int) -> Extent:
        return Extent(GraphKind.MIXED, batch, self.target_width - 1, self.target_width, capacity)

    def _sizes(self, kind: GraphKind, depth: int | None, field: str) -> list[int]:
        """The sizes of the graphs of one kind; depth None: of any width (prefill)."""
        found = [e for e in self._curves if e.kind is kind and (depth is None or self._is_chain(e, depth))]
        if kind is GraphKind.PREFILL:
            self._prefill_extents = {e.prefill_capacity: e for e in found}
        return sorted({getattr(e, field) for e in found})

    @staticmethod
    def _is_chain(extent: Extent, depth: int) -> bool:
        return extent.draft_depth == depth and extent.target_width == depth + 1


class PaddedSteps:
    """A StepCost: the step's graphs, each at its measured time."""

    def __init__(self, graphs: StepGraphs, by_context: bool = False) -> None:
        self.needs_context = by_context
        self._graphs = graphs

    def step_ms(self, plan: Any, context_tokens: float) -> float:
        """ms; `plan` is a BaselineStep."""
        held = self._graphs.holding(plan.decoders, plan.prompt_tokens)
        if self.needs_context:
            return sum(curve.at(context_tokens) for curve in held)
        return sum(curve.reference_ms for curve in held)


class InterpolatedSteps:
    """A StepCost: the time of a graph of exactly the step's size, between those that were measured."""

    def __init__(self, graphs: StepGraphs, by_context: bool = False) -> None:
        self.needs_context = by_context
        self._graphs = graphs
        self._known: dict[tuple[int, int], float] = {}

    def step_ms(self, plan: Any, context_tokens: float) -> float:
        """ms; `plan` is a BaselineStep."""
        if self.needs_context:
            return self._interpolated(plan.decoders, plan.prompt_tokens, context_tokens)
        key = (plan.decoders, plan.prompt_tokens)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._interpolated(*key, None)
        return found

    def _interpolated(self, decoders: int, prompt_tokens: int, context: float | None) -> float:
        if not prompt_tokens:
            return self._generation_ms(decoders, context)
        if not decoders or not self._graphs.mixed_batches:
            generation = self._generation_ms(decoders, context) if decoders else 0.0
            return generation + self._prefill_ms(prompt_tokens, context)
        return self._mixed_ms(decoders, prompt_tokens, context)

    def _generation_ms(self, decoders: int, context: float | None) -> float:
        low, high, share = _between(self._graphs.batches, decoders)
        return _blend(_at(self._graphs.generation(low), context), _at(self._graphs.generation(high), context), share)

    def _prefill_ms(self, prompt_tokens: int, context: float | None) -> float:
        capacities = self._graphs.capacities
        low, high, share = _between(capacities, max(prompt_tokens, capacities[0]))
        return _blend(_at(self._graphs.prefill(low), context), _at(self._graphs.prefill(high), context), share)

    def _mixed_ms(self, decoders: int, prompt_tokens: int, context: float | None) -> float:
        """Linear in both sizes. Decoders beyond the largest mixed batch cost what they add to a decode step."""
        largest = self._graphs.mixed_batches[-1]
        extra = 0.0
        if decoders > largest:
            extra = self._generation_ms(decoders, context) - self._generation_ms(largest, context)
            decoders = largest
        low, high, share = _between(self._graphs.mixed_batches, decoders)
        at_low = self._mixed_column_ms(low, prompt_tokens, context)
        return extra + _blend(at_low, self._mixed_column_ms(high, prompt_tokens, context) if share else at_low, share)

    def _mixed_column_ms(self, batch: int, prompt_tokens: int, context: float | None) -> float:
        """At one measured batch, over the prompt tokens from 0 (the decode graph)."""
        low, high, share = _between([0, *self._graphs.mixed_capacities], prompt_tokens)
        at_high = _at(self._graphs.mixed(batch, high), context)
        at_low = _at(self._graphs.mixed(batch, low), context) if low else self._generation_ms(batch, context)
        return _blend(at_low, at_high, share)


def _at(curve: ContextCurve, context: float | None) -> float:
    return curve.reference_ms if context is None else curve.at(context)


def _blend(low: float, high: float, share: float) -> float:
    return low + share * (high - low)


def _padded(sizes: Sequence[int], wanted: int) -> int:
    """The smallest size that holds `wanted`, else the largest."""
    return sizes[min(bisect.bisect_left(sizes, wanted), len(sizes) - 1)]


def _pieces(sizes: Sequence[int], wanted: int) -> list[int]:
    """`wanted` cut into whole largest sizes and the smallest size that holds the rest."""
    whole, rest = divmod(wanted, sizes[-1])
    return [sizes[-1]] * whole + ([_padded(sizes, rest)] if rest else [])


def _between(sizes: Sequence[int], wanted: int) -> tuple[int, int, float]:
    """(low, high, share): the neighbouring sizes and how far `wanted` lies from low to high.

    Outside the measured sizes the nearest segment goes on (share below 0 or above 1).
    """
    if len(sizes) == 1:
        return sizes[0], sizes[0], 0.0
    left = min(max(bisect.bisect_right(sizes, wanted) - 1, 0), len(sizes) - 2)
    low, high = sizes[left], sizes[left + 1]
    return low, high, (wanted - low) / (high - low)
