"""Graphs between the measured ones: a finer grid of batches and prompt capacities, its times interpolated.

A catalog is measured at a few sizes. What a server gains that captures more of them is seen by preparing shapes of
the sizes between, each at the time that lies between its measured neighbours (baselines.steps, which says how).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from scheduler.shapes import Allocation, GraphKind, GraphShape
from scheduler.simulation.baselines.steps import InterpolatedSteps, StepGraphs
from scheduler.simulation.errors import SimulationError
from scheduler.simulation.measured import ContextCurve, MeasuredTable, PreparedGraphs, scheduler_shapes

LARGEST_MIXED_BATCH = 64
MOST_PROMPT_ROWS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class GraphGrid:
    """Which sizes are prepared beside the measured ones.

    `prompt_rows`: prompts that may share a mixed graph. `batch_step`: batches in its multiples beside the measured
    ones; 0: the measured ones. `prompt_step`: prompt capacities in its multiples up to the largest measured one, in
    place of the measured ones; 0: the measured ones. `prompt_fine_until`: capacities above it keep only the measured
    ones and the multiples of 4 steps; 0: all are fine. Raises SimulationError.
    """

    prompt_rows: int = 1
    batch_step: int = 0
    prompt_step: int = 0
    prompt_fine_until: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.prompt_rows <= MOST_PROMPT_ROWS:
            raise SimulationError(f"prompt rows: {self.prompt_rows}; a mixed graph has from 1 to {MOST_PROMPT_ROWS}")
        if self.batch_step < 0 or self.batch_step % 8:
            raise SimulationError(f"the batch step is {self.batch_step}; it must be a multiple of 8, or 0 for none")
        if self.prompt_step < 0 or self.prompt_step % 64:
            raise SimulationError(f"the prompt step is {self.prompt_step}; it must be a multiple of 64, or 0 for none")

    @property
    def is_measured(self) -> bool:
        """Whether it adds nothing to what was measured."""
        return self == GraphGrid()

    def batches(self, measured: list[int], most: int) -> list[int]:
        """The batches up to the first that holds `most`, ascending."""
        steps = range(self.batch_step, most + self.batch_step, self.batch_step) if self.batch_step else ()
        found = sorted({*measured, *steps})
        return found[: next((i + 1 for i, batch in enumerate(found) if batch >= most), len(found))]

    def capacities(self, measured: list[int]) -> list[int]:
        """The prompt capacities, ascending."""
        if not self.prompt_step:
            return measured
        fine = range(self.prompt_step, measured[-1] + 1, self.prompt_step)
        kept = [c for c in fine if not self.prompt_fine_until or c <= self.prompt_fine_until or not c % self._coarse]
        return sorted({*kept, *(c for c in measured if c > self.prompt_fine_until > 0)})

    @property
    def _coarse(self) -> int:
        return 4 * self.prompt_step


def shapes_on_grid(
    table: MeasuredTable,
    grid: GraphGrid,
    request_slots: int = 64,
    draft_tokens: int = 0,
    allocation: Allocation = Allocation.HOST,
) -> PreparedGraphs:
    """scheduler_shapes with the width-one and prefill graphs of `grid` in place of the measured ones.

    Wider speculative and mixed graphs stay as they were measured, with the grid's prompt rows. A mixed graph of B rows
    takes the time of B - 1 decoders and a full prompt capacity: unlike a measured row's, none of its rows is left out.
    Raises InvalidTable.
    """
    measured = scheduler_shapes(table, request_slots, draft_tokens, allocation)
    if grid.is_measured:
        return measured
    speculative = draft_tokens > 0
    graphs = StepGraphs(table)
    curves = {
        _with_rows(shape, grid): curve for shape, curve in measured.curves.items() if _is_kept(shape, speculative)
    }
    steps = InterpolatedSteps(graphs, by_context=True)
    contexts = sorted({context for curve in table.curves.values() for context in curve.contexts})
    for shape, decoders in _fine(grid, graphs, request_slots, speculative):
        curves[shape] = ContextCurve(
            {context: steps.step_ms(_Exact(decoders, shape.prefill_capacity), context) for context in contexts}
        )
    report = dataclasses.replace(measured.report, loaded=len(curves), mixed_counts_one_more=0)
    return PreparedGraphs(curves, report)


@dataclasses.dataclass(frozen=True, slots=True)
class _Exact:
    decoders: int
    prompt_tokens: int


def _is_kept(shape: GraphShape, speculative: bool) -> bool:
    """Wider than the pending token: the grid has none of these."""
    return speculative and shape.kind is not GraphKind.PREFILL and shape.target_width > 1


def _with_rows(shape: GraphShape, grid: GraphGrid) -> GraphShape:
    if shape.kind is not GraphKind.MIXED:
        return shape
    return dataclasses.replace(shape, prompt_rows=min(grid.prompt_rows, shape.batch_capacity))


def _fine(
    grid: GraphGrid, graphs: StepGraphs, request_slots: int, speculative: bool
) -> Iterator[tuple[GraphShape, int]]:
    """(shape, its decoders) of every prefill, width-one and mixed graph of the grid."""
    capacities = grid.capacities(graphs.capacities)
    generation = GraphKind.SPECULATIVE if speculative else GraphKind.DECODE
    for capacity in capacities:
        yield GraphShape(GraphKind.PREFILL, 1, prefill_capacity=capacity), 0
    for batch in grid.batches(graphs.batches, request_slots):
        yield GraphShape(generation, batch, speculation_enabled=speculative), batch
    most = min(request_slots, LARGEST_MIXED_BATCH)
    for batch in grid.batches(graphs.mixed_batches, most):
        for capacity in grid.capacities(graphs.mixed_capacities) if 2 <= batch <= LARGEST_MIXED_BATCH else ():
            rows = min(grid.prompt_rows, batch)
            yield (
                GraphShape(
                    GraphKind.MIXED,
                    batch,
                    prefill_capacity=capacity,
                    speculation_enabled=speculative,
                    prompt_rows=rows,
                ),
                batch - 1,
            )
