"""Posting spans to an OTLP/HTTP collector: protobuf, compressed, and an answer that is taken seriously.

What the standard calls retryable (429, 502, 503, 504, and no answer at all) raises; the pump tries again. Every other
error is final by the standard. Where it may be one span's fault, smaller requests are tried, down to a single span.
"""

from __future__ import annotations

import datetime as dt
import email.utils
import gzip
import logging
import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence

import requests
import urllib3
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from service.recorder.pump import SinkUnavailable
from service.telemetry.exporter_settings import ExporterSettings
from service.telemetry.plan_encoding import encode_export

log = logging.getLogger(__name__)

CONNECT_S = 2.0
_RETRYABLE = frozenset({429, 502, 503, 504})
_OF_CONTENT = frozenset({400, 413, 422})
"""Answers that blame what was sent."""
_MOST_ANSWER_BYTES = 64 << 10
_MOST_SHOWN = 200
"""Characters of a collector's message that the log shows."""
_COMPRESSORS: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": lambda body: gzip.compress(body, compresslevel=1),
    "deflate": lambda body: zlib.compress(body, level=1),
}


class Collector:
    """One OTLP/HTTP endpoint."""

    def __init__(self, settings: ExporterSettings) -> None:
        self.url = settings.url
        self._shown = urllib3.util.parse_url(settings.url)._replace(auth=None).url
        """Without a name and a password, which some write into the address."""
        self._compress = _COMPRESSORS.get(settings.compression)
        self._timeout_s = (min(CONNECT_S, settings.timeout_s), settings.timeout_s)
        self._refused_with = 0
        self._session = requests.Session()
        self._session.trust_env = False  # no proxies or passwords from the environment
        self._session.headers.update(settings.headers)
        self._session.headers["Content-Type"] = "application/x-protobuf"
        if self._compress is not None:
            self._session.headers["Content-Encoding"] = settings.compression
        self._session.verify = settings.certificate or True
        self._session.cert = _client_certificate(settings)

    def send(self, who: Resource, spans: Sequence[bytes]) -> int:
        """Deliver the encoded spans. Returns how many the collector refused for good.

        Raises SinkUnavailable when trying again can help; some may then have arrived, and will arrive again.
        """
        if not spans:
            return 0
        body = encode_export(who, spans)
        status, content, retry_after = self._post(body if self._compress is None else self._compress(body))
        if 200 <= status < 300:
            self._refused_with = 0
            return _rejected(content, len(spans))
        if status in _RETRYABLE or status < 400:  # a redirection is a wrong address, which somebody may put right
            raise SinkUnavailable(f"{self._shown} answered {status}", retry_after)
        if status in _OF_CONTENT and len(spans) > 1:
            middle = len(spans) // 2
            return self.send(who, spans[:middle]) + self.send(who, spans[middle:])
        self._note_refusal(status, len(spans))
        return len(spans)

    def _note_refusal(self, status: int, spans: int) -> None:
        """Once for each kind, until something arrives: a wrong key is refused with every batch."""
        level = logging.DEBUG if status == self._refused_with else logging.WARNING
        self._refused_with = status
        log.log(level, "%s refused %d spans for good, answering %d", self._shown, spans, status)

    def _post(self, body: bytes) -> tuple[int, bytes, float | None]:
        """The answer's status, the beginning of its body, and how many seconds it asks us to wait."""
        try:
            with self._session.post(
                self.url, data=body, timeout=self._timeout_s, allow_redirects=False, stream=True
            ) as answer:
                content = self._body(answer)
                return answer.status_code, content, retry_after_s(answer.headers.get("Retry-After", ""))
        except urllib3.exceptions.HTTPError as error:  # of the body, which is read without requests
            raise SinkUnavailable(f"{self._shown} broke off its answer ({type(error).__name__})") from error
        except OSError as error:  # requests' own errors are some, and so is a certificate that is not there
            raise SinkUnavailable(f"{self._shown} cannot be reached ({_why(error)})") from error

    def _body(self, answer: requests.Response) -> bytes:
        """The beginning of the answer's body; a short one to its end, so that the connection is used again.

        The timeout is one of each read, so that a few bytes now and then would hold the spans up for hours.
        """
        deadline = time.monotonic() + self._timeout_s[1]
        content = b""
        while len(content) <= _MOST_ANSWER_BYTES:
            piece = answer.raw.read1(_MOST_ANSWER_BYTES, decode_content=True)
            if not piece:
                break
            content += piece
            if time.monotonic() > deadline:
                raise SinkUnavailable(f"{self._shown} does not come to the end of its answer")
        return content


def retry_after_s(text: str) -> float | None:
    """Seconds that a Retry-After header names, as a number or as a time; None where it names none."""
    text = text.strip()
    try:
        seconds = float(text)
    except ValueError:
        pass
    else:
        return max(0.0, seconds) if math.isfinite(seconds) else None
    try:
        at = email.utils.parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=dt.UTC)
    return max(0.0, (at - dt.datetime.now(dt.UTC)).total_seconds())


def _why(error: OSError) -> str:
    """In a few words: those of requests repeat the address and name objects."""
    return type(error).__name__ if isinstance(error, requests.RequestException) else str(error)


def _client_certificate(settings: ExporterSettings) -> str | tuple[str, str] | None:
    if settings.client_certificate is not None and settings.client_key is not None:
        return settings.client_certificate, settings.client_key
    return settings.client_certificate


def _rejected(content: bytes, sent: int) -> int:
    """Spans that an otherwise successful answer says it dropped: the standard forbids to send them again."""
    try:
        partial = ExportTraceServiceResponse.FromString(content).partial_success
    except DecodeError:
        return 0
    if partial.rejected_spans or partial.error_message:
        shown = ascii(partial.error_message[:_MOST_SHOWN])  # a stranger's text: it may hold lines and escape sequences
        log.warning("the collector dropped %d spans: %s", partial.rejected_spans, shown)
    return max(0, min(sent, int(partial.rejected_spans)))
