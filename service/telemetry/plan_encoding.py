"""A plan's span and whole export requests as bytes, put together from pieces that protobuf has encoded before.

Encodings of parts of a message, one after another, are the message with these parts: that is how protobuf merges. So
what many plans share is encoded once, a number of fixed size is put behind its tag, and a request's link is made when
the request arrives. `service.telemetry.otlp.plan_span` is the same in plain messages; tests compare the two.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Sequence

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from service.journal.records import PlanCommitted, PlanCompleted, ShapeRecord
from service.telemetry.otlp import (
    LOCAL,
    SCHEMA_URL,
    SCOPE,
    Value,
    Wall,
    attribute,
    plan_ids,
)

_FIXED_KEPT = 1 << 12
_COUNTS_KEPT = 1 << 10


def _double(name: str) -> bytes:
    """What comes before the eight bytes of an attribute's double."""
    return _encoded(name, 0.0)[:-8]


def _encoded(name: str, value: Value) -> bytes:
    encoded: bytes = Span(attributes=[attribute(name, value)]).SerializeToString()
    return encoded


def _doubles(*names: str) -> tuple[struct.Struct, list[bytes]]:
    """The layout of several such attributes, and what comes before the value of each."""
    before = [_double(name) for name in names]
    return struct.Struct("<" + "".join(f"{len(piece)}sd" for piece in before)), before


_MEASURES, _MEASURE = _doubles(
    "helios.plan.selected_cost_ms",
    "helios.plan.exploration_credit_ms",
    "helios.plan.value_rate",
    "helios.plan.log_scale",
    "helios.ledger.timing.credit_ms",
    "helios.ledger.timing.spent_ms",
    "helios.ledger.acceptance.credit_ms",
    "helios.ledger.acceptance.spent_ms",
)
_AGE, (_AGE_TAG,) = _doubles("helios.plan.observation_age_ms")
_DEVICE, (_DEVICE_TAG,) = _doubles("helios.plan.device_ms")
_FRAME = struct.Struct("<2s16s2s8ssQsQ")
_TRACE_TAG = Span(trace_id=b"\1" * 16).SerializeToString()[:2]
_SPAN_TAG = Span(span_id=b"\1" * 8).SerializeToString()[:2]
_START_TAG = Span(start_time_unix_nano=1).SerializeToString()[:1]
_END_TAG = Span(end_time_unix_nano=1).SerializeToString()[:1]
_SPANS_TAG = ScopeSpans(spans=[Span()]).SerializeToString()[:1]
_SCOPES_TAG = ResourceSpans(scope_spans=[ScopeSpans()]).SerializeToString()[:1]
_RESOURCES_TAG = ExportTraceServiceRequest(resource_spans=[ResourceSpans()]).SerializeToString()[:1]
_SCOPE_PART = ScopeSpans(scope=SCOPE, schema_url=SCHEMA_URL).SerializeToString()


def encode_plan(
    run_id: str, plan: PlanCommitted, done: PlanCompleted | None, ended_ns: int, links: Iterable[bytes], wall: Wall
) -> bytes:
    """The bytes of `plan_span`, with `links` made by encode_link. Raises struct.error for a time beyond 64 bits."""
    ids = plan_ids(run_id, plan.fence)
    outcome = done.outcome if done is not None else "lost"
    start_ns, end_ns = (
        wall(plan.committed_ns),
        wall(max(plan.committed_ns, ended_ns if done is None else done.completed_ns)),
    )
    measure = _MEASURE
    pieces = [
        _fixed(plan.shape, plan.reason, plan.policy_version, plan.queue_depth, plan.score_kind, outcome),
        _FRAME.pack(_TRACE_TAG, ids.trace_id, _SPAN_TAG, ids.span_id, _START_TAG, start_ns, _END_TAG, end_ns),
        _encoded("helios.plan.fence", plan.fence),
        _MEASURES.pack(
            measure[0], plan.selected_cost_ns / 1e6,
            measure[1], plan.exploration_credit_ms,
            measure[2], plan.score,
            measure[3], plan.log_scale,
            measure[4], plan.timing_credit_ms,
            measure[5], plan.timing_spent_ms,
            measure[6], plan.acceptance_credit_ms,
            measure[7], plan.acceptance_spent_ms,
        ),
    ]  # fmt: skip
    if plan.observation_age_ns is not None:
        pieces.append(_AGE.pack(_AGE_TAG, plan.observation_age_ns / 1e6))
    if done is not None:
        pieces.append(_DEVICE.pack(_DEVICE_TAG, done.device_ns / 1e6))
        pieces.append(_count("helios.plan.output_tokens", sum([lane.committed_tokens for lane in done.lanes])))
    pieces += links
    return b"".join(pieces)


def encode_link(trace_id: bytes, span_id: bytes) -> bytes:
    """A link to a request's span, to be given to encode_plan."""
    link = Span.Link(trace_id=trace_id, span_id=span_id, flags=LOCAL)
    encoded: bytes = Span(links=[link]).SerializeToString()
    return encoded


def encode_export(who: Resource, spans: Sequence[bytes]) -> bytes:
    """The body of `POST /v1/traces` with these encoded spans."""
    pieces = [_SCOPE_PART]
    for span in spans:
        pieces += (_SPANS_TAG, _length(len(span)), span)
    scope = b"".join(pieces)
    run: bytes = ResourceSpans(resource=who, schema_url=SCHEMA_URL).SerializeToString()
    run += _SCOPES_TAG + _length(len(scope)) + scope
    return b"".join((_RESOURCES_TAG, _length(len(run)), run))


@functools.lru_cache(_FIXED_KEPT)
def _fixed(
    shape: ShapeRecord, reason: str, policy_version: int, queue_depth: int, score_kind: str, outcome: str
) -> bytes:
    """What plans of the same kind share: name, flags, status, and the attributes that are no measure."""
    values: dict[str, Value] = {
        "helios.plan.kind": shape.kind,
        "helios.plan.reason": reason,
        "helios.plan.batch_capacity": shape.batch_capacity,
        "helios.plan.draft_depth": shape.draft_depth,
        "helios.plan.target_width": shape.target_width,
        "helios.plan.target_rows": shape.target_rows,
        "helios.plan.prefill_capacity": shape.prefill_capacity,
        "helios.plan.prompt_rows": shape.prompt_rows,
        "helios.plan.policy_version": policy_version,
        "helios.plan.queue_depth": queue_depth,
        "helios.plan.score_kind": score_kind,
        "helios.plan.outcome": outcome,
    }
    encoded: bytes = Span(
        name="helios.plan",
        flags=LOCAL,
        kind=Span.SPAN_KIND_INTERNAL,
        attributes=[attribute(name, value) for name, value in values.items()],
        status=None if outcome == "completed" else Status(code=Status.STATUS_CODE_ERROR, message=outcome),
    ).SerializeToString()
    return encoded


@functools.lru_cache(_COUNTS_KEPT)
def _count(name: str, value: int) -> bytes:
    return _encoded(name, value)


def _length(value: int) -> bytes:
    """A varint: seven bits a byte, the lowest first, all but the last with the high bit set."""
    pieces = bytearray()
    while value > 0x7F:
        pieces.append(value & 0x7F | 0x80)
        value >>= 7
    pieces.append(value)
    return bytes(pieces)
