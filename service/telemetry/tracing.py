"""The service's own spans, made with OpenTelemetry's SDK: control calls and policy changes.

Requests and plans are not among them: the recorder builds theirs from the journal. These few spans may be lost when the
collector is away; what they tell is in the store too (policy_attempts).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Tracer

from service.settings import Settings, process_environment
from service.telemetry.exporter_settings import ExporterSettings, exporter_settings
from service.telemetry.otlp import SCHEMA_URL, SCOPE
from service.telemetry.sdk_resource import environment_attributes

log = logging.getLogger(__name__)

_COMPRESSION = {"gzip": Compression.Gzip, "deflate": Compression.Deflate, "none": Compression.NoCompression}


class Tracing:
    """Where the service's spans go; nowhere without an exporter. Sampler, limits and batches are as `OTEL_*` says."""

    def __init__(self, exporter: ExporterSettings | None, environment: Mapping[str, Any]) -> None:
        """`environment`: resource attributes that the environment names."""
        self._sdk: TracerProvider | None = None
        if exporter is None:
            return
        logging.getLogger(OTLPSpanExporter.__module__).addFilter(_once_each())
        known = {"service.name": "helios", "service.version": SCOPE.version}
        self._sdk = TracerProvider(resource=Resource.create({**known, **environment}), shutdown_on_exit=False)
        self._sdk.add_span_processor(_batches(_exporter(exporter)))

    @property
    def tracer(self) -> Tracer | None:
        """Makes spans; None where nobody wants them."""
        return None if self._sdk is None else self._sdk.get_tracer(SCOPE.name, SCOPE.version, SCHEMA_URL)

    def stop(self, patience_s: float) -> None:
        """Send what waits, for so long at the most: the SDK would wait for a dead collector for its whole timeout."""
        if self._sdk is None:
            return
        ending = threading.Thread(target=self._sdk.shutdown, name="spans-end", daemon=True)
        ending.start()
        ending.join(patience_s)


def start_tracing(settings: Settings) -> Tracing:
    """As the settings and the environment have it."""
    return Tracing(exporter_settings(settings.otlp_endpoint, process_environment()), environment_attributes())


def _once_each() -> Callable[[logging.LogRecord], bool]:
    """Passes each message once: the exporter says with every batch that it could not be sent."""
    said: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        before = len(said)
        said.add(record.msg)
        return len(said) > before

    return is_new


def _batches(exporter: OTLPSpanExporter) -> BatchSpanProcessor:
    """In batches as the `OTEL_BSP_*` variables say, or by default where the SDK refuses what they say together."""
    try:
        return BatchSpanProcessor(exporter)
    except ValueError as error:
        log.warning("the OTEL_BSP_* variables are left out: %s", error)
        return BatchSpanProcessor(
            exporter,
            max_queue_size=2048,
            schedule_delay_millis=5000,
            max_export_batch_size=512,
            export_timeout_millis=30_000,
        )


def _exporter(settings: ExporterSettings) -> OTLPSpanExporter:
    return OTLPSpanExporter(
        endpoint=settings.url,
        certificate_file=settings.certificate,
        client_key_file=settings.client_key,
        client_certificate_file=settings.client_certificate,
        headers=dict(settings.headers),
        timeout=settings.timeout_s,
        compression=_COMPRESSION[settings.compression],
    )
