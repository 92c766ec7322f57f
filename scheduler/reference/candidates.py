"""Candidates: every prepared graph with its best cohort, priced (S4, S6)."""

from __future__ import annotations

import dataclasses
import heapq

from scheduler.plans import BarredBy, CostState, PlanLane, PlanParts, Role, ScoreKind
from scheduler.reference.catalog import Catalog, CostEstimate
from scheduler.reference.value import DecisionContext, LaneSums, LaneView, known_parts, unknown_parts
from scheduler.shapes import GraphKind, GraphShape


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """One shape with one cohort. `lanes` are in slot order, `consumed` their prompt tokens (0 for decode).

    `barred_by` is not NONE for a candidate that is recorded but may not be chosen.
    """

    shape: GraphShape
    position: int
    lanes: tuple[LaneView, ...]
    consumed: tuple[int, ...]
    estimate: CostEstimate
    score_kind: ScoreKind
    score: float
    parts: PlanParts
    barred_by: BarredBy

    @property
    def eligible(self) -> bool:
        """It may be chosen."""
        return self.barred_by is BarredBy.NONE

    @property
    def logical_rows(self) -> int:
        """Token rows that carry a request's work."""
        return sum(self.consumed) + sum(1 for c in self.consumed if c == 0)

    @property
    def cohort(self) -> tuple[str, ...]:
        """The served requests' ids, in slot order."""
        return tuple(lane.resident.spec.request_id for lane in self.lanes)

    def order(self) -> tuple[object, ...]:
        """The total order among eligible candidates; the smallest wins.

        Unknown before known, then the score; exact ties by shorter known duration, more served requests, least
        recently used requests, less padding, smaller physical size, and the catalog's order.
        """
        ticks = tuple(sorted(lane.resident.last_served_tick for lane in self.lanes))
        slots = tuple(lane.resident.handle.slot for lane in self.lanes)
        padding = self.shape.physical_rows - self.logical_rows
        return (
            self.score_kind is ScoreKind.RATE,
            -self.score,
            self.estimate.duration_ns,
            -len(self.lanes),
            ticks,
            padding,
            self.shape.physical_rows,
            self.position,
            slots,
        )


def enumerate_candidates(catalog: Catalog, context: DecisionContext) -> list[Candidate]:
    """Every candidate of this decision, the barred ones included, in catalog order."""
    prefilling = [lane for lane in context.lanes if lane.resident.prefilling]
    decoding = [lane for lane in context.lanes if not lane.resident.prefilling]
    return _prefill_candidates(catalog, prefilling, context) + _decode_candidates(catalog, decoding, context)


def _prefill_candidates(catalog: Catalog, lanes: list[LaneView], context: DecisionContext) -> list[Candidate]:
    shapes = catalog.of_kind(GraphKind.PREFILL)
    estimates = [catalog.estimate(shape, context.now_ns) for shape in shapes]
    capacities = sorted({shape.prefill_capacity for shape in shapes})
    found = []
    for lane in lanes:
        remaining = lane.resident.remaining_prompt
        covering = next((c for c in capacities if c >= remaining), None)
        for shape, estimate in zip(shapes, estimates, strict=True):
            # S6: an unmeasured graph is not explored where a smaller one consumes the same tokens. Measured
            # graphs compete by their costs, whatever their size.
            duplicate = covering is not None and shape.prefill_capacity > covering
            barred = BarredBy.UNMEASURED if duplicate and not estimate.known else BarredBy.NONE
            found.append(_prefill_candidate(catalog, shape, estimate, lane, barred, context))
    return found


def _prefill_candidate(
    catalog: Catalog,
    shape: GraphShape,
    estimate: CostEstimate,
    lane: LaneView,
    barred: BarredBy,
    context: DecisionContext,
) -> Candidate:
    remaining = lane.resident.remaining_prompt
    consumed = min(shape.prefill_capacity, remaining)
    values = LaneSums.of_prefill(lane, consumed, consumed == remaining, context)
    return _priced(catalog, shape, estimate, (lane,), (consumed,), values, barred, context)


def _decode_candidates(catalog: Catalog, lanes: list[LaneView], context: DecisionContext) -> list[Candidate]:
    if not lanes:
        return []
    shapes = catalog.of_kind(GraphKind.DECODE)
    # S4: padding pruning. Two shapes that both hold every decoder serve the same cohort, so only the smaller
    # competes; timing cannot make redundant padding preferable.
    covering = min((s.batch_capacity for s in shapes if s.batch_capacity >= len(lanes)), default=None)
    found = []
    for shape in shapes:
        estimate = catalog.estimate(shape, context.now_ns)
        horizon_ms = estimate.duration_ns / 1e6
        cohort = best_cohort(lanes, shape.batch_capacity, horizon_ms, context)
        values = LaneSums.of_decoders(cohort, horizon_ms, context)
        barred = BarredBy.PRUNED if covering is not None and shape.batch_capacity > covering else BarredBy.NONE
        found.append(_priced(catalog, shape, estimate, tuple(cohort), (0,) * len(cohort), values, barred, context))
    return found


def best_cohort(lanes: list[LaneView], rows: int, horizon_ms: float, context: DecisionContext) -> list[LaneView]:
    """The `rows` lanes of highest additive value at this horizon, in slot order (S4).

    For a fixed shape, duration and waiting cost do not depend on who is served, so the best cohort is made of the
    highest lane values. Values are never negative, so rows are left empty only when lanes run out. Ties prefer
    the least recently served, then the lower slot.
    """
    if len(lanes) <= rows:
        return lanes
    chosen = heapq.nsmallest(
        rows,
        lanes,
        key=lambda lane: (
            -lane.decode_value(horizon_ms, context),
            lane.resident.last_served_tick,
            lane.resident.handle.slot,
        ),
    )
    return sorted(chosen, key=lambda lane: lane.resident.handle.slot)


def _priced(
    catalog: Catalog,
    shape: GraphShape,
    estimate: CostEstimate,
    lanes: tuple[LaneView, ...],
    consumed: tuple[int, ...],
    values: LaneSums,
    barred: BarredBy,
    context: DecisionContext,
) -> Candidate:
    if estimate.state is CostState.UNKNOWN:
        kind = ScoreKind.WORK
        score, parts = unknown_parts(values)
    else:
        kind = ScoreKind.RATE
        score, parts = known_parts(values, estimate.duration_ns / 1e6, context)
    return Candidate(shape, catalog.position(shape), lanes, consumed, estimate, kind, score, parts, barred)


def plan_lane(candidate: Candidate, index: int, context: DecisionContext) -> PlanLane:
    """The frozen record of one lane of the chosen candidate."""
    lane, consumed = candidate.lanes[index], candidate.consumed[index]
    horizon_ms = candidate.estimate.duration_ns / 1e6
    if consumed:
        finishes = consumed == lane.resident.remaining_prompt
        sums = LaneSums.of_prefill(lane, consumed, finishes, context)
        value, role, expected = sums.token + sums.delivery, Role.PREFILL, int(finishes)
    else:
        value, role, expected = lane.decode_value(horizon_ms, context), Role.DECODE, 1
    return PlanLane(
        handle=lane.resident.handle,
        request_id=lane.resident.spec.request_id,
        role=role,
        query_length=consumed or 1,
        ceiling=expected,
        prompt_tokens=consumed,
        expected_tokens=float(expected),
        token_price=lane.token_price,
        delivery_price=lane.delivery_price,
        age_ms=lane.age_ms,
        sigma_ms=lane.sigma_ms,
        value=value,
    )
