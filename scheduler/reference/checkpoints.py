"""Where a prompt is cut for snapshots, and whether a cut that was reached is taken (S10)."""

from __future__ import annotations

from scheduler.plans import CostState
from scheduler.records import RequestSpec
from scheduler.reference.decision import Graph
from scheduler.reference.prompts import inside
from scheduler.reference.residents import Resident
from scheduler.shapes import GraphKind


def choose_cuts(
    spec: RequestSpec,
    blocks: tuple[tuple[int, int], ...],
    starts: list[int],
    graphs: tuple[Graph, ...],
    fraction: float,
) -> tuple[int | None, tuple[int, ...]]:
    """(anchor, all cuts ascending) at admission. `starts`: the first tokens of later image windows."""
    end = spec.prompt_tokens
    eligible = [
        b
        for b in spec.message_boundaries
        if spec.cached_tokens < b <= end and b not in starts and not inside(blocks, b)
    ]
    anchor = eligible[-1] if eligible else end
    chosen = [anchor]
    extras = eligible[-2::-1] + ([end] if anchor != end else [])
    snapshot = min((g.duration_ms for g in graphs if g.shape.kind is GraphKind.SNAPSHOT and g.known), default=None)
    uncached = prefill_ms(end - spec.cached_tokens, spec.scored, graphs)
    if snapshot is None or uncached is None:
        return anchor, (anchor,)
    allowance, spent = fraction * uncached, 0.0
    for extra in extras:
        cost = extra_cost_ms(extra, spec, [spec.cached_tokens, *starts, *chosen, end], graphs, snapshot)
        if spent + cost > allowance:
            break
        spent += cost
        chosen.append(extra)
    return anchor, tuple(sorted(chosen))


def extra_cost_ms(
    cut: int, spec: RequestSpec, stops: list[int], graphs: tuple[Graph, ...], snapshot_ms: float
) -> float:
    """What an extra cut costs: its snapshot, and what splitting its segment between two `stops` adds to prefill."""
    if cut == spec.prompt_tokens:
        return snapshot_ms
    before = cut - max(stop for stop in stops if stop < cut)
    after = min(stop for stop in stops if stop > cut) - cut
    first, second, whole = (prefill_ms(n, spec.scored, graphs) for n in (before, after, before + after))
    assert first is not None
    assert second is not None
    assert whole is not None
    return ((snapshot_ms + first) + second) - whole


def prefill_ms(tokens: int, scored: bool, graphs: tuple[Graph, ...]) -> float | None:
    """Full graphs of the largest measured capacity, then the cheapest measured one that covers the rest."""
    kind = GraphKind.SCORED_PREFILL if scored else GraphKind.PREFILL
    known = [(g.shape.prefill_capacity, g.duration_ms) for g in graphs if g.shape.kind is kind and g.known]
    if not known:
        return None
    largest = max(capacity for capacity, _ in known)
    full, rest = divmod(tokens, largest)
    total = full * min(ms for capacity, ms in known if capacity == largest)
    return total + min(ms for capacity, ms in known if capacity >= rest) if rest else total


def takes_cut(resident: Resident, everyone: list[Resident], graphs: tuple[Graph, ...], free_rows: int) -> bool:
    """Whether the cut that `resident` has reached is captured: an anchor with a free row, an extra with a spare one."""
    if free_rows <= 0 or resident.consumed not in resident.prompt.cuts:
        return False
    if resident.consumed == resident.prompt.anchor:
        return True
    guards = sum(
        1 for r in everyone if not r.cancelled and r.prompt.anchor is not None and r.prompt.anchor > r.consumed
    )
    fresh = any(g.shape.kind is GraphKind.SNAPSHOT and g.state is CostState.FRESH for g in graphs)
    return free_rows - guards > 0 and fresh
