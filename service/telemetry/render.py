"""GET /metrics: the shared-memory files and the service's own series, as Prometheus or as OpenMetrics text.

A scrape costs milliseconds: call it in a thread, not on the event loop.
"""

from __future__ import annotations

import functools
import math
import pathlib
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as Sampled

from service.telemetry.metric_table import SLOT_COUNT, STORED, Metric, MetricType, Owner
from service.telemetry.series import Exemplar
from service.telemetry.shared import MetricsReader, Snapshot, series_exemplars, series_values

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
STALE_AFTER_NS = 15_000_000_000
_ZEROS = (0.0,) * SLOT_COUNT


def render(
    engine_path: pathlib.Path | str,
    recorder_path: pathlib.Path | str,
    service_registry: CollectorRegistry | None = None,
    clock: Callable[[], int] = time.monotonic_ns,
    *,
    model: str = "",
    exemplars: bool = False,
) -> bytes:
    """The whole exposition; with `exemplars` as OpenMetrics, which alone has them. `model`: what is served.

    A dead writer's counters and histograms read 0, as its successor's will at its start, and its gauges are left
    out, but for flare_engine_up 0. A writer that lives but has not moved for 15 s keeps its counters, which are
    still true, and loses its gauges.
    """
    now_ns = clock()
    snapshots = {
        Owner.ENGINE: MetricsReader(engine_path).read(exemplars),
        Owner.RECORDER: MetricsReader(recorder_path).read(exemplars),
    }
    joined = _Joined(snapshots, now_ns, service_registry, model)
    # The stubs want a registry; both functions only call collect(), of any collector. Our names need no escaping, and
    # looking for what needs it costs a third of the whole.
    write_openmetrics = functools.partial(openmetrics.generate_latest, escaping=openmetrics.ALLOWUTF8)
    write: Callable[[Collector], bytes] = write_openmetrics if exemplars else generate_latest
    return write(joined)


class _Joined(Collector):
    """Everything that one scrape shows."""

    def __init__(
        self,
        snapshots: dict[Owner, Snapshot | None],
        now_ns: int,
        service_registry: CollectorRegistry | None,
        model: str,
    ) -> None:
        self._snapshots = snapshots
        self._now_ns = now_ns
        self._service_registry = service_registry
        self._model = model

    def collect(self) -> Iterator[Family]:
        for metric in STORED:
            snapshot = self._snapshots[metric.owner]
            fresh = snapshot is not None and self._now_ns - snapshot.heartbeat_ns < STALE_AFTER_NS
            slots = _ZEROS if snapshot is None else snapshot.slots
            if metric.type in (MetricType.GAUGE, MetricType.INFO) and not fresh:
                if metric.name != "flare_engine_up":
                    continue
                slots = _ZEROS
            words = () if snapshot is None else snapshot.exemplars
            yield self._family(metric, slots, words)
        if self._service_registry is not None:
            yield from self._service_registry.collect()

    def _family(self, metric: Metric, slots: tuple[float, ...], words: tuple[int, ...]) -> Family:
        served = (self._model,) * len(metric.served)
        if metric.type is MetricType.HISTOGRAM:
            return _histogram_family(metric, served, slots, words)
        family: CounterMetricFamily | GaugeMetricFamily
        if metric.type is MetricType.COUNTER:
            family = CounterMetricFamily(metric.name, metric.help, labels=metric.label_names)
        else:
            family = GaugeMetricFamily(metric.name, metric.help, labels=metric.label_names)
        for values in metric.series():
            number = _finite(series_values(metric, values, slots)[0])
            if metric.type is not MetricType.INFO or number:
                family.add_metric((*values, *served), number)
        return family


def _histogram_family(
    metric: Metric, served: tuple[str, ...], slots: tuple[float, ...], words: tuple[int, ...]
) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.label_names)
    bounds = [*(repr(bound) for bound in metric.buckets), "+Inf"]
    for values in metric.series():
        numbers = series_values(metric, values, slots)
        kept = series_exemplars(metric, values, words) if metric.traced and words else [None] * len(bounds)
        running = 0.0
        buckets: list[tuple[str, float] | tuple[str, float, Sampled]] = []
        for bound, count, exemplar in zip(bounds, numbers[:-1], kept, strict=True):
            running += _finite(count)
            sampled = None if exemplar is None else _sampled(exemplar)
            buckets.append((bound, running) if sampled is None else (bound, running, sampled))
        family.add_metric((*values, *served), buckets, _finite(numbers[-1]))
    return family


def _sampled(exemplar: Exemplar) -> Sampled | None:
    if not (math.isfinite(exemplar.value) and math.isfinite(exemplar.at_s)):
        return None
    return Sampled({"trace_id": exemplar.trace_id}, exemplar.value, round(exemplar.at_s, 3))


def _finite(number: float) -> float:
    """No writer stores anything else; a file that was damaged may hold anything."""
    return number if -math.inf < number < math.inf else 0.0
