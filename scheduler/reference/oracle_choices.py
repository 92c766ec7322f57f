"""What the exhaustive oracle enumerates: every legal choice of a state (S4, S5). See oracle.py for the formula."""

from __future__ import annotations

from collections.abc import Iterator

from scheduler.reference.oracle import (
    PREFILLS,
    ROUNDS,
    OracleChoice,
    OracleRequest,
    OracleState,
    Pricing,
    Share,
    is_ragged,
    subsets,
    unmeasured_duplicate,
    width_of,
)
from scheduler.shapes import GraphKind

STAGES = {
    GraphKind.INIT: "init",
    GraphKind.RESTORE: "restore",
    GraphKind.VISION: "vision",
    GraphKind.SNAPSHOT: "snapshot",
}


def all_choices(state: OracleState) -> Iterator[OracleChoice]:
    """Every choice that the specification calls exact: no adaptive ragged round, no longer chain."""
    pricing = Pricing(state)
    for position, shape in enumerate(state.shapes):
        if not state.usable(position):
            continue
        if shape.kind in PREFILLS:
            yield from _prefills(pricing, position)
        elif shape.kind in ROUNDS:
            yield from _rounds(pricing, position)
        elif shape.kind is GraphKind.MIXED:
            yield from _mixed(pricing, position)
        elif shape.kind is GraphKind.TERMINAL_SNAPSHOT:
            rows = _terminals(pricing, state.durations_ns[position])
            yield from (pricing.choice(position, "", cohort) for cohort in subsets(rows, shape.batch_capacity))
        else:
            yield from _sequences(pricing, position)


def prompts(
    pricing: Pricing, position: int, requests: list[OracleRequest], unmeasured_too: bool = False
) -> list[Share]:
    """Prompt lanes that the graph may serve."""
    shape = pricing.state.shapes[position]
    scored = shape.kind is GraphKind.SCORED_PREFILL
    waiting = [r for r in requests if r.remaining_prompt and r.scored is scored]
    shares = [pricing.prompt(r, shape.prefill_capacity) for r in waiting]
    mixed = shape.kind is GraphKind.MIXED or unmeasured_too
    return [share for share in shares if mixed or not unmeasured_duplicate(pricing.state, position, share)]


def ready_prompts(state: OracleState, position: int) -> list[OracleRequest]:
    """Ready prompts for a graph: in the policy's order the first of its kind alone, else all."""
    scored = state.shapes[position].kind is GraphKind.SCORED_PREFILL
    ready = [r for r in state.order if r.stage == "prefill" and r.scored is scored]
    return ready[:1] if state.ordered else ready


def _prefills(pricing: Pricing, position: int) -> Iterator[OracleChoice]:
    for share in prompts(pricing, position, ready_prompts(pricing.state, position)):
        yield pricing.choice(position, str(share.request.slot), [share])


def _rounds(pricing: Pricing, position: int) -> Iterator[OracleChoice]:
    """Any decoders within B with complete prefixes; a fixed ragged round also within P."""
    shape, fixed = pricing.state.shapes[position], pricing.state.fixed_width
    if is_ragged(shape) and not fixed:
        return
    for cohort in subsets(_decoders(pricing, position), shape.batch_capacity):
        if sum(share.rows for share in cohort) <= shape.target_rows:
            yield pricing.choice(position, "", cohort)


def _mixed(pricing: Pricing, position: int) -> Iterator[OracleChoice]:
    state = pricing.state
    capacity = state.shapes[position].batch_capacity
    decoders = _decoders(pricing, position)
    for cohort in subsets(decoders, capacity):
        yield pricing.choice(position, "decoders", cohort)
    taken = _filling(pricing, position)
    fewest = min(len(taken), max(1, capacity - len(decoders)))
    together = state.policy.decode_cadence == "on" or state.policy.token_budget > 0
    for count in range(1, len(taken) + 1):
        if count == fewest or (count > fewest and not together):
            for cohort in subsets(decoders, capacity - count, 0):
                yield pricing.choice(position, f"{count} prompts", [*cohort, *taken[:count]])


