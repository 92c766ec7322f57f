"""Prometheus' own programs read the exposition: promtool the text, the server a live endpoint."""

from __future__ import annotations

import contextlib
import http.server
import threading
import time
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_server import instant, prometheus_scraping
from promtool import KNOWN_REMARKS, remarks
from waiting import wait_until

from service.telemetry import render
from service.telemetry.shared import MetricsWriter

pytestmark = pytest.mark.prometheus


class Source:
    """The shared-memory files of an engine and a recorder, and a registry of the service; `text()` renders them."""

    def __init__(self, folder) -> None:
        self.paths = folder / "engine.metrics", folder / "recorder.metrics"
        self.engine, self.recorder = map(MetricsWriter, self.paths)
        self.registry = CollectorRegistry()
        Counter("flare_test_requests", "Of the service.", registry=self.registry).inc()
        Histogram("flare_test_seconds", "Of the service.", registry=self.registry).observe(0.5)

    def text(self) -> bytes:
        now = time.monotonic_ns()
        self.engine.heartbeat(now)
        self.recorder.heartbeat(now)
        return render.render(*self.paths, self.registry)

    def close(self) -> None:
        self.engine.close()
        self.recorder.close()


@pytest.fixture
def source(tmp_path) -> Iterator[Source]:
    made = Source(tmp_path)
    made.engine.gauge("flare_engine_up").set(1)
    made.engine.gauge("flare_oldest_wait_seconds").set(1.5e-7)
    made.engine.counter("flare_requests_total", "stop").inc(3)
    made.engine.histogram("flare_request_seconds").observe(0.25)
    made.recorder.counter("flare_trace_records_total", "sql").inc(2**53)
    yield made
    made.close()


def test_promtool_reads_every_line_and_objects_to_known_names_only(source: Source) -> None:
    assert remarks(source.text()) == KNOWN_REMARKS
    broken = source.text().replace(b"flare_engine_up 1.0", b"flare_engine_up one")
    assert remarks(broken).keys() == {"error"}


@contextlib.contextmanager
def endpoint(source: Source) -> Iterator[str]:
    """host:port of a live /metrics."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = source.text()
            self.send_response(200)
            self.send_header("content-type", render.CONTENT_TYPE)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_prometheus_server_scrapes_gauges_counters_and_histograms(source: Source, tmp_path) -> None:
    with endpoint(source) as target, prometheus_scraping(target, tmp_path) as address:
        up = wait_until(lambda: instant(address, "flare_engine_up"), "the engine's gauge to arrive", 60)
        assert up == {("flare_engine_up",): 1.0}
        assert instant(address, 'flare_requests_total{outcome="stop"}') == {("flare_requests_total", "stop"): 3.0}
        assert instant(address, 'flare_requests_total{outcome="abort"}') == {("flare_requests_total", "abort"): 0.0}
        assert instant(address, "histogram_quantile(0.5, flare_request_seconds_bucket)")[()] == pytest.approx(0.25, 0.3)
        source.engine.counter("flare_requests_total", "stop").inc(4)
        grown = 'increase(flare_requests_total{outcome="stop"}[1m]) > 3'
        wait_until(lambda: instant(address, grown), "the counter to grow")
