"""The watcher of guarded policy changes, as one service process has it."""

from __future__ import annotations

import os
import pathlib
import socket
import time

from service.api.context import ApiContext
from service.control.guard_watch import GuardOutcome, GuardWatch
from service.telemetry.metric_table import METRIC_BY_NAME
from service.telemetry.shared import MetricsReader, series_values

SILENT_NS = 5_000_000_000


def guard_watch(context: ApiContext) -> GuardWatch:
    """Watches through the process's own control, engine and recorder; counts what it decides."""
    engine, counter = context.engine, context.metrics.policy_guards

    def engine_run() -> str | None:
        ready = engine.ready
        return ready.run_id if engine.state == "ready" and ready is not None and not context.stopping else None

    def decided(outcome: GuardOutcome) -> None:
        counter.labels(outcome).inc()

    return GuardWatch(
        context.control,
        watcher=f"{socket.gethostname()}:{os.getpid()}",
        engine_run=engine_run,
        lag_s=lambda: recorder_lag_s(context.settings.recorder_metrics_path),
        decided=decided,
    )


def recorder_lag_s(metrics: pathlib.Path) -> float | None:
    """How far this host's recorder says that the store is behind; None when it says nothing."""
    snapshot = MetricsReader(metrics).read()
    if snapshot is None or time.monotonic_ns() - snapshot.heartbeat_ns > SILENT_NS:
        return None
    return series_values(METRIC_BY_NAME["flare_trace_lag_seconds"], ("sql",), snapshot.slots)[0]
