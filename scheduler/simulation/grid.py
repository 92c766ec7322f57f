"""Graphs between the measured ones: a finer grid of batches and prompt capacities, its times interpolated.

A catalog is measured at a few sizes. What a server gains that captures more of them is seen by preparing shapes of
the sizes between, each at the time that lies between its measured neighbours (baselines.steps, which says how).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from scheduler.capacity import MIXED_BATCH_MAX, MIXED_BATCH_STEP, MIXED_PROMPT_ROWS_MAX
from scheduler.shapes import Allocation, GraphKind, GraphShape
from scheduler.simulation.baselines.steps import InterpolatedSteps, StepGraphs
from scheduler.simulation.errors import SimulationError
from scheduler.simulation.measured import ContextCurve, MeasuredTable, PreparedGraphs, scheduler_shapes


@dataclasses.dataclass(frozen=True, slots=True)
class GraphGrid:
    """Which sizes are prepared beside the measured ones.

    `prompt_rows`: prompts that may share a mixed graph. `batch_step`: batches in its multiples beside the measured
    ones; 0: the measured ones. `prompt_step`: prompt capacities of mixed graphs in its multiples up to the largest
    measured one, beside the measured ones, as a server prepares them; 0: the measured ones. `prompt_halves`: capacities
    half-way between two measured ones too, from the second on, of mixed graphs and of those that only read prompts.
    `every_batch`: graphs that only decode for every number of requests. Raises SimulationError.
    """

    prompt_rows: int = 1
    batch_step: int = 0
    prompt_step: int = 0
    prompt_halves: bool = False
    every_batch: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.prompt_rows <= MIXED_PROMPT_ROWS_MAX:
            raise SimulationError(
                f"prompt rows: {self.prompt_rows}; a mixed graph has from 1 to {MIXED_PROMPT_ROWS_MAX}"
            )
        for name, step, unit in (("batch", self.batch_step, MIXED_BATCH_STEP), ("prompt", self.prompt_step, 64)):
            if step < 0 or step % unit:
                raise SimulationError(f"the {name} step is {step}; it must be a multiple of {unit}, or 0 for none")
        if self.prompt_step and self.prompt_halves:
            raise SimulationError("prompt capacities go in steps or by halves, not both")

    @property
    def is_measured(self) -> bool:
        """Whether it adds nothing to what was measured."""
        return self == GraphGrid()

    def batches(self, measured: list[int], most: int, step: int | None = None) -> list[int]:
        """The batches up to the first that holds `most`, ascending; `step`: in place of batch_step."""
        step = self.batch_step if step is None else step
        found = sorted({*measured, *(range(step, most + step, step) if step else ())})
        return found[: next((i + 1 for i, batch in enumerate(found) if batch >= most), len(found))]

    def mixed_capacities(self, measured: list[int]) -> list[int]:
        """The prompt capacities of mixed graphs, ascending; none where none were measured. Raises SimulationError."""
        if not self.prompt_step or not measured:
            return self.capacities(measured)
        if self.prompt_step > measured[-1]:
            raise SimulationError(
                f"the prompt step is {self.prompt_step}; the largest measured prompt capacity is {measured[-1]}: "
                "take a smaller step"
            )
        return sorted({*measured, *range(self.prompt_step, measured[-1] + 1, self.prompt_step)})

    def capacities(self, measured: list[int]) -> list[int]:
        """The prompt capacities of graphs that only read prompts, ascending; none where none were measured."""
        if not self.prompt_halves:
            return measured
        between = [(low + high) // 2 for low, high in itertools.pairwise(measured[1:])]
        return sorted({*measured, *(capacity for capacity in between if not capacity % 64)})


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
    Raises InvalidTable and SimulationError.
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
    for batch in grid.batches(graphs.batches, request_slots, 1 if grid.every_batch else None):
        yield GraphShape(generation, batch, speculation_enabled=speculative), batch
    most = min(request_slots, MIXED_BATCH_MAX)
    for batch in grid.batches(graphs.mixed_batches, most):
        for capacity in grid.mixed_capacities(graphs.mixed_capacities) if 2 <= batch <= MIXED_BATCH_MAX else ():
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
