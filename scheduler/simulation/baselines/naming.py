"""Baselines by name: `budget:512`, `prefill_first`, `prefill_first:2048`, `fixed:4`."""

from __future__ import annotations

import dataclasses
import re

from scheduler.simulation.baselines.batcher import BaselineBatcher
from scheduler.simulation.baselines.rules import Rule, chunked_prefill, prefill_first
from scheduler.simulation.baselines.steps import InterpolatedSteps, PaddedSteps, StepGraphs
from scheduler.simulation.errors import SimulationError
from scheduler.simulation.measured import MeasuredTable

PREFILL_FIRST_CHUNK = 8192
"""SGLang's chunked prefill size on cards of 60 GiB and more."""
FIXED_BUDGET = 2048
"""The budget beside which `fixed:N` speculates: vLLM's default for a server before it was raised."""
_PATTERN = re.compile(r"(budget|fixed|prefill_first)(?::(\d{1,7}))?", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class Baseline:
    """A named baseline. `target_width`: rows of a decoder, the pending token included; above 1 it speculates.

    `budget`: the most token rows of a step (of prompt tokens, for prefill_first).
    """

    name: str
    rule: Rule
    target_width: int
    budget: int

    def graphs(self, table: MeasuredTable) -> StepGraphs:
        """The graphs of `table` that it uses; raises InvalidTable when one it cannot do without is missing."""
        return StepGraphs(table, self.target_width)

    def batcher(self, graphs: StepGraphs, request_slots: int = 64) -> BaselineBatcher:
        """A fresh batcher. Raises SimulationError when its decoders alone could exceed the budget."""
        if self.name.startswith("budget") and self.budget < request_slots:
            raise SimulationError(
                f"{self.name}: {request_slots} request slots need a budget of at least {request_slots} tokens a step"
            )
        return BaselineBatcher(self.rule, graphs, request_slots)


def named_baseline(name: str) -> Baseline | None:
    """The baseline called `name`, or None when it is no baseline's name. Raises SimulationError for a bad number.

    budget:N          vLLM's rule with N token rows a step
    prefill_first[:N] SGLang's rule with prompt steps of at most N tokens (8192)
    fixed:N           vLLM's rule with 2048 token rows a step, every decoder always taking N (N - 1 drafts)
    """
    match = _PATTERN.fullmatch(name)
    if match is None:
        return None
    kind, number = match[1], int(match[2]) if match[2] else None
    if kind == "prefill_first":
        chunk = PREFILL_FIRST_CHUNK if number is None else number
        return Baseline(name, prefill_first(_at_least_one(name, chunk)), 1, chunk)
    if number is None:
        raise SimulationError(f"{name} needs a number, for example {kind}:{512 if kind == 'budget' else 4}")
    _at_least_one(name, number)
    if kind == "budget":
        return Baseline(name, chunked_prefill(number), 1, number)
    return Baseline(name, chunked_prefill(FIXED_BUDGET, number), number, FIXED_BUDGET)


def _at_least_one(name: str, number: int) -> int:
    if number < 1:
        raise SimulationError(f"{name}: the number must be at least 1")
    return number


def step_costs(graphs: StepGraphs, unpadded: bool, by_context: bool = False) -> PaddedSteps | InterpolatedSteps:
    """What steps on `graphs` cost: padded to prepared graphs, or interpolated to the exact sizes."""
    return InterpolatedSteps(graphs, by_context) if unpadded else PaddedSteps(graphs, by_context)
