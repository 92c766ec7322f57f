"""Posting spans to an OTLP/HTTP collector: protobuf, gzip, and an answer that is taken seriously."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Sequence

import requests
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from service.recorder.pump import SinkUnavailable
from service.telemetry.otlp import export_request

log = logging.getLogger(__name__)

CONNECT_S = 2.0
READ_S = 5.0
_REFUSED = frozenset({400, 413, 422})
"""Answers that blame the content: smaller requests are tried, down to a single span, which is then lost."""


class Collector:
    """One OTLP/HTTP endpoint; `endpoint` is its base URL or already ends with /v1/traces."""

    def __init__(self, endpoint: str) -> None:
        base = endpoint.rstrip("/")
        self.url = base if base.endswith("/v1/traces") else f"{base}/v1/traces"
        self._session = requests.Session()
        self._session.trust_env = False  # no proxies or passwords from the environment

    def send(self, who: Resource, spans: Sequence[Span]) -> int:
        """Deliver the spans. Returns how many the collector refused for good.

        Raises SinkUnavailable when trying again can help; some may then have arrived, and will arrive again.
        """
        if not spans:
            return 0
        try:
            answer = self._session.post(
                self.url,
                data=gzip.compress(export_request(who, spans), compresslevel=1),
                headers={"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"},
                timeout=(CONNECT_S, READ_S),
                allow_redirects=False,
            )
        except requests.RequestException as error:
            raise SinkUnavailable(f"{self.url} cannot be reached ({type(error).__name__})") from error
        if answer.status_code in _REFUSED:
            return self._send_halves(who, spans, answer.status_code)
        if not 200 <= answer.status_code < 300:
            raise SinkUnavailable(f"{self.url} answered {answer.status_code}", _retry_after(answer))
        return _rejected(answer)

    def _send_halves(self, who: Resource, spans: Sequence[Span], status: int) -> int:
        if len(spans) == 1:
            log.warning("the collector refused a %s span for good (%d)", spans[0].name, status)
            return 1
        middle = len(spans) // 2
        return self.send(who, spans[:middle]) + self.send(who, spans[middle:])


def _retry_after(answer: requests.Response) -> float | None:
    text = answer.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() else None


def _rejected(answer: requests.Response) -> int:
    """Spans that an otherwise successful answer says it dropped."""
    try:
        partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
    except DecodeError:
        return 0
    if partial.rejected_spans:
        log.warning("the collector dropped %d spans: %s", partial.rejected_spans, partial.error_message)
    return int(partial.rejected_spans)
