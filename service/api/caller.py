"""Which trace a request belongs to, by its headers: OpenTelemetry's propagators read them (OTEL_PROPAGATORS)."""

from __future__ import annotations

import logging
from typing import NamedTuple

from litestar.datastructures import Headers
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagate import extract
from opentelemetry.propagators.textmap import Getter

# They warn of each header that they cannot use, with all of its text, which is as long and as odd as a caller likes.
for _name in ("opentelemetry.baggage", "opentelemetry.trace", "opentelemetry.attributes"):
    logging.getLogger(_name).setLevel(logging.ERROR)


class Caller(NamedTuple):
    """The caller's span as W3C headers; None where it named none, or wrongly: that starts a new trace."""

    traceparent: str | None = None
    tracestate: str | None = None


class _HeaderGetter(Getter[Headers]):
    def get(self, carrier: Headers, key: str) -> list[str] | None:
        return carrier.getall(key, None)

    def keys(self, carrier: Headers) -> list[str]:
        return list(carrier.keys())


_GETTER = _HeaderGetter()


def context_in(headers: Headers) -> Context:
    """What the caller's headers say, as the parent of a span of our own."""
    return extract(headers, Context(), _GETTER)


def caller_in(headers: Headers) -> Caller:
    """The caller's span, in W3C's form whatever headers it came in."""
    span = trace.get_current_span(context_in(headers)).get_span_context()
    if not span.is_valid:
        return Caller()
    trace_id, span_id = trace.format_trace_id(span.trace_id), trace.format_span_id(span.span_id)
    return Caller(f"00-{trace_id}-{span_id}-{span.trace_flags & 0xFF:02x}", span.trace_state.to_header() or None)
