"""Prompts that are not read to their end: the order in which they are read, and what their waiting costs."""

from __future__ import annotations

import dataclasses
import math

from scheduler.reference.decision import Decision
from scheduler.reference.reading import ReadingTimes, reading_graphs
from scheduler.reference.residents import Resident, Stage


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

    `price`: scaled prompt_wait_price. `left`: (slot, tokens left) in the order. `times`: None where nothing costs.
    """

    price: float
    left: tuple[tuple[int, int], ...]
    times: ReadingTimes | None

    @classmethod
    def of(cls, decision: Decision, exponent: int, ordered: list[Resident] | None, streams: int) -> WaitingCost:
        """`streams`: active decoders."""
        graphs = reading_graphs(decision, streams)
        price = decision.policy.prompt_wait_price
        if price == 0.0 or ordered is None or not graphs:
            return cls(0.0, (), None)
        left = tuple((r.slot, r.prompt_left) for r in ordered)
        return cls(math.ldexp(price, -exponent), left, ReadingTimes.of(graphs))

    def relief(self, read: dict[int, int]) -> float:
        """What reading so many prompt tokens, by slot, spares all waiting prompts."""
        if self.times is None:
            return 0.0
        return self.price * (self._total_ms(self.times, {}) - self._total_ms(self.times, read))

    def _total_ms(self, times: ReadingTimes, read: dict[int, int]) -> float:
        """The times until each prompt is read, summed; one that is whole does not wait."""
        total, before = 0.0, 0
        for slot, left in self.left:
            rest = left - read.get(slot, 0)
            before += rest
            if rest:
                total += times.ms(before)
        return total
