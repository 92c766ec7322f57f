"""Journal records as OpenTelemetry spans: OTLP protobuf messages filled directly, without the SDK.

Ids follow from run, fence and request id alone, so that sending a span twice sends the same span. Building raises
ValueError or TypeError for what OTLP cannot hold, such as an int beyond 64 bits; nothing is turned into text.
Attributes are named as SCHEMA_URL has them: the last version of the semantic conventions that defines the GenAI ones,
which have a repository of their own since, with changes that no released schema describes.
"""

from __future__ import annotations

import enum
import importlib.metadata
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from service.journal.records import (
    PlanCommitted,
    PlanCompleted,
    PolicyApplied,
    RequestAdmitted,
    RequestArrived,
    RequestFinished,
)
from service.telemetry.span_ids import SpanIds as SpanIds
from service.telemetry.span_ids import id_bytes
from service.telemetry.span_ids import plan_ids as plan_ids
from service.telemetry.span_ids import policy_ids as policy_ids
from service.telemetry.span_ids import request_ids as request_ids

SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
_SAMPLED = 0x01
LOCAL = 0x100 | _SAMPLED
"""Span flags: what is sent was sampled; the parent or the linked span is known, and not in another process."""
_REMOTE_PARENT = 0x200 | LOCAL
PLAN_ATTRIBUTES_KEPT = 9
"""So many attributes of a plan come first, and stay whatever limits are set: its kind, reason, fence and shape."""

Wall = Callable[[int], int]
"""Unix time in ns of a run's monotonic ns."""
Value = bool | int | float | str | enum.Enum | Iterable[str]


def _version() -> str:
    try:
        return importlib.metadata.version("helios-serving")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


SCOPE = InstrumentationScope(name="helios", version=_version())


class RequestStory(NamedTuple):
    """What is known of one request until it finished or was lost. `last_ns`: the end of a lost one."""

    arrived: RequestArrived
    admitted: RequestAdmitted | None = None
    first_output_ns: int | None = None


def attribute(name: str, value: Value) -> KeyValue:
    """One typed attribute: bool, int, float, str, or a list of str. Enums by value, numpy scalars as numbers.

    Raises TypeError for other types and ValueError for an int beyond 64 bits.
    """
    return KeyValue(key=name, value=_any_value(value))


def plan_span(
    run_id: str, plan: PlanCommitted, done: PlanCompleted | None, ended_ns: int, links: Iterable[SpanIds], wall: Wall
) -> Span:
    """`helios.plan`, commit to completion; without `done` the plan was lost and the span ends at `ended_ns`.

    `service.telemetry.plan_encoding` makes the same in a fraction of the time.
    """
    ids = plan_ids(run_id, plan.fence)
    outcome = done.outcome if done is not None else "lost"
    return Span(
        trace_id=ids.trace_id,
        span_id=ids.span_id,
        name="helios.plan",
        flags=LOCAL,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=wall(plan.committed_ns),
        end_time_unix_nano=wall(max(plan.committed_ns, done.completed_ns if done is not None else ended_ns)),
        attributes=_attributes(_plan_values(plan, done, outcome)),
        links=[Span.Link(trace_id=link.trace_id, span_id=link.span_id, flags=LOCAL) for link in links],
        status=None if outcome == "completed" else Status(code=Status.STATUS_CODE_ERROR, message=outcome),
    )


def request_name(arrived: RequestArrived) -> str:
    """The name of the request's span, such as `chat smollm2-135m-instruct`."""
    return f"{arrived.operation} {arrived.model}"


def request_span(run_id: str, story: RequestStory, finished: RequestFinished | None, ended_ns: int, wall: Wall) -> Span:
    """A GenAI server span, arrival to finish; without `finished` the engine was lost at `ended_ns`."""
    arrived = story.arrived
    ids = request_ids(run_id, arrived.request_id, arrived.trace_id)
    parent = id_bytes(arrived.parent_span_id, 8) if id_bytes(arrived.trace_id, 16) is not None else None
    end_ns = max(arrived.arrived_ns, finished.finished_ns if finished is not None else ended_ns)
    reason = finished.finish_reason if finished is not None else "error"
    first_ns = (finished.first_output_ns if finished is not None else None) or story.first_output_ns
    events = [] if first_ns is None else [_event("helios.first_output", wall(first_ns), {})]
    events.append(_event("helios.finish", wall(end_ns), {"helios.request.finish_reason": reason}))
    error = (finished.error if finished is not None else "engine lost") or reason
    return Span(
        trace_id=ids.trace_id,
        span_id=ids.span_id,
        parent_span_id=parent or b"",
        flags=_REMOTE_PARENT if parent is not None else LOCAL,
        trace_state=(arrived.trace_state or "") if parent is not None else "",
        name=request_name(arrived),
        kind=Span.SPAN_KIND_SERVER,
        start_time_unix_nano=wall(arrived.arrived_ns),
        end_time_unix_nano=wall(end_ns),
        attributes=_attributes(_request_values(story, finished, reason, first_ns)),
        events=events,
        status=Status(code=Status.STATUS_CODE_ERROR, message=error) if reason == "error" else None,
    )


def policy_span(run_id: str, applied: PolicyApplied, wall: Wall) -> Span:
    """`helios.policy_change`: a moment, with every coefficient."""
    ids = policy_ids(run_id, applied.version, applied.fence)
    values: dict[str, Value] = {"helios.policy.version": applied.version, "helios.policy.fence": applied.fence}
    values.update({f"helios.policy.{name}": value for name, value in applied.coefficients.items()})
    return Span(
        trace_id=ids.trace_id,
        span_id=ids.span_id,
        name="helios.policy_change",
        flags=LOCAL,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=wall(applied.applied_ns),
        end_time_unix_nano=wall(applied.applied_ns),
        attributes=_attributes(values),
    )


