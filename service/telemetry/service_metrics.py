"""The service's own metrics, as the table declares them, in one registry of prometheus-client."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from service.telemetry.metric_table import METRIC_BY_NAME


class ServiceMetrics:
    """What this process counts. `registry` is rendered together with what the engine and the recorder count."""

    def __init__(self) -> None:
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
