"""What a plan would take in a graph of exactly its size: the same measured catalog, interpolated."""

from __future__ import annotations

import dataclasses
from typing import Any

from scheduler.simulation.baselines.steps import InterpolatedSteps, StepGraphs
from scheduler.simulation.batcher import PlanColumns
from scheduler.simulation.measured import MeasuredTable


@dataclasses.dataclass(slots=True)
class _ExactStep:
    decoders: int
    prompt_tokens: int


class UnpaddedCost:
    """A StepCost for plans of RequestScheduler: the interpolated step of the same decoders and prompt tokens.

    Decoders count at the graph's target width, whatever rows their lanes use.
    """

    def __init__(self, table: MeasuredTable, by_context: bool = False) -> None:
        self.needs_context = by_context
        self._table = table
        self._by_width: dict[int, InterpolatedSteps] = {}

    def step_ms(self, plan: Any, context_tokens: float) -> float:
        """Time in ms. Raises InvalidTable when the catalog has no chain graphs of the plan's width to interpolate."""
        prompts = PlanColumns(plan).prompt_tokens
        prompt_tokens, decoders = sum(prompts), prompts.count(0)
        width = plan.shape.target_width
        steps = self._by_width.get(width)
        if steps is None:
            graphs = StepGraphs(self._table, width)
            steps = self._by_width[width] = InterpolatedSteps(graphs, self.needs_context)
        return steps.step_ms(_ExactStep(decoders, prompt_tokens), context_tokens)