def about_run(version: str, host: str, model: str, device: str) -> dict[str, str]:
    """Resource attributes that describe a run."""
    return {"service.version": version, "host.name": host, "helios.model": model, "helios.device": device}


def resource(run_id: str, about: Mapping[str, str], environment: Mapping[str, Value] | None = None) -> Resource:
    """Who speaks: one engine run, described by about_run where that is known.

    What the `environment` of the process says goes before that, but for `helios.run_id`.
    """
    known = {"service.name": "helios", "service.instance.id": run_id, **about}
    return Resource(attributes=_attributes({**known, **(environment or {}), "helios.run_id": run_id}))


def _plan_values(plan: PlanCommitted, done: PlanCompleted | None, outcome: str) -> dict[str, Value]:
    # The first PLAN_ATTRIBUTES_KEPT outlast every limit.
    shape = plan.shape
    values: dict[str, Value] = {
        "helios.plan.kind": shape.kind,
        "helios.plan.reason": plan.reason,
        "helios.plan.fence": plan.fence,
        "helios.plan.batch_capacity": shape.batch_capacity,
        "helios.plan.draft_depth": shape.draft_depth,
        "helios.plan.target_width": shape.target_width,
        "helios.plan.target_rows": shape.target_rows,
        "helios.plan.prefill_capacity": shape.prefill_capacity,
        "helios.plan.prompt_rows": shape.prompt_rows,
        "helios.plan.selected_cost_ms": plan.selected_cost_ns / 1e6,
        "helios.plan.exploration_credit_ms": plan.exploration_credit_ms,
        "helios.plan.value_rate": plan.score,
        "helios.plan.log_scale": plan.log_scale,
        "helios.plan.policy_version": plan.policy_version,
        "helios.plan.queue_depth": plan.queue_depth,
        "helios.plan.score_kind": plan.score_kind,
        "helios.plan.outcome": outcome,
        "helios.ledger.timing.credit_ms": plan.timing_credit_ms,
        "helios.ledger.timing.spent_ms": plan.timing_spent_ms,
        "helios.ledger.acceptance.credit_ms": plan.acceptance_credit_ms,
        "helios.ledger.acceptance.spent_ms": plan.acceptance_spent_ms,
    }
    if plan.observation_age_ns is not None:
        values["helios.plan.observation_age_ms"] = plan.observation_age_ns / 1e6
    if done is not None:
        values["helios.plan.device_ms"] = done.device_ns / 1e6
        values["helios.plan.output_tokens"] = sum(lane.committed_tokens for lane in done.lanes)
    return values


def _request_values(
    story: RequestStory, finished: RequestFinished | None, reason: str, first_ns: int | None
) -> dict[str, Value]:
    arrived = story.arrived
    values: dict[str, Value] = {
        "gen_ai.operation.name": arrived.operation,
        "gen_ai.provider.name": "helios",
        "gen_ai.request.model": arrived.model,
        "gen_ai.response.model": arrived.model,
        "gen_ai.request.max_tokens": arrived.max_tokens,
        "gen_ai.response.id": arrived.request_id,
        "gen_ai.response.finish_reasons": [reason],
        "gen_ai.usage.input_tokens": arrived.prompt_tokens,
        "gen_ai.output.type": "text",
        "helios.request.tokenize_ms": arrived.tokenize_ns / 1e6,
    }
    values.update(_option_values(arrived))
    if story.admitted is not None:
        values["gen_ai.usage.cache_read.input_tokens"] = story.admitted.cached_tokens
    if first_ns is not None:
        values["gen_ai.response.time_to_first_chunk"] = (first_ns - arrived.arrived_ns) / 1e9
    if finished is not None:
        values["gen_ai.usage.output_tokens"] = finished.output_tokens
        for phase in ("queue", "prefill", "decode", "publish"):
            values[f"helios.request.{phase}_ms"] = getattr(finished, f"{phase}_ns") / 1e6
    if reason == "error":
        values["error.type"] = "engine_lost" if finished is None else "error"
    return values


def _option_values(arrived: RequestArrived) -> dict[str, Value]:
    """How the request wanted to be answered; nothing for one from before that was written down."""
    options = arrived.options
    if options is None:
        return {}
    values: dict[str, Value] = {
        "gen_ai.request.temperature": options.temperature,
        "gen_ai.request.top_p": options.top_p,
        "gen_ai.request.presence_penalty": options.presence_penalty,
        "gen_ai.request.frequency_penalty": options.frequency_penalty,
        "gen_ai.request.stream": options.stream,
    }
    if options.top_k:
        values["gen_ai.request.top_k"] = float(options.top_k)  # the schema has a double
    if options.seed is not None:
        values["gen_ai.request.seed"] = options.seed
    if options.choices != 1:
        values["gen_ai.request.choice.count"] = options.choices
    return values


def _attributes(values: Mapping[str, Value]) -> list[KeyValue]:
    return [attribute(name, value) for name, value in values.items()]


def _any_value(value: Value) -> AnyValue:
    # The usual types first: a check against an abstract class costs a microsecond. A bool is an int too.
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, enum.Enum):
        return _any_value(value.value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, numbers.Integral):  # numpy's integers are
        return AnyValue(int_value=int(value))
    if isinstance(value, numbers.Real):
        return AnyValue(double_value=float(value))
    if isinstance(value, list | tuple):
        return AnyValue(array_value=ArrayValue(values=[_any_value(item) for item in value]))
    raise TypeError(f"an attribute cannot hold a {type(value).__name__}")


def _event(name: str, at_ns: int, values: Mapping[str, Value]) -> Span.Event:
    return Span.Event(name=name, time_unix_nano=at_ns, attributes=_attributes(values))
