"""Candidates: every usable prepared graph with its best cohort, priced, in catalog order (specification S4, S5)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

from scheduler.plans import BarredBy, CostState, PlanParts, Role, ScoreKind
from scheduler.reference.decision import Graph
from scheduler.reference.extents import STATE_KINDS, physical_rows
from scheduler.reference.value import Context, Lane, Parts, Reliefs, total_of
from scheduler.shapes import GraphKind


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """One lane's share of a graph.

    `rows`: allocated target rows of a decoding lane, 1 of a state lane, 0 of a prompt. `ceiling`: output tokens that
    it may commit at most. `parts`: its contribution to the score, 0 where another graph of a pair earns it.
    """

    lane: Lane
    role: Role
    rows: int
    prompt_tokens: int
    ceiling: int
    parts: Parts


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One shape (a pair of them, with `following`) and one cohort.

    `uses`: lanes of the submitted graph, `following_uses` of the following one. `horizon_ns`: 0 when a duration is
    unknown, and the score is undivided work then. `priced`: cohorts that were priced to find this one.
    """

    graph: Graph
    uses: tuple[Use, ...]
    known: bool
    horizon_ns: int
    score: float
    parts: PlanParts
    following: Graph | None = None
    following_uses: tuple[Use, ...] = ()
    barred_by: BarredBy = BarredBy.NONE
    priced: int = 1

    @property
    def eligible(self) -> bool:
        """It may be chosen."""
        return self.barred_by is BarredBy.NONE

    @property
    def score_kind(self) -> ScoreKind:
        """What the score is."""
        return ScoreKind.RATE if self.known else ScoreKind.WORK

    @property
    def in_slot_order(self) -> tuple[Use, ...]:
        """The submitted graph's lanes by slot."""
        return tuple(sorted(self.uses, key=lambda use: use.lane.slot))

    @property
    def logical_rows(self) -> int:
        """Rows of the submitted graph that carry a request's work."""
        return sum(use.rows + use.prompt_tokens for use in self.uses)

    @property
    def needs_empty(self) -> bool:
        """It may be submitted only when nothing is in flight (S10)."""
        queueable = self.graph.shape.kind in (GraphKind.DECODE, GraphKind.SPECULATIVE)
        waits = any(use.lane.resident.in_flight > 0 and use.lane.resident.feedback for use in self.uses)
        return not queueable or self.graph.state is not CostState.FRESH or waits

    @functools.cached_property
    def order(self) -> tuple[object, ...]:
        """The total order among eligible candidates (S4); the smallest wins."""
        served = {use.lane.slot: use.lane.tick for use in (*self.uses, *self.following_uses)}
        physical = physical_rows(self.graph.shape)
        return (
            self.known,
            -self.score,
            self.horizon_ns,
            -len(served),
            sorted(served.values()),
            physical - self.logical_rows,
            physical,
            self.graph.position,
            self.following.position if self.following else -1,
            sorted(served),
        )


def single(
    context: Context, graph: Graph, uses: list[Use], barred_by: BarredBy = BarredBy.NONE, priced: int = 1
) -> Candidate:
    """A candidate of one graph, its lanes' parts summed in the given order; barred when it needs too many pages."""
    sums, reliefs = total_of(use.parts for use in uses), reliefs_of(context, uses, graph.duration_ms)
    scored = context.score(sums, graph.duration_ms if graph.known else None, reliefs)
    if barred_by is BarredBy.NONE and _new_pages_missing(context, graph, uses):
        barred_by = BarredBy.PAGES
    return Candidate(graph, tuple(uses), graph.known, graph.duration_ns, *scored, barred_by=barred_by, priced=priced)


def reliefs_of(context: Context, uses: Iterable[Use], horizon_ms: float) -> Reliefs:
    """What the candidate spares prompts that wait and streams that are late. `uses`: its lanes of inference graphs."""
    uses = tuple(uses)
    answered = {use.lane.slot for use in uses if use.role is Role.DECODE}
    read = {use.lane.slot: use.prompt_tokens for use in uses if use.role is Role.PREFILL}
    return Reliefs(context.waiting.relief(read), context.lateness.relief(answered, horizon_ms))


def _new_pages_missing(context: Context, graph: Graph, uses: list[Use]) -> bool:
    """The cohort needs more new pages than are free (S4). State graphs need none."""
    decision = context.decision
    if decision.free_pages is None or graph.shape.kind in STATE_KINDS:
        return False
    needed = 0
    for use in uses:
        resident = use.lane.resident
        if use.role is Role.PREFILL:
            extent = resident.consumed + use.prompt_tokens + 1
        else:
            position = resident.consumed + resident.emitted + resident.pending
            extent = position + use.ceiling + graph.shape.draft_depth
        needed += max(0, -(-extent // decision.page_tokens) - resident.pages_held)
    return needed > decision.free_pages


def decode_use(context: Context, graph: Graph, lane: Lane, rows: int, horizon_ms: float) -> Use:
    """A decoding lane with `rows` rows, which are also its ceiling."""
    return Use(lane, Role.DECODE, rows, 0, rows, context.decode_parts(lane, graph, rows, horizon_ms))


def prompt_use(context: Context, lane: Lane, work: int) -> Use:
    """A prompt lane that consumes `work` tokens."""
    ceiling = int(lane.resident.finishes(work))
    return Use(lane, Role.PREFILL, 0, work, ceiling, context.prompt_parts(lane, work))


def terminal_uses(context: Context, lanes: list[Lane], duration_ms: float) -> list[Use]:
    """Terminal rows, the best first: value, least recently served, slot."""
    uses = [Use(lane, Role.TERMINAL, 1, 0, 0, context.terminal_parts(lane, duration_ms)) for lane in lanes]
    return sorted(uses, key=lambda use: (-use.parts.value, use.lane.tick, use.lane.slot))


def best_decoders(uses: list[Use]) -> list[Use]:
    """Decoding lanes, the best first: value, least recently served, more rows, slot."""
    return sorted(uses, key=lambda use: (-use.parts.value, use.lane.tick, -use.rows, use.lane.slot))


def ranked_prompts(uses: list[Use]) -> list[Use]:
    """Prompt lanes, the best first: value, least recently served, more work, slot."""
    return sorted(uses, key=lambda use: (-use.parts.value, use.lane.tick, -use.prompt_tokens, use.lane.slot))


def prompts(context: Context, graph: Graph, lanes: list[Lane]) -> list[Use]:
    """Lanes among `lanes` with prompt tokens that the graph can consume; scored prompts on scored graphs only."""
    scored = graph.shape.kind is GraphKind.SCORED_PREFILL
    found = []
    for lane in lanes:
        work = lane.resident.work(graph.shape.prefill_capacity)
        if lane.resident.spec.scored is scored and work > 0:
            found.append(prompt_use(context, lane, work))
    return found


def unmeasured_duplicate(context: Context, graph: Graph, use: Use) -> bool:
    """S6: an unmeasured prefill graph is not explored where a smaller one of its kind consumes the same tokens."""
    if graph.known:
        return False
    shape = graph.shape
    smaller = [
        other.shape.prefill_capacity
        for other in context.decision.graphs
        if other.shape.kind is shape.kind and other.shape.prefill_capacity < shape.prefill_capacity
    ]
    return any(use.lane.resident.work(c) == use.prompt_tokens for c in smaller)
