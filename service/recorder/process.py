"""The recorder process: one thread per sink, a heartbeat, and an end within a bound.

`python -m service.recorder SETTINGS.json`. Exit code 0 when everything journaled before SIGTERM is in the store;
EXIT_BEHIND when the store could not take it in time. The rest stays in the journal for the next start either way.
"""

from __future__ import annotations

import functools
import gc
import logging
import pathlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import event

from service.journal.errors import JournalError
from service.journal.live import live_run
from service.journal.packed import decode_packed, decode_records
from service.journal.segments import journal_identity
from service.process import guard_child, install_stop_handler
from service.recorder.backlog import Backlog
from service.recorder.collector import Collector
from service.recorder.gauges import SinkGauges, WalGauge
from service.recorder.offsets import OTLP_OPEN, OTLP_SINK, SQL_SINK, ShippedSegments
from service.recorder.open_spans import SpanOptions
from service.recorder.otlp_sink import OtlpSink
from service.recorder.pump import Pump, Sink
from service.recorder.retention import Retention, there_is_room
from service.recorder.sql_sink import SqlSink
from service.recorder.wal import BoundedWal, WalLimit
from service.settings import Settings, process_environment
from service.store.database import database_url, open_database
from service.store.errors import StoreError
from service.store.retention import Limits
from service.telemetry.exporter_settings import exporter_settings
from service.telemetry.sampling import configured_sampler
from service.telemetry.sdk_resource import environment_attributes
from service.telemetry.shared import MetricsUnavailable, MetricsWriter
from service.telemetry.span_limits import limits_of

log = logging.getLogger(__name__)

DEADLINE_S = 3.0
SQL_S = 2.5
OTLP_S = 0.5
"""After SIGTERM: how long the store may take, and how much longer than it the collector may."""
HEARTBEAT_S = 0.5
LOCK_WAIT_MS = 1000
EXIT_USAGE = 2
_COLLECTED_AFTER = 200_000
"""Objects; Python's own limit of 700 means some hundred looks at each batch."""
EXIT_BEHIND = 75


class Recorder:
    """The sinks of one journal. Raises JournalError, StoreError (a bad address) or MetricsUnavailable."""

    def __init__(self, settings: Settings) -> None:
        self._stop = threading.Event()
        self._metrics = MetricsWriter(settings.recorder_metrics_path)
        self._engine = _open_store(database_url(settings))
        directory = settings.journal_dir
        journal_id = journal_identity(directory)
        sqlite = self._engine.url.database if self._engine.dialect.name == "sqlite" else None
        self._wal = WalGauge(self._metrics, None if sqlite is None else pathlib.Path(sqlite))
        exporter = exporter_settings(settings.otlp_endpoint, process_environment())
        off = () if exporter else (OTLP_SINK, OTLP_OPEN)
        limit = None if sqlite is None else WalLimit(self._engine, settings.store_wal_limit)
        stored = SqlSink(self._engine, journal_id, switched_off=off)
        sinks: list[Sink] = [stored if limit is None else BoundedWal(stored, limit)]
        if exporter is not None:
            backlog = Backlog(directory, settings.most_otlp_backlog)
            sinks.append(OtlpSink(self._engine, journal_id, Collector(exporter), backlog, _span_options()))
        live = functools.partial(live_run, directory)
        shipped = ShippedSegments(directory, *(sink.name for sink in sinks))
        self._threads = {
            sink.name: self._thread(directory, sink, SinkGauges(self._metrics, sink.name, live), shipped.passed)
            for sink in sinks
        }
        limits = Limits(settings.retention_days, settings.retention_bytes)
        require_room = there_is_room if limit is None else limit.require_room
        self._retention = Retention(self._engine, limits, self._stop, require_room=require_room)

    def stop(self) -> None:
        """Deliver what is journaled, then end. Only sets a flag."""
        self._stop.set()

    def run(self) -> int:
        """Until stop(). Returns the exit code."""
        threading.Thread(target=self._retention.run, name="retention", daemon=True).start()
        for thread in self._threads.values():
            thread.start()
        while not self._stop.wait(HEARTBEAT_S):
            self._beat()
        began = time.monotonic()
        store = self._threads[SQL_SINK]
        store.join(SQL_S)
        for thread in self._threads.values():
            thread.join(max(0.0, min(began + SQL_S, time.monotonic() + OTLP_S) - time.monotonic()))
        self._beat()
        if store.is_alive():
            log.warning("the store could not take everything in time; the rest stays in the journal")
            return EXIT_BEHIND
        self._engine.dispose()
        return 0

    def _beat(self) -> None:
        self._metrics.heartbeat(time.monotonic_ns())
        self._wal.measure()

    def _thread(
        self, directory: pathlib.Path, sink: Sink, gauges: SinkGauges, passed: Callable[[str, int], None]
    ) -> threading.Thread:
        decode = decode_packed if sink.name == SQL_SINK else decode_records
        pump = Pump(directory, sink, self._stop, gauges, passed, decode=decode)
        return threading.Thread(target=pump.run, name=f"sink-{sink.name}", daemon=True)


def collect_rarely() -> None:
    """Let the collector of cycles look seldom: a batch is thousands of objects, none of them in a cycle."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTED_AFTER)


def main(arguments: list[str]) -> int:
    """The program. `arguments`: the path of the settings' JSON."""
    logging.basicConfig(level=logging.WARNING, format="recorder: %(message)s", stream=sys.stderr)
    if len(arguments) != 1:
        log.error("usage: python -m service.recorder SETTINGS.json")
        return EXIT_USAGE
    guard_child()
    try:
        settings = msgspec.json.decode(pathlib.Path(arguments[0]).read_bytes(), type=Settings)
        recorder = Recorder(settings)
    except (OSError, msgspec.MsgspecError, JournalError, StoreError, MetricsUnavailable) as error:
        log.error("%s", error)
        return EXIT_USAGE
    collect_rarely()
    install_stop_handler(recorder.stop, DEADLINE_S)
    return recorder.run()


def _span_options() -> SpanOptions:
    """What the standard's variables say about spans."""
    return SpanOptions(configured_sampler(), limits_of(process_environment()), environment_attributes())


def _open_store(url: str) -> sa.Engine:
    """The store, with a short wait for SQLite's write lock: the pump waits by itself and must see a stop."""
    engine = open_database(url)
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def configure(connection: Any, _record: object) -> None:
            connection.execute(f"PRAGMA busy_timeout={LOCK_WAIT_MS}")

    return engine