def _filling(pricing: Pricing, position: int) -> list[Share]:
    """The prompts that fill a mixed graph: in the policy's order, else the best of its capacity first."""
    state, shape = pricing.state, pricing.state.shapes[position]
    ready = [r for r in state.order if r.stage == "prefill" and not r.scored]
    if not state.ordered:
        whole = {r.slot: pricing.prompt(r, shape.prefill_capacity) for r in ready}
        ready.sort(key=lambda r: (-whole[r.slot].value, r.last_served_tick, -whole[r.slot].prompt, r.slot))
    room = min(shape.prefill_capacity, state.prompt_limit) if state.policy.token_budget else shape.prefill_capacity
    taken: list[Share] = []
    for r in ready[: shape.prompt_rows]:
        if room:
            taken.append(pricing.prompt(r, room))
            room -= taken[-1].prompt
    return taken


def _decoders(pricing: Pricing, position: int) -> list[Share]:
    state = pricing.state
    shape, horizon_ms = state.shapes[position], state.durations_ns[position] / 1e6
    return [pricing.decode(r, shape, min(width_of(shape), r.limit), horizon_ms) for r in state.in_stage("decode")]


def _terminals(pricing: Pricing, duration_ns: int) -> list[Share]:
    return [pricing.terminal(r, duration_ns / 1e6) for r in pricing.state.in_stage("terminal")]


def _sequences(pricing: Pricing, position: int) -> Iterator[OracleChoice]:
    """A prerequisite with everything that may follow it, and terminal rows in a snapshot of their own."""
    state = pricing.state
    shape, duration_ns = state.shapes[position], state.durations_ns[position]
    stage = state.in_stage(STAGES[shape.kind])
    if shape.kind is GraphKind.SNAPSHOT:
        for lanes in subsets([*_terminals(pricing, duration_ns), *map(_bare, stage)], shape.batch_capacity):
            if _retired(lanes):
                yield pricing.choice(position, "alone", lanes)
    if stage:
        for following, shape in enumerate(state.shapes):
            if state.usable(following) and shape.kind in (*PREFILLS, *ROUNDS, GraphKind.MIXED):
                yield from _pairs(pricing, position, following, stage)


def _pairs(pricing: Pricing, position: int, following: int, stage: list[OracleRequest]) -> Iterator[OracleChoice]:
    """Every cohort of both graphs in which the first one makes at least one request of the second ready."""
    state = pricing.state
    shape, durations = state.shapes[position], (state.durations_ns[position], state.durations_ns[following])
    known = all(durations)
    horizon_ns, first_ns = (sum(durations), durations[0]) if known else (0, 0)
    terminals = _terminals(pricing, first_ns) if shape.kind is GraphKind.SNAPSHOT else []
    second = list(_second_cohorts(pricing, following, stage, horizon_ns / 1e6))
    for lanes in subsets([*terminals, *map(_bare, stage)], shape.batch_capacity):
        prepared = {share.request.slot for share in lanes}
        for case, cohort, needed in second:
            if needed <= prepared:
                yield pricing.choice(position, case, lanes, following, cohort, horizon_ns, _retired(lanes))


def _second_cohorts(
    pricing: Pricing, following: int, stage: list[OracleRequest], horizon_ms: float
) -> Iterator[tuple[str, tuple[Share, ...], set[int]]]:
    """(case, cohort of the following graph, slots that the prerequisite must make ready), none without such slots."""
    state = pricing.state
    shape = state.shapes[following]
    immediate = [r for r in stage if not r.chain]
    if shape.kind in PREFILLS:
        for share in prompts(pricing, following, immediate):
            yield "prompt", (share,), {share.request.slot}
        return
    width, room = width_of(shape), shape.batch_capacity
    if is_ragged(shape):
        width = min(width, max(1, shape.target_rows // shape.batch_capacity))
        room = min(room, shape.target_rows)
    whole = [r for r in immediate if not r.remaining_prompt] + state.in_stage("decode")
    decoders = [pricing.decode(r, shape, min(width, r.limit), horizon_ms) for r in whole]
    waiting = {r.slot for r in stage}
    for cohort in subsets(decoders, room):
        needed = {share.request.slot for share in cohort} & waiting
        if needed:
            yield "decoders", cohort, needed
    if shape.kind is not GraphKind.MIXED:
        return
    for case, requests in (("ready prompt", ready_prompts(state, following)), ("new prompt", immediate)):
        for prompt in prompts(pricing, following, requests):
            for cohort in subsets(decoders, room - 1, 0):
                needed = {share.request.slot for share in (*cohort, prompt)} & waiting
                if needed:
                    yield case, (*cohort, prompt), needed


def _retired(lanes: tuple[Share, ...]) -> int:
    return sum(share.request.stage == "terminal" for share in lanes)


def _bare(r: OracleRequest) -> Share:
    """A lane that earns nothing in the graph itself."""
    return Share(r, 1, 0)
