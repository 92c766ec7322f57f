"""Reference rates from measured graphs: the normalizers of S9."""

from __future__ import annotations

from scheduler.reference.decision import Graph
from scheduler.reference.estimates import Prior
from scheduler.reference.loading import generates, lane_width
from scheduler.reference.residents import Resident
from scheduler.shapes import Allocation, GraphKind


class Rates:
    """The measured, usable part of the catalog at one instant, with the normalizers that follow from it."""

    def __init__(self, graphs: tuple[Graph, ...], prior: Prior) -> None:
        known = [graph for graph in graphs if graph.known and graph.usable]
        self._generation = [graph for graph in known if generates(graph.shape)]
        self._prompt = {
            False: [g for g in known if g.shape.kind in (GraphKind.PREFILL, GraphKind.MIXED)],
            True: [g for g in known if g.shape.kind is GraphKind.SCORED_PREFILL],
        }
        self._prior = prior

    def token(self, resident: Resident) -> float | None:
        """The highest tokens per ms that this request alone would advance in its phase; None when none is measured."""
        if resident.prompt_whole:
            return max((self._output(resident, graph) / graph.duration_ms for graph in self._generation), default=None)
        works = [(resident.work(g.shape.prefill_capacity), g) for g in self._prompt[resident.spec.scored]]
        return max((work / graph.duration_ms for work, graph in works if work > 0), default=None)

    def _output(self, resident: Resident, graph: Graph) -> float:
        shape = graph.shape
        room = max(1, resident.output_limit - resident.emitted)
        rows = resident.usable_rows(min(lane_width(shape), shape.target_rows, room))
        return resident.yield_raw(rows, shape.allocation is Allocation.DEVICE)

    def delivery(self, resident: Resident) -> float | None:
        """The highest deliveries per ms of one stream; None before the prompt is whole or when none is measured."""
        if not resident.prompt_whole:
            return None
        return max((1.0 / graph.duration_ms for graph in self._generation), default=None)

    def lone_decoder(self) -> float | None:
        """The highest tokens per ms of a lone decoder that follows the population prior; None unmeasured."""
        rates = []
        for graph in self._generation:
            rows = min(lane_width(graph.shape), graph.shape.target_rows)
            rates.append(self._prior.expected(rows) / graph.duration_ms)
        return max(rates, default=None)
