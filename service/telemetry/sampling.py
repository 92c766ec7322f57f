"""Which spans are sent: OpenTelemetry's own samplers, asked about spans that are built from records.

What is not sent is in the store all the same. A request's span is asked about with its caller as its parent, so that a
`parentbased_` sampler, as the default is, follows the caller's flag. A plan's span is the root of its own trace; it is
sent when the sampler takes that, or when it has taken one of the requests that the plan served, whose trace would
otherwise lead nowhere.
"""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from service.journal.records import RequestArrived
from service.telemetry.span_ids import SpanIds, id_bytes

_ALWAYS = ("AlwaysOnSampler", "ParentBased{root:AlwaysOnSampler,")
_NO_PARENT = Context()


class SpanSampler:
    """Asks one of the SDK's samplers; without one everything is sent."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._sampler = sampler
        # Roots are asked about with every plan: the usual samplers take each of them.
        self._takes_roots = sampler is None or sampler.get_description().startswith(_ALWAYS)

    def takes_request(self, ids: SpanIds, arrived: RequestArrived, name: str) -> bool:
        """Whether this request's span is sent."""
        if self._sampler is None:
            return True
        attributes = {"gen_ai.operation.name": arrived.operation, "gen_ai.request.model": arrived.model}
        trace_id = int.from_bytes(ids.trace_id, "big")
        decision = self._sampler.should_sample(
            _parent(ids, arrived), trace_id, name, SpanKind.SERVER, attributes, (), _state(arrived)
        ).decision
        return decision is Decision.RECORD_AND_SAMPLE

    def takes_root(self, ids: SpanIds, name: str) -> bool:
        """Whether the sampler takes a span without a parent."""
        if self._takes_roots:
            return True
        assert self._sampler is not None
        trace_id = int.from_bytes(ids.trace_id, "big")
        result = self._sampler.should_sample(_NO_PARENT, trace_id, name, SpanKind.INTERNAL, {}, ())
        return result.decision is Decision.RECORD_AND_SAMPLE


def configured_sampler() -> SpanSampler:
    """The sampler that OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG name, read by the SDK."""
    return SpanSampler(TracerProvider(shutdown_on_exit=False).sampler)


def _parent(ids: SpanIds, arrived: RequestArrived) -> Context:
    parent = id_bytes(arrived.parent_span_id, 8)
    if parent is None:
        return _NO_PARENT
    caller = SpanContext(
        int.from_bytes(ids.trace_id, "big"),
        int.from_bytes(parent, "big"),
        is_remote=True,
        trace_flags=TraceFlags(arrived.trace_flags),
        trace_state=_state(arrived),
    )
    return set_span_in_context(NonRecordingSpan(caller), _NO_PARENT)


def _state(arrived: RequestArrived) -> TraceState | None:
    return None if arrived.trace_state is None else TraceState.from_header([arrived.trace_state])
