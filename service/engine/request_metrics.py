"""Histograms of what requests waited for, Helios' own and those of the GenAI conventions.

Each bucket keeps the trace of one request in it: the caller's, or the one that its span begins.
"""

from __future__ import annotations

from scheduler.records import FinishReason
from service.engine.requests import EngineRequest
from service.telemetry.metric_table import OPERATIONS
from service.telemetry.series import TracedHistogram
from service.telemetry.shared import MetricsWriter
from service.telemetry.span_ids import request_ids

_SUCCESSES = (FinishReason.STOP, FinishReason.LENGTH)


class _GenAiMetrics:
    """The series of one operation."""

    def __init__(self, writer: MetricsWriter, operation: str) -> None:
        labels = operation, "helios"
        self.whole = writer.traced_histogram("gen_ai_server_request_duration_seconds", *labels, "")
        self.failed = writer.traced_histogram("gen_ai_server_request_duration_seconds", *labels, "error")
        self.first_token = writer.traced_histogram("gen_ai_server_time_to_first_token_seconds", *labels)
        self.per_token = writer.traced_histogram("gen_ai_server_time_per_output_token_seconds", *labels)


class RequestMetrics:
    """Moves with publications, first commits and endings. Times are ns."""

    def __init__(self, writer: MetricsWriter, run_id: str) -> None:
        self._run_id = run_id
        self._first_token = writer.traced_histogram("flare_time_to_first_token_seconds")
        self._gap = writer.traced_histogram("flare_inter_token_seconds")
        self._whole = writer.traced_histogram("flare_request_seconds")
        self._queue = writer.traced_histogram("flare_queue_seconds")
        self._gen_ai = {operation: _GenAiMetrics(writer, operation) for operation in OPERATIONS}

    def queued(self, request: EngineRequest, committed_ns: int) -> None:
        """The request's first graph was committed."""
        self._observe(self._queue, committed_ns - request.begun_ns, request, committed_ns)

    def published(self, request: EngineRequest, now_ns: int) -> None:
        """Output was handed over; `request.published_ns` is still the time before."""
        if request.published_ns is None:
            self._observe(self._first_token, now_ns - request.arrived_ns, request, now_ns)
            return
        seconds = (now_ns - request.published_ns) / 1e9
        bucket = self._gap.observe(seconds, now_ns)
        if bucket is not None:
            self._gap.keep(bucket, seconds, now_ns, self._trace_id(request))

    def ended(self, request: EngineRequest, reason: FinishReason, now_ns: int) -> None:
        """The request reached its terminal state."""
        series, whole_ns = self._gen_ai[request.operation], now_ns - request.arrived_ns
        self._observe(self._whole, whole_ns, request, now_ns)
        self._observe(series.failed if reason is FinishReason.ERROR else series.whole, whole_ns, request, now_ns)
        first_ns, later_tokens = request.first_published_ns, request.output_tokens - 1
        if first_ns is None or reason not in _SUCCESSES:
            return
        self._observe(series.first_token, first_ns - request.arrived_ns, request, now_ns)
        if later_tokens:
            self._observe(series.per_token, (now_ns - first_ns) / later_tokens, request, now_ns)

    def _observe(self, histogram: TracedHistogram, ns: float, request: EngineRequest, now_ns: int) -> None:
        seconds = ns / 1e9
        bucket = histogram.observe(seconds, now_ns)
        if bucket is not None:
            histogram.keep(bucket, seconds, now_ns, self._trace_id(request))

    def _trace_id(self, request: EngineRequest) -> bytes:
        return request_ids(self._run_id, request.request_id, request.trace_id).trace_id
