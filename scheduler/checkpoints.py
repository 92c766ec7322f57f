"""Which prompt endpoints are captured, and whether a capture happens when prefill gets there (S10). Pure decisions."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

from scheduler.prompts import Prompt, outside_blocks

Measured = Sequence[tuple[int, int]]
"""(prompt capacity, duration in ns) of the measured prefill graphs of a request's kind."""


@dataclasses.dataclass(frozen=True, slots=True)
class CaptureCosts:
    """Measured costs at admission: `snapshot_ns` 0 and an empty `prefill` mean unknown."""

    prefill: Measured
    snapshot_ns: int
    fraction: float


def prefill_ms(measured: Measured, tokens: int) -> float:
    """Estimated prefill of `tokens` tokens in ms: full graphs of the largest measured capacity, then the cheapest
    measured one that covers the rest. `measured` is not empty.
    """
    if tokens == 0:
        return 0.0
    largest = max(capacity for capacity, _ in measured)
    whole, rest = divmod(tokens, largest)
    total = whole * (_cheapest_ns(measured, largest) / 1e6)
    return total + (_cheapest_ns(measured, rest) / 1e6 if rest else 0.0)


def _cheapest_ns(measured: Measured, tokens: int) -> int:
    return min(duration for capacity, duration in measured if capacity >= tokens)


def choose_cuts(
    prompt: Prompt, cached_tokens: int, boundaries: Sequence[int], costs: CaptureCosts
) -> tuple[int, tuple[int, ...]]:
    """(anchor, extras ascending) of a request that may be captured.

    The anchor is the last eligible boundary, which may be the prompt end, else the prompt end, and costs nothing of
    the allowance. Extras are the earlier boundaries in reverse, then the prompt end where it is not the anchor, while
    their sum stays within the allowance.
    """
    starts = {window.first_token for window in prompt.windows[1:]}
    eligible = [
        b
        for b in boundaries
        if cached_tokens < b <= prompt.tokens and b not in starts and outside_blocks(prompt.blocks, b) == b
    ]
    anchor = eligible[-1] if eligible else prompt.tokens
    if not costs.prefill or not costs.snapshot_ns:
        return anchor, ()
    wanted = list(reversed(eligible[:-1]))
    if anchor != prompt.tokens:
        wanted.append(prompt.tokens)
    stops = sorted({cached_tokens, anchor, prompt.tokens, *(s for s in starts if s > cached_tokens)})
    return anchor, tuple(sorted(_affordable(wanted, stops, prompt.tokens - cached_tokens, costs)))


def _affordable(wanted: Sequence[int], stops: list[int], uncached: int, costs: CaptureCosts) -> list[int]:
    """Those of `wanted`, in order, whose costs fit the allowance; `stops` are ascending and grow with each."""
    allowance = costs.fraction * prefill_ms(costs.prefill, uncached)
    spent = 0.0
    taken: list[int] = []
    for cut in wanted:
        cost = costs.snapshot_ns / 1e6
        if cut < stops[-1]:
            place = bisect.bisect(stops, cut)  # there may be thousands: a request chooses how many messages it has
            start, end = stops[place - 1], stops[place]
            before, after = prefill_ms(costs.prefill, cut - start), prefill_ms(costs.prefill, end - cut)
            cost = cost + before + after - prefill_ms(costs.prefill, end - start)
        if spent + cost > allowance:
            break
        spent += cost
        taken.append(cut)
        bisect.insort(stops, cut)
    return taken


def captures(prompt: Prompt, consumed: int, free_rows: int, guards: int, snapshot_fresh: bool) -> bool:
    """Whether prefill that has reached `consumed` is captured there; otherwise the copy is skipped.

    `guards`: residents whose anchor lies ahead; their rows are kept from extras.
    """
    if consumed == prompt.anchor:
        return free_rows > 0
    return consumed in prompt.extras and free_rows - guards > 0 and snapshot_fresh
