"""Prompts that are not read to their end: the order in which they are read, and what their waiting costs."""

from __future__ import annotations

import bisect
import dataclasses
import math

from scheduler.policy import PolicyConfig
from scheduler.reference.decision import Decision, Graph
from scheduler.reference.residents import Resident, Stage
from scheduler.shapes import GraphKind


def waiting_prompts(decision: Decision) -> list[Resident] | None:
    """Residents whose prompt is not whole, in the order of reading; None where the policy orders none.

    A token budget reads in the order of arrival, prompt_wait_price the highest rank first.
    """
    policy = decision.policy
    waiting = [r for r in decision.residents if not (r.prompt_whole or r.retiring or r.stage is Stage.TERMINAL)]
    if policy.token_budget:
        return sorted(waiting, key=_arrival)
    if policy.prompt_wait_price:
        return sorted(waiting, key=lambda r: (-_rank(r, decision), _arrival(r)))
    return None


def _arrival(resident: Resident) -> tuple[int, int]:
    return resident.arrived_ns, resident.admitted


def _rank(resident: Resident, decision: Decision) -> float:
    """Its age with the head start, by what is left to read."""
    age_ms = max(0, decision.start_ns - resident.arrived_ns) / 1e6
    return (age_ms + decision.policy.prompt_rank_age_ms) / resident.prompt_left


@dataclasses.dataclass(frozen=True, slots=True)
class WaitingCost:
    """The cost of waiting: of every prompt, the time to read it and all before it in the order.

    `price`: scaled prompt_wait_price. `left`: (slot, tokens left) in the order. `capacities`: of the graphs that may
    read them, ascending; `fastest_ms`: of those that hold as many tokens.
    """

    price: float
    left: tuple[tuple[int, int], ...]
    capacities: tuple[int, ...]
    fastest_ms: tuple[float, ...]

    @classmethod
    def of(cls, decision: Decision, exponent: int, ordered: list[Resident] | None, streams: int) -> WaitingCost:
        """`streams`: active decoders, which a mixed graph must have room for beside a prompt."""
        policy: PolicyConfig = decision.policy
        if policy.prompt_wait_price == 0.0 or ordered is None:
            return cls(0.0, (), (), ())
        left = tuple((r.slot, r.prompt_left) for r in ordered)
        graphs = _readers(decision, streams)
        capacities = tuple(sorted({g.shape.prefill_capacity for g in graphs}))
        fastest_ms = tuple(min(g.duration_ms for g in graphs if g.shape.prefill_capacity >= c) for c in capacities)
        return cls(math.ldexp(policy.prompt_wait_price, -exponent), left, capacities, fastest_ms)

    def relief(self, read: dict[int, int]) -> float:
        """What reading so many prompt tokens, by slot, spares all waiting prompts."""
        if not self.capacities:
            return 0.0
        return self.price * (self._total_ms({}) - self._total_ms(read))

    def _total_ms(self, read: dict[int, int]) -> float:
        """The times until each prompt is read, summed; one that is whole does not wait."""
        total, before = 0.0, 0
        for slot, left in self.left:
            rest = left - read.get(slot, 0)
            before += rest
            if rest:
                total += self._reading_ms(before)
        return total

    def _reading_ms(self, tokens: int) -> float:
        """rho: whole graphs of the largest capacity, and the fastest graph that holds the rest."""
        largest = self.capacities[-1]
        if tokens <= largest:
            return self._fastest_ms(tokens)
        whole = tokens // largest
        rest = tokens - whole * largest
        return whole * self._fastest_ms(largest) + (self._fastest_ms(rest) if rest else 0.0)

    def _fastest_ms(self, tokens: int) -> float:
        return self.fastest_ms[bisect.bisect_left(self.capacities, tokens)]


def _readers(decision: Decision, streams: int) -> list[Graph]:
    """Measured graphs that read prompts beside all streams, or alone without any; where there are none, the others."""
    prefill = [g for g in decision.graphs if g.known and g.shape.kind is GraphKind.PREFILL]
    mixed = [g for g in decision.graphs if g.known and g.usable and g.shape.kind is GraphKind.MIXED]
    if streams:
        return [g for g in mixed if g.shape.batch_capacity >= streams + 1] or prefill
    return prefill or mixed
