"""A plan's span as bytes against the same in messages."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from service.journal.records import LaneOutcome, LaneRecord, PartsRecord, PlanCommitted, PlanCompleted, ShapeRecord
from service.telemetry import otlp
from service.telemetry.plan_encoding import encode_export, encode_link, encode_plan
from service.telemetry.span_ids import SpanIds

COUNTS = st.integers(0, 2**31)
TIMES = st.integers(0, 2**62)
REALS = st.floats(width=64)
WORDS = st.text(max_size=5)
SHAPES = st.builds(ShapeRecord, WORDS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, st.booleans(), WORDS)
LANE = LaneRecord("a", 0, 1, "decode", 0, 1, 1, None, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0)
PLANS = st.builds(
    PlanCommitted, st.integers(1, 2**63 - 1), TIMES, SHAPES, WORDS, WORDS, REALS, REALS,
    st.just(PartsRecord(0.0, 0.0, 0.0, 0.0, 0.0, None)), TIMES, st.none() | TIMES, WORDS, COUNTS, COUNTS,
    st.none() | REALS, COUNTS, REALS, REALS, REALS, REALS, REALS, REALS, REALS, REALS, COUNTS, COUNTS, COUNTS, REALS,
    st.none(), st.none(), st.just([LANE]), st.just([]),
)  # fmt: skip
OUTCOMES = st.lists(st.builds(LaneOutcome, COUNTS, COUNTS, COUNTS, COUNTS), max_size=3)
ENDS = st.none() | st.builds(
    PlanCompleted, COUNTS, TIMES, TIMES, st.sampled_from(["completed", "failed", "abandoned"]), TIMES, TIMES, TIMES,
    TIMES, OUTCOMES,
)  # fmt: skip
IDS = st.builds(SpanIds, st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8))


def wall(at_ns: int) -> int:
    return at_ns + 17


def comparable(span: Span) -> tuple:
    """NaN by name: it equals nothing. The order of attributes means nothing."""
    attributes = {}
    for item in span.attributes:
        kind = item.value.WhichOneof("value")
        value = getattr(item.value, kind)
        attributes[item.key] = (kind, "nan" if isinstance(value, float) and math.isnan(value) else value)
    assert len(attributes) == len(span.attributes)
    bare = Span()
    bare.CopyFrom(span)
    del bare.attributes[:]
    return attributes, bare


@given(plan=PLANS, done=ENDS, ended_ns=TIMES, links=st.lists(IDS, max_size=4))
def test_a_plan_as_bytes_is_the_same_span(plan, done, ended_ns, links):
    encoded = encode_plan("run", plan, done, ended_ns, [encode_link(*link) for link in links], wall)
    span = otlp.plan_span("run", plan, done, ended_ns, links, wall)
    assert comparable(Span.FromString(encoded)) == comparable(span)


@pytest.mark.parametrize("changes", [{"committed_ns": 2**64}, {"committed_ns": -100}])
def test_a_time_that_does_not_fit_is_refused_by_both(changes):
    values = dict.fromkeys(PlanCommitted.__struct_fields__, 1) | {"score_kind": "rate", "reason": "x"}
    shape = ShapeRecord("decode", 1, 0, 1, 1, 0, False, "none")
    plan = PlanCommitted(**{**values, "shape": shape, "lanes": [], "alternatives": [], **changes})
    with pytest.raises(struct.error):
        encode_plan("run", plan, None, 0, [], wall)
    with pytest.raises(ValueError, match=r".*"):
        otlp.plan_span("run", plan, None, 0, [], wall)


@given(spans=st.lists(st.builds(Span, name=st.text(max_size=400), trace_id=st.binary(max_size=16)), max_size=40))
def test_a_request_as_bytes_is_the_same_message(spans):
    who = otlp.resource("run", {"host.name": "h"})
    encoded = encode_export(who, [span.SerializeToString() for span in spans])
    scope = ScopeSpans(scope=otlp.SCOPE, schema_url=otlp.SCHEMA_URL, spans=spans)
    run = ResourceSpans(resource=who, schema_url=otlp.SCHEMA_URL, scope_spans=[scope])
    assert ExportTraceServiceRequest.FromString(encoded) == ExportTraceServiceRequest(resource_spans=[run])
