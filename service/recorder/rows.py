"""Journal records as rows, the same for both databases: tuples of every column of a table, in the table's order.

A plan or request row is built once, from all that this transaction knows about it. `Values` holds the few things that
the databases are handed differently; `checks` refuses afterwards what no column or not both databases can hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from msgspec.structs import astuple

from service.journal.records import (
    AlternativeRecord,
    LaneOutcome,
    PlanCommitted,
    PlanCompleted,
    PolicyApplied,
    RequestAdmitted,
    RequestArrived,
    RequestFinished,
    RunStarted,
    ShapeRecord,
)
from service.recorder.clock import RunClock
from service.recorder.errors import UnusableRecord
from service.recorder.values import Values
from service.store import tables

Row = tuple[Any, ...]

_SHAPE_AT = tables.plans.columns.keys().index("kind")
SHAPE_AND_REASON = slice(_SHAPE_AT, _SHAPE_AT + len(tables.SHAPE_COLUMNS) + 1)
"""Where a row of plans holds its shape and reason."""
_NO_OUTCOMES: tuple[Row, ...] = ((),) * len(LaneOutcome.__struct_fields__)
_MOST_TOKENS = 2**53
_MINUTE_NS = 60_000_000_000


class RowBuilder:
    """The rows of one run. `null` and `json` are what Values has."""

    def __init__(self, run_id: str, clock: RunClock, values: Values) -> None:
        self.run_id = run_id
        self._offset_ns = clock.wall_ns - clock.monotonic_ns
        self._time = values.time
        self.null = values.null
        self.json = values.json

    def at(self, ns: int) -> Any:
        """The stored time of a monotonic one. Raises OverflowError beyond year 9999."""
        return self._time(ns + self._offset_ns)

    def minute(self, ns: int) -> int:
        """The minute of a monotonic time: minutes since the epoch in UTC."""
        return (ns + self._offset_ns) // _MINUTE_NS

    def minute_start(self, minute: int) -> Any:
        """The stored time at which a minute begins."""
        return self._time(minute * _MINUTE_NS)

    def run_row(self, run: RunStarted) -> Row:
        """A row of engine_runs."""
        settings = {text(name): text(v) if isinstance(v, str) else v for name, v in run.settings.items()}
        return (
            run.run_id,
            self.at(run.monotonic_ns),
            self.null,
            self.null,
            text(run.host),
            text(run.version),
            text(run.model),
            text(run.device),
            run.catalog_digest,
            self.json(settings),
            run.wall_ns,
            run.monotonic_ns,
        )

    def application_row(self, record: PolicyApplied) -> Row:
        """A row of policy_applications."""
        return (record.version, self.run_id, record.fence, self.at(record.applied_ns))

    def request_row(
        self,
        record: RequestArrived,
        admitted: RequestAdmitted | None = None,
        first_output: Any = None,
        output_tokens: int = 0,
        finished: RequestFinished | None = None,
    ) -> Row:
        """A row of requests. `first_output` is a stored time; `output_tokens` are those of a request that runs."""
        null = self.null
        running = (null, output_tokens, null, null, 0, null, null, null, null)
        end = running if finished is None else self.request_end(finished)
        finished_at, tokens, reason, error, preemptions, queue_ms, prefill_ms, decode_ms, publish_ms = end
        return (
            self.run_id,
            record.request_id,
            text(record.model),
            self.at(record.arrived_ns),
            null if admitted is None else self.at(admitted.admitted_ns),
            null if first_output is None else first_output,
            finished_at,
            record.prompt_tokens,
            0 if admitted is None else admitted.cached_tokens,
            tokens,
            record.max_tokens,
            reason,
            error,
            preemptions,
            queue_ms,
            ms(record.tokenize_ns),
            prefill_ms,
            decode_ms,
            publish_ms,
            null if record.trace_id is None else record.trace_id,
            null if record.prefix_key is None else text(record.prefix_key),
        )

    def request_end(self, record: RequestFinished) -> Row:
        """What a finish sets, finished_at to publish_ms; what it says about the first output is not among it."""
        return (
            self.at(record.finished_ns),
            record.output_tokens,
            record.finish_reason,
            self.null if record.error is None else text(record.error),
            record.preemptions,
            ms(record.queue_ns),
            ms(record.prefill_ns),
            ms(record.decode_ns),
            ms(record.publish_ns),
        )

    def plan_row(self, plan: PlanCommitted, end: Row | None, deliveries: int) -> Row:
        """A row of plans; `end` as from plan_end, or None while it is in flight."""
        null, margin = self.null, plan.margin
        age_ns = plan.observation_age_ns
        if end is None:
            offered = sum([lane.offered_tokens for lane in plan.lanes])
            end = (null, null, null, "in_flight", null, null, null, 0, 0, offered, 0, 0)
        return (
            self.run_id,
            plan.fence,
            self.at(plan.committed_ns),
            plan.committed_ns,
            *shape_values(plan.shape),
            plan.reason,
            *self._score(plan),
            len(plan.lanes),
            plan.active_decoders,
            plan.logical_rows,
            plan.selected_cost_ns / 1e6,
            null if age_ns is None else age_ns / 1e6,
            plan.cost_state,
            null if margin is None or not isfinite(margin) else margin,  # may be missing, unlike other numbers
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
            *end,
            deliveries,
        )

    def plan_end(self, record: PlanCompleted, outcomes: Sequence[Row] | None = None) -> Row:
        """What a completion sets: started_ns to exposed_delivery_ms, then the sums of its lanes' tokens.

        `outcomes`: outcome_columns() of its lanes, where these are known. Raises UnusableRecord for output tokens that
        are no count, since sums are made of them.
        """
        _, prompt, committed, accepted, offered, drafts = outcomes or outcome_columns(record.lanes)
        output = sum(committed)
        checked_output(output, committed)
        return (
            record.started_ns,
            self.at(record.completed_ns),
            record.completed_ns,
            record.outcome,
            record.device_ns / 1e6,
            record.wall_ns / 1e6,
            record.exposed_delivery_ns / 1e6,
            sum(prompt),
            output,
            sum(offered),
            sum(drafts),
            sum(accepted),
        )

    def lane_rows(
        self, plan: PlanCommitted, outcomes: Sequence[LaneOutcome | None], published: Sequence[int | None]
    ) -> list[Row]:
        """Rows of plan_lanes. `outcomes` and `published` (ns) are those of each lane, None where not known yet."""
        run_id, fence, null = self.run_id, plan.fence, self.null
        rows = []
        for number, (lane, outcome, published_ns) in enumerate(zip(plan.lanes, outcomes, published, strict=True)):
            source = lane.proposal_source
            rows.append(
                (
                    run_id,
                    fence,
                    number,
                    lane.request_id,
                    lane.generation,
                    lane.role,
                    lane.prompt_tokens,
                    lane.query_length,
                    lane.ceiling,
                    null if source is None else source,
                    lane.token_price,
                    lane.delivery_price,
                    lane.age_ms,
                    lane.sigma_ms,
                    lane.expected_tokens,
                    lane.terminal_value,
                    lane.lane_value,
                    lane.offered_tokens if outcome is None else outcome.offered_tokens,
                    0 if outcome is None else outcome.committed_tokens,
                    0 if outcome is None else outcome.accepted_tokens,
                    0 if published_ns is None else 1,
                    null if published_ns is None else published_ns,
                )
            )
        return rows

    def alternative_row(self, fence: int, other: AlternativeRecord) -> Row:
        """A row of plan_alternatives."""
        return (
            self.run_id,
            fence,
            other.rank,
            *shape_values(other.shape),
            *self._score(other),
            other.active_rows,
            self.json(other.request_ids),
            other.selected_cost_ns / 1e6,
            other.cost_state,
            other.barred_by,
        )

    def _score(self, scored: PlanCommitted | AlternativeRecord) -> Row:
        token, delivery, age, terminal, wait_cost, horizon_ms, prompt_wait, decode_late = astuple(scored.parts)
        null, kind, shape = self.null, scored.following_kind, scored.following_shape
        return (
            scored.score_kind,
            scored.score,
            scored.log_scale,
            token,
            delivery,
            age,
            terminal,
            prompt_wait,
            decode_late,
            wait_cost,
            null if horizon_ms is None or not isfinite(horizon_ms) else horizon_ms,
            null if kind is None else kind,
            null if shape is None else shape,
        )


def outcome_columns(outcomes: Sequence[LaneOutcome]) -> tuple[Row, ...]:
    """The fields of LaneOutcome in their order, each with the values of all lanes."""
    return tuple(zip(*map(astuple, outcomes), strict=True)) if outcomes else _NO_OUTCOMES


def checked_output(largest_sum: int, committed_tokens: Sequence[int]) -> None:
    """Raises UnusableRecord for output tokens of lanes that are no counts, or have sums that are none."""
    if largest_sum > _MOST_TOKENS or min(committed_tokens, default=0) < 0:
        raise UnusableRecord(f"plans.output_tokens: {committed_tokens} are no counts of tokens")


def shape_values(shape: ShapeRecord) -> Row:
    """The shape columns' values, in their order; the flag as 0 or 1."""
    return (
        shape.kind,
        shape.batch_capacity,
        shape.draft_depth,
        shape.target_width,
        shape.target_rows,
        shape.prefill_capacity,
        1 if shape.speculation_enabled else 0,
        shape.allocation,
        shape.prompt_rows,
    )


def ms(ns: int) -> float:
    """Nanoseconds as milliseconds."""
    return ns / 1e6


def text(value: str) -> str:
    """Free text without NUL, which PostgreSQL cannot hold. Names with one are refused as they are."""
    return value.replace("\0", "\ufffd") if "\0" in value else value
