"""The standard's limits on spans, applied to finished OTLP messages: what goes is counted, and what must stay stays."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

log = logging.getLogger(__name__)


class SpanLimits(NamedTuple):
    """At most so many attributes, events and links of a span, attributes of an event, and characters of a text.

    None: no limit, which is the default of each. Helios puts at most 25 attributes and 2 events into a span; a plan has
    a link for each request that it served.
    """

    attributes: int | None = None
    events: int | None = None
    links: int | None = None
    event_attributes: int | None = None
    value_length: int | None = None


NO_LIMITS = SpanLimits()


def limits_of(environment: Mapping[str, str]) -> SpanLimits:
    """The limits that the standard's `OTEL_*_LIMIT` variables set; one that is no whole number is said and left out."""
    attributes = _limit(environment, "OTEL_ATTRIBUTE_COUNT_LIMIT", None)
    length = _limit(environment, "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", None)
    return SpanLimits(
        attributes=_limit(environment, "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", attributes),
        events=_limit(environment, "OTEL_SPAN_EVENT_COUNT_LIMIT", None),
        links=_limit(environment, "OTEL_SPAN_LINK_COUNT_LIMIT", None),
        event_attributes=_limit(environment, "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", attributes),
        value_length=_limit(environment, "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", length),
    )


def apply_limits(span: Span, limits: SpanLimits, kept: int) -> None:
    """Cut the span down in place. Its first `kept` attributes stay whatever the limit; of events the newest stay."""
    if limits.attributes is not None:
        span.dropped_attributes_count = _cut(span.attributes, max(kept, limits.attributes))
    if limits.links is not None:
        span.dropped_links_count = _cut(span.links, limits.links)
    if limits.events is not None and len(span.events) > limits.events:
        span.dropped_events_count = len(span.events) - limits.events
        del span.events[: span.dropped_events_count]
    for event in span.events:
        if limits.event_attributes is not None:
            event.dropped_attributes_count = _cut(event.attributes, limits.event_attributes)
    if limits.value_length is not None:
        for item in [*span.attributes, *(item for event in span.events for item in event.attributes)]:
            _shorten(item, limits.value_length)


def _cut(items: list[KeyValue], most: int) -> int:
    """Returns how many went."""
    dropped = max(0, len(items) - most)
    if dropped:
        del items[most:]
    return dropped


def _shorten(item: KeyValue, characters: int) -> None:
    values: list[AnyValue] = [item.value, *item.value.array_value.values]
    for value in values:
        if value.WhichOneof("value") == "string_value" and len(value.string_value) > characters:
            value.string_value = value.string_value[:characters]


def _limit(environment: Mapping[str, str], name: str, default: int | None) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return default
    if text.isascii() and text.isdigit():
        return int(text)
    log.warning("%s must be a whole number, not %r; it is left out", name, text)
    return default
