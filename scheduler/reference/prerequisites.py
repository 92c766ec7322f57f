"""Prerequisites (specification S5): pairs with the inference that they enable, and snapshots of terminal rows."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from scheduler.plans import BarredBy, Role
from scheduler.reference.candidates import (
    Candidate,
    Use,
    best_decoders,
    decode_use,
    prompts,
    ranked_prompts,
    reliefs_of,
    terminal_uses,
    unmeasured_duplicate,
)
from scheduler.reference.continuations import multistage_candidates
from scheduler.reference.decision import Graph
from scheduler.reference.extents import GENERATION_KINDS, PREFILL_KINDS, is_ragged, lane_width
from scheduler.reference.residents import Stage
from scheduler.reference.value import NOTHING, Context, Lane, total_of
from scheduler.shapes import GraphKind

STAGE = {
    GraphKind.INIT: Stage.INIT,
    GraphKind.RESTORE: Stage.RESTORE,
    GraphKind.VISION: Stage.VISION,
    GraphKind.SNAPSHOT: Stage.SNAPSHOT,
}


def prerequisite_candidates(context: Context, graph: Graph) -> list[Candidate]:
    """Pairs in the order of the following shape, terminal rows alone, then longer chains."""
    stage = context.stages[STAGE[graph.shape.kind]]
    found = []
    if stage:
        for following in context.decision.graphs:
            if following.usable:
                found += _Pair(context, graph, following, stage).candidates()
    if graph.shape.kind is GraphKind.SNAPSHOT and context.stages[Stage.TERMINAL]:
        found.append(_snapshot_alone(context, graph, stage))
    return found + multistage_candidates(context, graph, stage)


class _Case(NamedTuple):
    """Lanes of one pair: newly ready decoders, ready ones, and a prompt that may be newly ready itself."""

    new: list[Use]
    ready: list[Use]
    prompt: Use | None = None
    prompt_is_new: bool = False
    barred_by: BarredBy = BarredBy.NONE


class _Pair:
    """One prerequisite shape with one following inference shape; both cohorts are chosen jointly."""

    def __init__(self, context: Context, graph: Graph, following: Graph, stage: list[Lane]) -> None:
        self._context, self._graph, self._following, self._stage = context, graph, following, stage
        self._known = graph.known and following.known
        self._horizon_ns = graph.duration_ns + following.duration_ns if self._known else 0
        self._horizon_ms = self._horizon_ns / 1e6
        self._first_ms = graph.duration_ms if self._known else 0.0
        self._immediate = [lane for lane in stage if not lane.resident.chain()]

    def candidates(self) -> list[Candidate]:
        """The best of each case, in the order of the cases."""
        kind = self._following.shape.kind
        if kind in PREFILL_KINDS:
            cases = [self._prefill_cases()]
        elif kind in GENERATION_KINDS:
            cases = [self._decode_cases()]
        elif kind is GraphKind.MIXED:
            cases = [self._decode_cases(), self._ready_prompt_cases(), self._new_prompt_cases()]
        else:
            cases = []
        return [self._best_case(case) for case in cases if case]

    def _best_case(self, cases: list[_Case]) -> Candidate:
        found = [self._priced(case) for case in cases]
        return dataclasses.replace(min(found, key=lambda candidate: candidate.order), priced=len(cases))

    def _prefill_cases(self) -> list[_Case]:
        """One newly ready prompt. A lane for which the graph is an unmeasured duplicate comes last."""
        uses = prompts(self._context, self._following, self._waiting_prompts())
        duplicates = [use for use in uses if unmeasured_duplicate(self._context, self._following, use)]
        prompt = _best([use for use in uses if use not in duplicates])
        barred_by = BarredBy.NONE
        if prompt is None:
            prompt, barred_by = _best(duplicates), BarredBy.UNMEASURED
        return [_Case([], [], prompt, True, barred_by)] if prompt is not None else []

    def _decode_cases(self) -> list[_Case]:
        new, ready = self._new_decoders(), self._ready_decoders()
        room = self._following.shape.batch_capacity
        if is_ragged(self._following.shape):
            room = min(room, self._following.shape.target_rows)
        most = min(len(new), self._graph.shape.batch_capacity, room)
        return [_Case(new[:k], ready[: room - k]) for k in range(1, most + 1)]

    def _ready_prompt_cases(self) -> list[_Case]:
        """A prompt that is ready already, beside at least one newly ready decoder."""
        context = self._context
        ready = prompts(context, self._following, context.by_order(context.stages[Stage.PREFILL]))
        prompt = next(iter(ready), None) if context.ordered else _best(ready)
        if prompt is None:
            return []
        new, ready = self._new_decoders(), self._ready_decoders()
        room = self._following.shape.batch_capacity - 1
        most = min(len(new), self._graph.shape.batch_capacity, room)
        return [_Case(new[:k], ready[: room - k], prompt) for k in range(1, most + 1)]

    def _new_prompt_cases(self) -> list[_Case]:
        """A prompt that the prerequisite makes ready, beside any number of newly ready decoders."""
        prompt = _best(prompts(self._context, self._following, self._waiting_prompts()))
        if prompt is None:
            return []
        new, ready = self._new_decoders(), self._ready_decoders()
        room = self._following.shape.batch_capacity - 1
        most = min(len(new), self._graph.shape.batch_capacity - 1, room)
        return [_Case(new[:k], ready[: room - k], prompt, True) for k in range(most + 1)]

    def _waiting_prompts(self) -> list[Lane]:
        return [lane for lane in self._immediate if not lane.resident.prompt_whole]

    def _new_decoders(self) -> list[Use]:
        whole = [lane for lane in self._immediate if lane.resident.prompt_whole and lane.resident.left >= 1]
        return self._decoders(whole)

    def _ready_decoders(self) -> list[Use]:
        return self._decoders(self._context.decoding)

    def _decoders(self, lanes: list[Lane]) -> list[Use]:
        """The lanes' decode rows in the following graph, the best first. A ragged one divides P evenly."""
        shape = self._following.shape
        width = lane_width(shape)
        if is_ragged(shape):
            width = min(width, max(1, shape.target_rows // shape.batch_capacity))
        return best_decoders(
            [
                decode_use(self._context, self._following, lane, lane.resident.rows(width), self._horizon_ms)
                for lane in lanes
            ]
        )

    def _priced(self, case: _Case) -> Candidate:
        inference = [*case.new, *case.ready, *([case.prompt] if case.prompt else [])]
        prepared = [use.lane for use in case.new]
        if case.prompt is not None and case.prompt_is_new:
            prepared.append(case.prompt.lane)
        retired, extras = _fill(self._context, self._graph, self._stage, prepared, self._first_ms)
        sums = total_of(use.parts for use in (*inference, *retired))
        reliefs = reliefs_of(self._context, inference, self._horizon_ms)
        horizon_ms = self._horizon_ms if self._known else None
        scored = self._context.score(sums, horizon_ms, reliefs, len(retired), self._first_ms)
        return Candidate(
            self._graph,
            (*_state_uses(self._graph, prepared), *retired, *_state_uses(self._graph, extras)),
            self._known,
            self._horizon_ns,
            *scored,
            following=self._following,
            following_uses=tuple(inference),
            barred_by=case.barred_by,
        )


def _best(uses: list[Use]) -> Use | None:
    return next(iter(ranked_prompts(uses)), None)


def _fill(
    context: Context, graph: Graph, stage: list[Lane], prepared: list[Lane], duration_ms: float
) -> tuple[list[Use], list[Lane]]:
    """What takes the capacity that `prepared` leaves: terminal rows of a SNAPSHOT, then further lanes of the stage."""
    room = graph.shape.batch_capacity - len(prepared)
    retired = []
    if graph.shape.kind is GraphKind.SNAPSHOT:
        retired = terminal_uses(context, context.stages[Stage.TERMINAL], duration_ms)[:room]
    used = {lane.slot for lane in prepared}
    others = sorted((lane for lane in stage if lane.slot not in used), key=lambda lane: (lane.tick, lane.slot))
    return retired, others[: room - len(retired)]


def _snapshot_alone(context: Context, graph: Graph, stage: list[Lane]) -> Candidate:
    """The productive first stage by itself: terminal rows, then lanes of the stage, which earn nothing here."""
    retired, extras = _fill(context, graph, stage, [], graph.duration_ms)
    sums, reliefs = total_of(use.parts for use in retired), reliefs_of(context, (), graph.duration_ms)
    scored = context.score(sums, graph.duration_ms if graph.known else None, reliefs)
    uses = (*retired, *_state_uses(graph, extras))
    return Candidate(graph, uses, graph.known, graph.duration_ns, *scored)


def _state_uses(graph: Graph, lanes: list[Lane]) -> list[Use]:
    role = Role(STAGE[graph.shape.kind].value)
    return [Use(lane, role, 1, 0, 0, NOTHING) for lane in lanes]
