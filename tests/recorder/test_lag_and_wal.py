"""The lag after a step of the wall clock, and SQLite's log under a reader that does not end."""

from __future__ import annotations

import contextlib
import sqlite3
import time

import pytest

from service.journal.live import live_run
from service.journal.reader import Batch, Position
from service.journal.records import PolicyApplied
from service.journal.writer import JournalWriter
from service.recorder.gauges import SinkGauges
from service.recorder.pump import Delivery, SinkUnavailable
from service.recorder.wal import BoundedWal, WalLimit
from service.telemetry.metric_table import METRIC_BY_NAME
from service.telemetry.shared import MetricsReader, MetricsWriter, series_values

SECOND = 1_000_000_000


def behind(age_s, wall_s):
    """A batch of run-1 whose record is so old by the monotonic clock, and so old by the wall clock."""
    at_ns, wall_ns = time.monotonic_ns() - age_s * SECOND, time.time_ns() - wall_s * SECOND
    place = Position(1, 4096, 0)
    return Batch([PolicyApplied(1, 0, at_ns, {})], place, place, "run-1", wall_ns, at_ns)


@pytest.mark.parametrize(
    ("age_s", "wall_s", "live", "lag_s"),
    [
        (7, 7, "run-1", 7),
        (7, 7 - 3600, "run-1", 7),  # the clock was set back
        (7, 7 + 3600, "run-1", 7),  # and forward
        (7, 900, "run-2", 900),  # an earlier run, perhaps before the machine's last start
        (7, 900, None, 900),
    ],
)
def test_the_lag_of_the_live_run_is_taken_by_the_monotonic_clock(tmp_path, age_s, wall_s, live, lag_s):
    with MetricsWriter(tmp_path / "metrics") as metrics:
        SinkGauges(metrics, "sql", lambda: live).behind([behind(age_s, wall_s)])
        slots = MetricsReader(tmp_path / "metrics").read().slots
    found = series_values(METRIC_BY_NAME["flare_trace_lag_seconds"], ("sql",), slots)[0]
    assert found == pytest.approx(lag_s, abs=2)


def test_the_live_run_is_the_one_that_holds_the_journal(make, tmp_path):
    assert live_run(tmp_path / "nowhere") is None
    make.write_frames(tmp_path, make.story(2))
    assert live_run(tmp_path) is None
    writer = JournalWriter(tmp_path, run_id="run-2", segment_bytes=64 << 10, budget_bytes=1 << 20)
    assert live_run(tmp_path) == "run-2"
    writer.close()
    assert live_run(tmp_path) is None


class Noting:
    """A sink that takes everything."""

    name, run_id, run_open = "sql", "run-1", False

    def __init__(self):
        self.given = []

    def deliver(self, items):
        self.given.append(items)
        return Delivery(0, 0)


def test_a_log_that_a_reader_keeps_large_stops_deliveries_until_it_ends(store, tmp_path):
    path = store.url.database
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("CREATE TABLE filling (value BLOB)")
        sink = Noting()
        bounded = BoundedWal(sink, WalLimit(store, 1 << 20))
        bounded.deliver(["first"])
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM filling").fetchone()
        for _ in range(3):
            writer.execute("INSERT INTO filling VALUES (zeroblob(1000000))")
        with contextlib.closing(store.raw_connection()) as connection:
            connection.cursor().execute("PRAGMA busy_timeout=1")
        for _ in range(2):
            with pytest.raises(SinkUnavailable, match="a reader's open transaction keeps"):
                bounded.deliver(["second"])
        reader.close()
        bounded.deliver(["second"])
        assert sink.given == [["first"], ["second"]]
        assert not (tmp_path / "store" / "helios.db-wal").stat().st_size


def test_a_log_within_the_limit_is_left_alone(store, tmp_path):
    with contextlib.closing(sqlite3.connect(store.url.database, isolation_level=None)) as writer:
        writer.execute("CREATE TABLE filling (value BLOB)")
        size = (tmp_path / "store" / "helios.db-wal").stat().st_size
        BoundedWal(Noting(), WalLimit(store, 1 << 20)).deliver([])
        assert (tmp_path / "store" / "helios.db-wal").stat().st_size == size > 0
