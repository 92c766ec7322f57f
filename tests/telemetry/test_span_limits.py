"""The standard's limits, against the SDK's own spans as the slow twin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits as SdkLimits
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext
from otlp_receiver import attributes

from service.telemetry import otlp
from service.telemetry.span_limits import NO_LIMITS, SpanLimits, apply_limits, limits_of

MOST = st.one_of(st.none(), st.integers(0, 6))
VALUES = st.lists(st.one_of(st.integers(-5, 5), st.text("aé", max_size=6), st.booleans()), max_size=8)


def by_the_sdk(values: list, links: int, events: list[int], limits: SpanLimits) -> Span:
    """The same span by the SDK; it evicts what came first where we keep it, so it is told the values backwards."""
    unset = SdkLimits.UNSET
    exporter = InMemorySpanExporter()
    own = SdkLimits(
        max_attributes=unset,
        max_span_attributes=unset if limits.attributes is None else limits.attributes,
        max_events=unset if limits.events is None else limits.events,
        max_links=unset if limits.links is None else limits.links,
        max_event_attributes=unset if limits.event_attributes is None else limits.event_attributes,
        max_link_attributes=unset,
        max_attribute_length=unset if limits.value_length is None else limits.value_length,
        max_span_attribute_length=unset if limits.value_length is None else limits.value_length,
    )
    provider = TracerProvider(span_limits=own, resource=Resource({}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    named = {f"a{index}": value for index, value in enumerate(values)}
    contexts = [Link(SpanContext(index + 1, index + 1, is_remote=False)) for index in range(links)]
    span = provider.get_tracer("t").start_span("s", attributes=dict(reversed(named.items())), links=contexts)
    for index, count in enumerate(events):
        span.add_event(f"e{index}", {f"b{number}": number for number in reversed(range(count))})
    span.end()
    return encode_spans(exporter.get_finished_spans()).resource_spans[0].scope_spans[0].spans[0]


@given(
    values=VALUES,
    links=st.integers(0, 6),
    events=st.lists(st.integers(0, 4), max_size=4),
    limits=st.builds(SpanLimits, MOST, MOST, st.none(), MOST, MOST),
)
def test_limits_leave_what_the_sdk_leaves(values, links, events, limits):
    span = Span(
        attributes=[otlp.attribute(f"a{index}", value) for index, value in enumerate(values)],
        links=[Span.Link(span_id=bytes([index])) for index in range(links)],
        events=[
            Span.Event(name=f"e{index}", attributes=[otlp.attribute(f"b{n}", n) for n in range(count)])
            for index, count in enumerate(events)
        ],
    )
    apply_limits(span, limits, 0)
    twin = by_the_sdk(values, links, events, limits)
    assert attributes(span) == attributes(twin)
    assert [(e.name, attributes(e)) for e in span.events] == [(e.name, attributes(e)) for e in twin.events]
    assert len(span.links) == len(twin.links)
    counts = ("dropped_attributes_count", "dropped_events_count", "dropped_links_count")
    assert [getattr(span, name) for name in counts] == [getattr(twin, name) for name in counts]


@given(values=VALUES, most=st.integers(0, 8), kept=st.integers(0, 8), links=st.integers(0, 9), most_links=MOST)
def test_the_first_attributes_and_links_stay(values, most, kept, links, most_links):
    span = Span(
        attributes=[otlp.attribute(f"a{index}", value) for index, value in enumerate(values)],
        links=[Span.Link(span_id=bytes([index])) for index in range(links)],
    )
    apply_limits(span, SpanLimits(attributes=most, links=most_links), kept)
    left = min(len(values), max(most, kept))
    assert list(attributes(span)) == [f"a{index}" for index in range(left)]
    assert span.dropped_attributes_count == len(values) - left
    assert [link.span_id for link in span.links] == [bytes([n]) for n in range(links)][:most_links]


def test_the_variables_of_spans_go_before_those_of_all(caplog):
    assert limits_of({}) == NO_LIMITS
    environment = {"OTEL_ATTRIBUTE_COUNT_LIMIT": "9", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "80"}
    assert limits_of(environment) == SpanLimits(9, None, None, 9, 80)
    environment |= {
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "8", "OTEL_SPAN_EVENT_COUNT_LIMIT": "7", "OTEL_SPAN_LINK_COUNT_LIMIT": "6",
        "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT": "5", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "4",
    }  # fmt: skip
    assert limits_of(environment) == SpanLimits(8, 7, 6, 5, 4)
    assert caplog.text == ""


@pytest.mark.parametrize("value", ["many", "-1", "1.5"])
def test_a_limit_that_is_no_number_is_said_and_left_out(caplog, value):
    assert limits_of({"OTEL_SPAN_LINK_COUNT_LIMIT": value}) == NO_LIMITS
    assert "OTEL_SPAN_LINK_COUNT_LIMIT" in caplog.text
