"""The best that the two bounded searches could have found: adaptive ragged rounds and longer chains (S4, S5)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from scheduler.reference.oracle import (
    PREFILLS,
    OracleChoice,
    OracleRequest,
    OracleState,
    Pricing,
    Share,
    subsets,
    width_of,
)
from scheduler.reference.oracle_choices import prompts
from scheduler.shapes import Allocation, GraphKind, GraphShape


def ragged_cohorts(state: OracleState, position: int) -> Iterator[OracleChoice]:
    """Every cohort of an adaptive ragged round under the causal allocation of its rows."""
    pricing, shape = Pricing(state), state.shapes[position]
    horizon_ms = state.durations_ns[position] / 1e6
    requests = state.in_stage("decode")
    for size in range(1, min(shape.batch_capacity, shape.target_rows, len(requests)) + 1):
        for cohort in itertools.combinations(requests, size):
            rows = _causal_rows(shape, cohort)
            yield pricing.choice(
                position, "", [pricing.decode(r, shape, n, horizon_ms) for r, n in zip(cohort, rows, strict=True)]
            )


def ragged_allocations(state: OracleState, position: int) -> Iterator[OracleChoice]:
    """Every cohort with every division of P into prefixes, whatever their survival."""
    pricing, shape = Pricing(state), state.shapes[position]
    horizon_ms = state.durations_ns[position] / 1e6
    requests = state.in_stage("decode")
    for size in range(1, min(shape.batch_capacity, shape.target_rows, len(requests)) + 1):
        for cohort in itertools.combinations(requests, size):
            for rows in itertools.product(*(range(1, min(width_of(shape), r.limit) + 1) for r in cohort)):
                if sum(rows) <= shape.target_rows:
                    lanes = [pricing.decode(r, shape, n, horizon_ms) for r, n in zip(cohort, rows, strict=True)]
                    yield pricing.choice(position, "", lanes)


def _causal_rows(shape: GraphShape, cohort: tuple[OracleRequest, ...]) -> list[int]:
    """One row each, then drafts by joint survival, shorter prefixes first, lower slots first."""
    drafts = []
    for i, r in enumerate(cohort):
        means = r.forecast if shape.allocation is Allocation.DEVICE else r.acceptance
        reach = min(width_of(shape), r.limit) - 1
        drafts += [(-s, d, r.slot, i) for d, s in enumerate(itertools.accumulate(means[:reach], min))]
    rows = [1] * len(cohort)
    for _, _, _, i in sorted(drafts)[: shape.target_rows - len(cohort)]:
        rows[i] += 1
    return rows


def chain_choices(state: OracleState, position: int) -> Iterator[OracleChoice]:
    """Every cohort of a prerequisite whose lanes' continuations all have known durations, under the index V*T/(T+F).

    Nothing where a duration is unknown, or no lane of the stage has a longer chain.
    """
    pricing, duration_ns = Pricing(state), state.durations_ns[position]
    stage = state.in_stage(state.shapes[position].kind.value)
    values = {r.slot: continuations(pricing, r, duration_ns / 1e6) for r in stage}
    if not duration_ns or not any(r.chain for r in stage) or not all(values.values()):
        return
    lanes = []
    for r in stage:
        share, further_ns = max(values[r.slot], key=lambda v: v[0].value * _factor(duration_ns, v[1]))
        factor = _factor(duration_ns, further_ns)
        lanes.append(Share(r, 1, 0, share.token * factor, share.delivery * factor, share.relief * factor))
    for cohort in subsets(lanes, state.shapes[position].batch_capacity):
        yield pricing.choice(position, "chain", cohort)


def sequence_rate(state: OracleState, position: int, slots: tuple[int, ...]) -> tuple[float, float]:
    """(net, before the waiting cost): the best value rate of finishing one of these lanes, all its graphs in a row."""
    pricing, duration_ns = Pricing(state), state.durations_ns[position]
    rates = []
    for r in state.requests:
        further = [f for _, f in continuations(pricing, r, 0.0)] if r.slot in slots else []
        for i, further_ns in enumerate(further):
            horizon_ms = (duration_ns + further_ns) / 1e6
            share, _ = continuations(pricing, r, horizon_ms)[i]
            gross = share.value / horizon_ms
            rates.append((gross - horizon_ms / 2.0 * pricing.wait_price, gross))
    return max(rates)


def continuations(pricing: Pricing, r: OracleRequest, horizon_ms: float) -> list[tuple[Share, int]]:
    """(value at the horizon, further ns) for each measured graph that may end the lane's chain."""
    state = pricing.state
    chain_ns = 0
    for kind in r.chain:
        known = [d for s, d in zip(state.shapes, state.durations_ns, strict=True) if s.kind is kind and d]
        if not known:
            return []
        chain_ns += min(known)
    found = []
    for i, shape in enumerate(state.shapes):
        if not state.durations_ns[i] or not state.usable(i):
            continue
        if r.remaining_prompt and shape.kind in (*PREFILLS, GraphKind.MIXED):
            shares = prompts(pricing, i, [r], unmeasured_too=True)
        elif not r.remaining_prompt and shape.target_rows:
            shares = [pricing.decode(r, shape, min(width_of(shape), r.limit), horizon_ms)]
        else:
            shares = []
        found += [(share, chain_ns + state.durations_ns[i]) for share in shares]
    return found


def _factor(duration_ns: int, further_ns: int) -> float:
    return (duration_ns / 1e6) / ((duration_ns + further_ns) / 1e6)
