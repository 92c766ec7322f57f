"""The exhaustive oracle: every legal cohort of every shape, priced from the formula of S4.

Nothing of the fast path is imported: only the vocabulary (shapes, policy, score kinds). All values are exact
fractions of the floats that go in, rounded once per part, so the order of additions cannot matter.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from scheduler.policy import PolicyConfig
from scheduler.shapes import GraphKind, GraphShape


@dataclasses.dataclass(frozen=True, slots=True)
class OracleRequest:
    """One runnable request. Memories in ms per unit, 0 when missing; `age_ms` is None without a visible output."""

    request_id: str
    slot: int
    remaining_prompt: int
    token_memory: float
    delivery_memory: float
    age_ms: float | None
    last_served_tick: int


@dataclasses.dataclass(frozen=True, slots=True)
class OracleChoice:
    """A legal choice with its score; `known` says whether the score is a rate or undivided work."""

    shape: GraphShape
    request_ids: tuple[str, ...]
    known: bool
    score: float
    parts: tuple[float, float, float, float]
    key: tuple[object, ...]


def best_choice(
    shapes: Sequence[GraphShape],
    durations_ns: Sequence[int],
    requests: Sequence[OracleRequest],
    policy: PolicyConfig,
) -> OracleChoice | None:
    """The winner over all shapes and all non-empty cohorts; `durations_ns` holds 0 for an unknown graph."""
    choices = all_choices(shapes, durations_ns, requests, policy)
    return min(choices, key=lambda choice: choice.key, default=None)


def all_choices(
    shapes: Sequence[GraphShape],
    durations_ns: Sequence[int],
    requests: Sequence[OracleRequest],
    policy: PolicyConfig,
) -> Iterator[OracleChoice]:
    """Every legal choice: prefill of one request by any capacity, decode of any cohort that fits."""
    for position, shape in enumerate(shapes):
        for cohort in _cohorts(shape, requests):
            if not _forbidden(shapes, durations_ns, position, cohort):
                yield _priced(shapes, durations_ns, position, cohort, requests, policy)


def _cohorts(shape: GraphShape, requests: Sequence[OracleRequest]) -> Iterator[tuple[OracleRequest, ...]]:
    if shape.kind is GraphKind.PREFILL:
        yield from ((r,) for r in requests if r.remaining_prompt > 0)
    elif shape.kind is GraphKind.DECODE:
        decoding = [r for r in requests if r.remaining_prompt == 0]
        for size in range(1, min(shape.batch_capacity, len(decoding)) + 1):
            yield from itertools.combinations(decoding, size)


def _forbidden(
    shapes: Sequence[GraphShape], durations_ns: Sequence[int], position: int, cohort: tuple[OracleRequest, ...]
) -> bool:
    """S4's padding pruning for decode, and S6's exclusion of unmeasured larger prefills."""
    shape = shapes[position]
    for other in shapes:
        if other.kind is not shape.kind:
            continue
        if shape.kind is GraphKind.DECODE and len(cohort) <= other.batch_capacity < shape.batch_capacity:
            return True
        if shape.kind is GraphKind.PREFILL and durations_ns[position] == 0:
            same_work = cohort[0].remaining_prompt <= other.prefill_capacity < shape.prefill_capacity
            if same_work:
                return True
    return False


def _priced(
    shapes: Sequence[GraphShape],
    durations_ns: Sequence[int],
    position: int,
    cohort: tuple[OracleRequest, ...],
    requests: Sequence[OracleRequest],
    policy: PolicyConfig,
) -> OracleChoice:
    shape, duration_ns = shapes[position], durations_ns[position]
    horizon = duration_ns / 1e6
    decoders = [r for r in requests if r.age_ms is not None]
    sigma = _sigma(shapes, durations_ns, len(decoders))
    token, delivery, relief, logical_rows = [], [], [], 0
    for r in cohort:
        price = policy.token_fairness * r.token_memory
        if shape.kind is GraphKind.PREFILL:
            consumed = min(shape.prefill_capacity, r.remaining_prompt)
            token.append((1.0 + price) * consumed)
            output = consumed == r.remaining_prompt
            logical_rows += consumed
        else:
            output = True
            logical_rows += 1
        if output:
            token.append(policy.output_token_value + price)
            delivery.append(policy.delivery_fairness * r.delivery_memory)
        if r.age_ms is not None:
            relief.append(policy.decode_age_price * sigma * (r.age_ms + horizon))
    parts = (math.fsum(token), math.fsum(delivery), math.fsum(relief))
    wait_cost = horizon / 2.0 * math.fsum(policy.decode_age_price for _ in decoders)
    work = parts[0] + parts[1] + parts[2]
    score = work / horizon - wait_cost if duration_ns else work
    key = (
        duration_ns != 0,
        -score,
        duration_ns,
        -len(cohort),
        tuple(sorted(r.last_served_tick for r in cohort)),
        shape.physical_rows - logical_rows,
        shape.physical_rows,
        position,
        tuple(r.slot for r in cohort),
    )
    return OracleChoice(shape, tuple(r.request_id for r in cohort), duration_ns != 0, score, (*parts, wait_cost), key)


def _sigma(shapes: Sequence[GraphShape], durations_ns: Sequence[int], streams: int) -> float:
    best: tuple[float, float] | None = None
    for shape, duration_ns in zip(shapes, durations_ns, strict=True):
        if shape.kind is GraphKind.DECODE and duration_ns and streams:
            rows = min(shape.batch_capacity, streams)
            per_stream = duration_ns / 1e6 / rows
            if best is None or per_stream < best[0]:
                best = (per_stream, streams * (duration_ns / 1e6) / rows)
    return best[1] if best else 0.0
