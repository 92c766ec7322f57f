"""One simulation from its inputs: a workload, a catalog, a policy by name or by coefficients, and a seed."""

from __future__ import annotations

import dataclasses
from typing import Any

from scheduler.catalog import Catalog
from scheduler.errors import InvalidPolicy
from scheduler.policy import PRESET_FORMS, PRESETS, PolicyConfig
from scheduler.scheduler import RequestScheduler
from scheduler.shapes import Allocation, GraphKind
from scheduler.simulation.acceptance import AcceptanceLuck, Survival
from scheduler.simulation.baselines.naming import Baseline, named_baseline, step_costs
from scheduler.simulation.batcher import Batcher
from scheduler.simulation.durations import Disturbance, PaddedCost, StepCost, TrueDurations
from scheduler.simulation.errors import SimulationError
from scheduler.simulation.grid import GraphGrid, shapes_on_grid
from scheduler.simulation.machine import MachineSettings, Progress, simulate
from scheduler.simulation.measured import LoadReport, MeasuredTable, PreparedGraphs
from scheduler.simulation.results import SimulationResult
from scheduler.simulation.unpadded import UnpaddedCost
from scheduler.simulation.workload import Workload

BASELINES = "budget:N, prefill_first[:N], fixed:N"


@dataclasses.dataclass(frozen=True, slots=True)
class Experiment:
    """`policy`: coefficients for RequestScheduler, or a baseline. Durations follow context where the table has it.

    `grid`: the graphs that RequestScheduler is given beside the measured ones; baselines keep the measured ones.
    `survival`: acceptance of drafts; needed when anything proposes some. `draft_tokens`: the deepest draft that
    RequestScheduler is given; 0 loads the ordinary mode. `allocation`: who divides the rows of its speculative graphs.
    `measured`: whether every graph's duration at the reference context is observed once before the start. `unpadded`:
    steps take the time of their exact size. `heterogeneity`, `confidence_spread`: see AcceptanceLuck.
    """

    policy: PolicyConfig | Baseline
    machine: MachineSettings = dataclasses.field(default_factory=MachineSettings)
    disturbance: Disturbance = dataclasses.field(default_factory=Disturbance)
    survival: Survival | None = None
    draft_tokens: int = 0
    allocation: Allocation = Allocation.HOST
    grid: GraphGrid = dataclasses.field(default_factory=GraphGrid)
    measured: bool = True
    unpadded: bool = False
    heterogeneity: float = 0.0
    confidence_spread: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.survival is None and self.draft_depth:
            raise SimulationError("speculation needs an acceptance file: --acceptance FILE")

    @property
    def draft_depth(self) -> int:
        """The deepest draft of a step."""
        return self.policy.target_width - 1 if isinstance(self.policy, Baseline) else self.draft_tokens

    def run(self, workload: Workload, table: MeasuredTable, progress: Progress | None = None) -> Finished:
        """Simulates `workload` on `table`. Raises a SchedulerError for inputs that do not go together."""
        batcher: Batcher
        report = None
        if isinstance(self.policy, Baseline):
            batcher, cost = self._baseline(self.policy, table)
            durations = TrueDurations(cost, self.disturbance, self.seed)
            depth = self.draft_depth
        else:
            slots = self.machine.request_slots
            graphs = shapes_on_grid(table, self.grid, slots, self.draft_tokens, self.allocation)
            durations = TrueDurations(self._cost(graphs, table), self.disturbance, self.seed)
            batcher, report = self._scheduler(self.policy, graphs, durations), graphs.report
            depth = max(shape.draft_depth for shape in graphs.shapes)
        luck = None
        if self.survival is not None and depth:
            luck = AcceptanceLuck(self.survival, depth, self.seed, self.heterogeneity, self.confidence_spread)
        return Finished(simulate(batcher, workload, durations, self.machine, luck, progress), report)

    def _baseline(self, baseline: Baseline, table: MeasuredTable) -> tuple[Batcher, StepCost]:
        graphs = baseline.graphs(table)
        batcher = baseline.batcher(graphs, self.machine.request_slots)
        return batcher, step_costs(graphs, self.unpadded, table.by_context)

    def _cost(self, graphs: PreparedGraphs, table: MeasuredTable) -> StepCost:
        if self.unpadded:
            return UnpaddedCost(table, table.by_context)
        return PaddedCost(graphs.curves, table.by_context)

    def _scheduler(self, policy: PolicyConfig, graphs: PreparedGraphs, durations: TrueDurations) -> Batcher:
        catalog = Catalog(graphs.shapes)
        wrong = self.disturbance.wrong_capture
        if wrong and wrong not in {shape.label for shape in graphs.shapes}:
            raise SimulationError(f"the wrong capture {wrong!r} is not loaded; a graph is {graphs.shapes[-1].label}")
        if self.measured:
            for shape, curve in graphs.curves.items():
                catalog.observe(shape, durations.measured_ns(shape, round(curve.reference_ms * 1e6)), 0)
        return RequestScheduler(catalog, policy, self.machine.request_slots)


@dataclasses.dataclass(frozen=True, slots=True)
class Finished:
    """A simulation's result. `report`: what became of the catalog's rows; None for a baseline, which loads none."""

    result: SimulationResult
    report: LoadReport | None


def policy_by_name(name: str) -> PolicyConfig | Baseline | None:
    """A preset or a baseline; None when `name` is neither. Raises SimulationError for a baseline's bad number."""
    return PRESETS.get(name) or named_baseline(name)


def policy_from_document(document: Any) -> PolicyConfig:
    """A policy from a JSON document: coefficients, or {"preset"?, "coefficients"?} like `helios policy show --json`.

    Raises SimulationError or InvalidPolicy.
    """
    if not isinstance(document, dict):
        raise SimulationError("a policy file holds a JSON object of coefficients")
    preset = document.get("preset")
    try:
        base = (
            PolicyConfig.balanced()
            if preset is None
            else PolicyConfig.preset(preset if isinstance(preset, str) else "")
        )
    except InvalidPolicy:
        raise SimulationError(f"the preset is {preset!r}; it must be {PRESET_FORMS}") from None
    coefficients = document.get("coefficients")
    if coefficients is None:
        coefficients = {} if "preset" in document else document
    if not isinstance(coefficients, dict):
        raise SimulationError("the policy file's coefficients are no JSON object")
    return base.merged(coefficients)


def deepest_drafts(table: MeasuredTable) -> int:
    """The largest D of the table's speculative chains (no trees, which are not loaded); 0 when it has none."""
    rounds = [extent for extent in table.curves if extent.kind is GraphKind.SPECULATIVE]
    chains = [extent.draft_depth for extent in rounds if extent.target_width <= extent.draft_depth + 1]
    return max(chains, default=0)
