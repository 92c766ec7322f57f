"""Journal records as rows: every column of the table, in the table's order. Times are those of the run's clock.

`At` turns a monotonic time into what the dialect stores: text on SQLite, an aware datetime on PostgreSQL.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from service.journal.records import (
    AlternativeRecord,
    LaneRecord,
    PartsRecord,
    PlanCommitted,
    PolicyApplied,
    RequestArrived,
    RunStarted,
    ShapeRecord,
)
from service.recorder.errors import UnusableRecord
from service.store import tables

At = Callable[[int], Any]
Row = list[Any]

REQUEST_COLUMN = {column.name: index for index, column in enumerate(tables.requests.columns)}
PLAN_COLUMN = {column.name: index for index, column in enumerate(tables.plans.columns)}
LANE_COLUMN = {column.name: index for index, column in enumerate(tables.plan_lanes.columns)}


def ms(ns: int) -> float:
    """Nanoseconds as milliseconds."""
    return ns / 1e6


def text(value: str | None) -> str | None:
    """The text without NUL, which PostgreSQL cannot hold."""
    return value.replace("\0", "\ufffd") if value is not None and "\0" in value else value


def run_row(run: RunStarted, at: At) -> Row:
    """A row of engine_runs."""
    settings = {name: _finite_or_none(v) if isinstance(v, float) else v for name, v in run.settings.items()}
    return [
        run.run_id,
        at(run.monotonic_ns),
        None,
        None,
        text(run.host),
        text(run.version),
        text(run.model),
        text(run.device),
        run.catalog_digest,
        json.dumps(settings).replace("\\u0000", "\\ufffd"),
        run.wall_ns,
        run.monotonic_ns,
    ]


def application_row(run_id: str, record: PolicyApplied, at: At) -> Row:
    """A row of policy_applications."""
    return [record.version, run_id, record.fence, at(record.applied_ns)]


def request_row(run_id: str, record: RequestArrived, at: At) -> Row:
    """A row of requests as of its arrival."""
    return [
        run_id,
        record.request_id,
        text(record.model),
        at(record.arrived_ns),
        None,
        None,
        None,
        record.prompt_tokens,
        0,
        0,
        record.max_tokens,
        None,
        None,
        0,
        None,
        ms(record.tokenize_ns),
        None,
        None,
        None,
        record.trace_id,
        text(record.prefix_key),
    ]


def plan_row(run_id: str, plan: PlanCommitted, at: At) -> Row:
    """A row of plans as of its commit. Raises UnusableRecord."""
    require_finite(
        plan.score,
        plan.log_scale,
        plan.exploration_credit_ms,
        plan.timing_credit_ms,
        plan.timing_spent_ms,
        plan.acceptance_credit_ms,
        plan.acceptance_spent_ms,
        plan.timing_ordinary_ms,
        plan.acceptance_ordinary_ms,
        plan.discovery_ms,
        plan.plan_us,
    )
    age_ns = plan.observation_age_ns
    return [
        run_id,
        plan.fence,
        at(plan.committed_ns),
        plan.committed_ns,
        *_shape(plan.shape),
        plan.reason,
        *_score(plan.score_kind, plan.score, plan.log_scale, plan.parts),
        plan.following_kind,
        plan.following_shape,
        len(plan.lanes),
        plan.active_decoders,
        plan.logical_rows,
        ms(plan.selected_cost_ns),
        None if age_ns is None else ms(age_ns),
        plan.cost_state,
        _finite_or_none(plan.margin),
        plan.candidates,
        plan.exploration_credit_ms,
        plan.timing_credit_ms,
        plan.timing_spent_ms,
        plan.acceptance_credit_ms,
        plan.acceptance_spent_ms,
        plan.timing_ordinary_ms,
        plan.acceptance_ordinary_ms,
        plan.discovery_ms,
        plan.queue_depth,
        plan.frame_slot,
        plan.policy_version,
        plan.plan_us,
        None,
        None,
        None,
        "in_flight",
        None,
        None,
        None,
        0,
        0,
        sum([lane.offered_tokens for lane in plan.lanes]),
        0,
        0,
        0,
    ]


def lane_row(run_id: str, fence: int, number: int, lane: LaneRecord) -> Row:
    """A row of plan_lanes as of the commit. Raises UnusableRecord."""
    require_finite(
        lane.token_price,
        lane.delivery_price,
        lane.age_ms,
        lane.sigma_ms,
        lane.expected_tokens,
        lane.terminal_value,
        lane.lane_value,
    )
    return [
        run_id,
        fence,
        number,
        lane.request_id,
        lane.generation,
        lane.role,
        lane.prompt_tokens,
        lane.query_length,
        lane.ceiling,
        lane.proposal_source,
        lane.token_price,
        lane.delivery_price,
        lane.age_ms,
        lane.sigma_ms,
        lane.expected_tokens,
        lane.terminal_value,
        lane.lane_value,
        lane.offered_tokens,
        0,
        0,
        False,
        None,
    ]


def alternative_row(run_id: str, fence: int, other: AlternativeRecord) -> Row:
    """A row of plan_alternatives. Raises UnusableRecord."""
    require_finite(other.score, other.log_scale)
    return [
        run_id,
        fence,
        other.rank,
        *_shape(other.shape),
        *_score(other.score_kind, other.score, other.log_scale, other.parts),
        other.following_kind,
        other.following_shape,
        other.active_rows,
        json.dumps(other.request_ids),
        ms(other.selected_cost_ns),
        other.cost_state,
        other.barred_by,
    ]


def require_finite(*values: float) -> None:
    """Raises UnusableRecord for NaN and infinity: no query could compare them, and JSON cannot hold them."""
    total = sum(values)
    if total - total != 0.0 and not all(map(math.isfinite, values)):  # a finite sum proves finite terms, cheaply
        raise UnusableRecord(f"a number is not finite: {next(v for v in values if not math.isfinite(v))}")


def _finite_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _shape(shape: ShapeRecord) -> tuple[Any, ...]:
    return (
        shape.kind,
        shape.batch_capacity,
        shape.draft_depth,
        shape.target_width,
        shape.target_rows,
        shape.prefill_capacity,
        shape.speculation_enabled,
        shape.allocation,
    )


def _score(kind: str, score: float, log_scale: float, parts: PartsRecord) -> tuple[Any, ...]:
    require_finite(parts.token_value, parts.delivery_value, parts.age_relief, parts.terminal_relief, parts.wait_cost)
    return (
        kind,
        score,
        log_scale,
        parts.token_value,
        parts.delivery_value,
        parts.age_relief,
        parts.terminal_relief,
        parts.wait_cost,
        _finite_or_none(parts.horizon_ms),
    )
