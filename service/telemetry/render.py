"""GET /metrics: the shared-memory files and the service's own series in Prometheus' text format.

A scrape costs milliseconds: call it in a thread, not on the event loop.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from service.telemetry.metric_table import METRICS, SLOT_COUNT, Metric, MetricType, Owner
from service.telemetry.shared import MetricsReader, Snapshot, series_values

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STALE_AFTER_NS = 15_000_000_000
_ZEROS = (0.0,) * SLOT_COUNT


def render(
    engine_path: pathlib.Path | str,
    recorder_path: pathlib.Path | str,
    service_registry: CollectorRegistry | None = None,
    clock: Callable[[], int] = time.monotonic_ns,
) -> bytes:
    """The whole exposition.

    A dead writer's counters and histograms read 0, as its successor's will at its start, and its gauges are left
    out, but for flare_engine_up 0. A writer that lives but has not moved for 15 s keeps its counters, which are
    still true, and loses its gauges.
    """
    now_ns = clock()
    snapshots = {Owner.ENGINE: MetricsReader(engine_path).read(), Owner.RECORDER: MetricsReader(recorder_path).read()}
    return generate_latest(_Joined(snapshots, now_ns, service_registry))


class _Joined(Collector):
    """Everything that one scrape shows."""

    def __init__(
        self, snapshots: dict[Owner, Snapshot | None], now_ns: int, service_registry: CollectorRegistry | None
    ) -> None:
        self._snapshots = snapshots
        self._now_ns = now_ns
        self._service_registry = service_registry

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            snapshot = self._snapshots[metric.owner]
            fresh = snapshot is not None and self._now_ns - snapshot.heartbeat_ns < STALE_AFTER_NS
            slots = _ZEROS if snapshot is None else snapshot.slots
            if metric.type in (MetricType.GAUGE, MetricType.INFO) and not fresh:
                if metric.name != "flare_engine_up":
                    continue
                slots = _ZEROS
            yield _family(metric, slots)
        if self._service_registry is not None:
            yield from self._service_registry.collect()


def _family(metric: Metric, slots: tuple[float, ...]) -> Family:
    if metric.type is MetricType.HISTOGRAM:
        return _histogram_family(metric, slots)
    family: CounterMetricFamily | GaugeMetricFamily
    if metric.type is MetricType.COUNTER:
        family = CounterMetricFamily(metric.name, metric.help, labels=metric.label_names)
    else:
        family = GaugeMetricFamily(metric.name, metric.help, labels=metric.label_names)
    for values in metric.series():
        number = series_values(metric, values, slots)[0]
        if metric.type is not MetricType.INFO or number:
            family.add_metric(values, number)
    return family


def _histogram_family(metric: Metric, slots: tuple[float, ...]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.label_names)
    bounds = [*(repr(bound) for bound in metric.buckets), "+Inf"]
    for values in metric.series():
        numbers = series_values(metric, values, slots)
        running = 0.0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip(bounds, numbers[:-1], strict=True):
            running += count
            buckets.append((bound, running))
        family.add_metric(values, buckets, numbers[-1])
    return family
