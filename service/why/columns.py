"""A plan as the columns that the store keeps of a decision, and in what two of them differ.

The plain way from a plan to its rows, without the journal and the recorder: what it finds equal went through both
unharmed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.plans import Alternative, PlanLane, PlanParts, ScheduledPlan
from scheduler.shapes import GraphShape
from service.store.queries import PlanDetail

Row = dict[str, Any]


def plan_columns(plan: ScheduledPlan) -> Row:
    """What the row of `plans` says of the decision itself."""
    age_ns, ledgers = plan.observation_age_ns, plan.ledgers
    return {
        **_shape(plan.shape),
        "reason": plan.reason.value,
        **_score(plan.score_kind.value, plan.score, plan.log_scale, plan.parts, plan.following),
        "active_rows": len(plan.lanes),
        "active_decoders": plan.active_decoders,
        "logical_rows": plan.logical_rows,
        "selected_cost_ms": plan.selected_cost_ns / 1e6,
        "observation_age_ms": None if age_ns is None else age_ns / 1e6,
        "cost_state": plan.cost_state.value,
        "margin": _finite(plan.margin),
        "candidates": plan.candidates,
        "exploration_credit_ms": plan.exploration_credit_ns / 1e6,
        "timing_credit_ms": ledgers.timing_credit_ms,
        "timing_spent_ms": ledgers.timing_spent_ms,
        "acceptance_credit_ms": ledgers.acceptance_credit_ms,
        "acceptance_spent_ms": ledgers.acceptance_spent_ms,
        "timing_ordinary_ms": ledgers.timing_ordinary_ms,
        "acceptance_ordinary_ms": ledgers.acceptance_ordinary_ms,
        "discovery_ms": ledgers.discovery_ms,
        "queue_depth": plan.queue_depth,
    }


def lane_columns(lane: PlanLane) -> Row:
    """What a row of `plan_lanes` says of the decision."""
    return {
        "request_id": lane.request_id,
        "generation": lane.handle.generation,
        "role": lane.role.value,
        "prompt_tokens": lane.prompt_tokens,
        "query_length": lane.query_length,
        "ceiling": lane.ceiling,
        "proposal_source": lane.proposal_source,
        "token_price": lane.token_price,
        "delivery_price": lane.delivery_price,
        "age_ms": lane.age_ms,
        "sigma_ms": lane.sigma_ms,
        "expected_tokens": lane.expected_tokens,
        "terminal_value": lane.terminal_value,
        "lane_value": lane.value,
    }


def alternative_columns(plan: ScheduledPlan, other: Alternative) -> Row:
    """A row of `plan_alternatives`."""
    return {
        **_shape(other.shape),
        **_score(other.score_kind.value, other.score, plan.log_scale, other.parts, other.following),
        "active_rows": other.active_rows,
        "request_ids": list(other.request_ids),
        "selected_cost_ms": other.selected_cost_ns / 1e6,
        "cost_state": other.cost_state.value,
        "barred_by": other.barred_by.value,
    }


def decision_differences(plan: ScheduledPlan | None, recorded: PlanDetail) -> list[str]:
    """In what a replayed plan differs from a recorded one, one line for each number; empty when it is the same."""
    if plan is None:
        return ["the replay finds nothing to run"]
    found = _differences("", plan_columns(plan), recorded.plan)
    found += _list_differences("lane", list(map(lane_columns, plan.lanes)), recorded.lanes)
    others = [alternative_columns(plan, other) for other in plan.alternatives]
    return found + _list_differences("runner-up", others, recorded.alternatives, first=1)


def _list_differences(name: str, mine: Sequence[Row], theirs: Sequence[Row], first: int = 0) -> list[str]:
    if len(mine) != len(theirs):
        return [f"{name}s: {len(mine)} replayed, {len(theirs)} recorded"]
    pairs = enumerate(zip(mine, theirs, strict=True), start=first)
    return [line for number, (one, two) in pairs for line in _differences(f"{name} {number} ", one, two)]


def _differences(prefix: str, mine: Row, theirs: Mapping[str, Any]) -> list[str]:
    """The same number may be kept as a whole one, and SQLite has no minus zero; everything else counts."""
    return [
        f"{prefix}{name}: {value!r} replayed, {theirs[name]!r} recorded"
        for name, value in mine.items()
        if value != theirs[name]
    ]


def _shape(shape: GraphShape) -> Row:
    return {
        "kind": shape.kind.value,
        "batch_capacity": shape.batch_capacity,
        "draft_depth": shape.draft_depth,
        "target_width": shape.target_width,
        "target_rows": shape.target_rows,
        "prefill_capacity": shape.prefill_capacity,
        "speculation_enabled": shape.speculation_enabled,
        "allocation": shape.allocation.value,
        "prompt_rows": shape.prompt_rows,
    }


def _score(kind: str, score: float, log_scale: float, parts: PlanParts, following: GraphShape | None) -> Row:
    return {
        "score_kind": kind,
        "value_rate": score,
        "log_scale": log_scale,
        "token_value": parts.token_value,
        "delivery_value": parts.delivery_value,
        "age_relief": parts.age_relief,
        "terminal_relief": parts.terminal_relief,
        "prompt_wait_relief": parts.prompt_wait_relief,
        "decode_late_relief": parts.decode_late_relief,
        "wait_cost": parts.wait_cost,
        "score_horizon_ms": _finite(parts.horizon_ms),
        "following_kind": None if following is None else following.kind.value,
        "following_shape": None if following is None else following.label,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
