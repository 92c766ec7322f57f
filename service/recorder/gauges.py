"""The recorder's own counters and gauges, written to its shared-memory metrics file."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Sequence

from service.journal.reader import Batch, Gap
from service.journal.records import (
    OutputPublished,
    PackedPlan,
    PlanCommitted,
    PlanCompleted,
    PolicyApplied,
    Record,
    RequestAdmitted,
    RequestArrived,
    RequestFinished,
    RunEnded,
    RunStarted,
    SchedulerCalls,
    SchedulerCheckpoint,
)
from service.recorder.offsets import OTLP_SINK, SQL_SINK
from service.telemetry.shared import MetricsWriter

_TIME_FIELD: dict[type, str] = {
    RunStarted: "monotonic_ns",
    RunEnded: "ended_ns",
    PolicyApplied: "applied_ns",
    RequestArrived: "arrived_ns",
    RequestAdmitted: "admitted_ns",
    RequestFinished: "finished_ns",
    PlanCommitted: "committed_ns",
    PackedPlan: "committed_ns",
    PlanCompleted: "completed_ns",
    OutputPublished: "published_ns",
    SchedulerCalls: "logged_ns",
    SchedulerCheckpoint: "logged_ns",
}


STEP_NS = 1_000_000_000
"""Clocks that differ by more than this have not run side by side."""


def record_ns(record: Record) -> int:
    """When a record happened, monotonic ns of its run."""
    at_ns: int = getattr(record, _TIME_FIELD[type(record)])
    return at_ns


class SinkGauges:
    """Records delivered, lag and losses of one sink. Used by that sink's thread only.

    A lost record is counted once, by the SQL sink, which every recorder has; the OTLP sink counts lost spans.
    """

    def __init__(self, metrics: MetricsWriter, sink: str, live_run: Callable[[], str | None] = lambda: None) -> None:
        """`live_run`: the run whose engine writes to the journal now."""
        self._live_run = live_run
        self._records = metrics.counter("flare_trace_records_total", sink)
        self._lag = metrics.gauge("flare_trace_lag_seconds", sink)
        self._lost_records = metrics.counter("flare_trace_lost_records_total") if sink == SQL_SINK else None
        self._lost_spans = metrics.counter("flare_trace_lost_spans_total") if sink == OTLP_SINK else None

    def behind(self, items: Sequence[Batch | Gap]) -> None:
        """These items wait: the lag is the age of their oldest record.

        By both clocks it is the same, unless the wall clock has stepped or the machine has been started again. Of the
        run that goes on the monotonic clock is right; of one that has ended, the wall clock.
        """
        first = next((item for item in items if isinstance(item, Batch) and item.records), None)
        if first is None:
            return
        at_ns = record_ns(first.records[0])
        age_ns = time.time_ns() - first.wall_ns + first.monotonic_ns - at_ns
        steady_ns = time.monotonic_ns() - at_ns
        if abs(age_ns - steady_ns) > STEP_NS and first.run_id == self._live_run():
            age_ns = steady_ns
        self._lag.set(max(0.0, age_ns / 1e9))

    def at_tail(self) -> None:
        """Nothing waits."""
        self._lag.set(0.0)

    def delivered(self, records: int, lost_records: int, lost_spans: int) -> None:
        """`records` records arrived; the others can never arrive."""
        self._records.inc(records)
        if self._lost_records is not None:
            self._lost_records.inc(lost_records)
        if self._lost_spans is not None:
            self._lost_spans.inc(lost_spans)


def wal_path(database: pathlib.Path) -> pathlib.Path:
    """SQLite's write-ahead log beside its file."""
    return database.with_name(database.name + "-wal")


class WalGauge:
    """flare_store_wal_bytes: the size of SQLite's write-ahead log; 0 without one."""

    def __init__(self, metrics: MetricsWriter, database: pathlib.Path | None) -> None:
        self._gauge = metrics.gauge("flare_store_wal_bytes")
        self._path = None if database is None else wal_path(database)

    def measure(self) -> None:
        """Look at the file."""
        try:
            self._gauge.set(0 if self._path is None else self._path.stat().st_size)
        except OSError:
            self._gauge.set(0)
