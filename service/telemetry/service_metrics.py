"""The service's own metrics, as the table declares them, in registries of prometheus-client.

Where several workers answer HTTP, each keeps its numbers in a file that all of them read, so that every worker shows
the sums over all, also over those that have died.
"""

from __future__ import annotations

import pathlib

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.multiprocess import MultiProcessCollector

from service.telemetry.metric_table import METRIC_BY_NAME

MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Read by prometheus-client when it is imported."""


class ServiceMetrics:
    """What this process counts. `shown` is rendered together with what the engine and the recorder count."""

    def __init__(self, shared: pathlib.Path | None = None) -> None:
        """`shared`: the folder of all workers' files, which MULTIPROCESS_VARIABLE named when the process began."""
        # A `_created` series beside each other one would double them, and nobody asks for it.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        http = METRIC_BY_NAME["http_server_request_duration_seconds"]
        self.http_seconds = Histogram(
            http.name, http.help, http.label_names, buckets=http.buckets, registry=self.registry
        )
        guards = METRIC_BY_NAME["flare_policy_guards_total"]
        self.policy_guards = Counter(guards.name, guards.help, guards.label_names, registry=self.registry)
        for outcome in guards.series():
            self.policy_guards.labels(*outcome)
        self.shown = self.registry
        if shared is not None:
            self.shown = CollectorRegistry()
            MultiProcessCollector(self.shown, str(shared))  # type: ignore[no-untyped-call]
