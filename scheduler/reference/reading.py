"""How long prompts take to be read beside the running answers, by the measured graphs that would read them."""

from __future__ import annotations

import bisect
import dataclasses

from scheduler.reference.decision import Decision, Graph
from scheduler.shapes import GraphKind


def reading_graphs(decision: Decision, streams: int) -> list[Graph]:
    """Measured graphs that read prompts beside `streams` active decoders; without these, of the other kind.

    Beside streams: MIXED ones with a row for each and one for a prompt, else PREFILL; without streams PREFILL, else
    MIXED. Of the MIXED ones of one capacity those with the fewest rows.
    """
    prefill = [g for g in decision.graphs if g.known and g.shape.kind is GraphKind.PREFILL]
    mixed = [g for g in decision.graphs if g.known and g.usable and g.shape.kind is GraphKind.MIXED]
    if streams:
        return _smallest([g for g in mixed if g.shape.batch_capacity >= streams + 1]) or prefill
    return prefill or _smallest(mixed)


def _smallest(graphs: list[Graph]) -> list[Graph]:
    """Those of each prompt capacity with the fewest rows."""
    least: dict[int, int] = {}
    for graph in graphs:
        capacity, batch = graph.shape.prefill_capacity, graph.shape.batch_capacity
        least[capacity] = min(batch, least.get(capacity, batch))
    return [g for g in graphs if g.shape.batch_capacity == least[g.shape.prefill_capacity]]


@dataclasses.dataclass(frozen=True, slots=True)
class ReadingTimes:
    """`capacities`: distinct prompt capacities, ascending. `fastest_ms`, `log_ms`: the least duration of a graph that
    holds as many tokens, and the least of their logarithms.
    """

    capacities: tuple[int, ...]
    fastest_ms: tuple[float, ...]
    log_ms: tuple[float, ...]

    @classmethod
    def of(cls, graphs: list[Graph]) -> ReadingTimes:
        """Of measured graphs."""
        capacities = tuple(sorted({g.shape.prefill_capacity for g in graphs}))
        holding = [[g for g in graphs if g.shape.prefill_capacity >= capacity] for capacity in capacities]
        return cls(
            capacities,
            tuple(min(g.duration_ms for g in those) for those in holding),
            tuple(min(g.log_ms for g in those) for those in holding),
        )

    def ms(self, tokens: int) -> float:
        """rho: linear between capacities, a whole smallest graph below them, whole largest graphs above them."""
        largest = self.capacities[-1]
        if tokens <= self.capacities[0]:
            return self.fastest_ms[0]
        if tokens > largest:
            whole = (tokens - 1) // largest
            return whole * self.fastest_ms[-1] + self.ms(tokens - whole * largest)
        above = bisect.bisect_left(self.capacities, tokens)
        below = above - 1
        share = (tokens - self.capacities[below]) / (self.capacities[above] - self.capacities[below])
        return self.fastest_ms[below] + share * (self.fastest_ms[above] - self.fastest_ms[below])
