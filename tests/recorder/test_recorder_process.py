"""The recorder as a process: drains and exits, survives a locked or missing store and a dead collector."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import sqlite3
import subprocess
import sys
import threading

import msgspec
import pytest
import sqlalchemy as sa

from service.journal.segments import SegmentFile, segment_numbers, segment_path
from service.priority import NICENESS
from service.recorder.gauges import SinkGauges
from service.recorder.offsets import ShippedSegments
from service.recorder.otlp_sink import MISSING, REFUSED
from service.recorder.pump import Delivery, Pump, SinkUnavailable
from service.recorder.sql_sink import SqlSink
from service.settings import Settings
from service.store.database import open_database, upgrade
from service.store.tables import journal_offsets, plans
from service.telemetry.metric_table import METRIC_BY_NAME
from service.telemetry.shared import MetricsReader, MetricsWriter, series_values

WAIT_S = 60


@pytest.fixture
def start(tmp_path):
    """Starts recorders on tmp_path; they are killed at the end."""
    processes = []

    def begin(**changes) -> subprocess.Popen:
        fields = {"data_dir": str(tmp_path), "database": str(tmp_path / "helios.db"), "threads": 1}
        fields |= {"retention_days": 0, **changes}  # the tests' plans are of 2025
        path = tmp_path / "settings.json"
        path.write_bytes(msgspec.json.encode(Settings(**fields)))
        process = subprocess.Popen(
            [sys.executable, "-m", "service.recorder", str(path)],
            stderr=subprocess.PIPE, text=True, cwd=pathlib.Path(__file__).parents[2],
        )  # fmt: skip
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def count_plans(path: pathlib.Path) -> int:
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute("SELECT count(*) FROM plans").fetchone()[0]


def wait_for(condition, process) -> None:
    pause = threading.Event()
    for _ in range(WAIT_S * 20):
        with contextlib.suppress(sqlite3.Error):
            if condition():
                return
        assert process.poll() is None, process.stderr.read()
        pause.wait(0.05)
    raise AssertionError("it did not happen")


def stop(process) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(WAIT_S)


def series(path, name, *labels) -> float:
    return series_values(METRIC_BY_NAME[name], labels, MetricsReader(path).read().slots)[0]


def test_it_stores_what_is_journaled_and_exits_zero(start, tmp_path, make):
    upgrade(str(tmp_path / "helios.db"))
    make.write_frames(tmp_path / "journal", make.story(20))
    process = start()
    wait_for(lambda: count_plans(tmp_path / "helios.db") == 20, process)
    metrics = tmp_path / "run" / "recorder.metrics"
    expected = sum(len(frame) for frame in make.story(20))
    wait_for(lambda: series(metrics, "flare_trace_records_total", "sql") == expected, process)
    wait_for(lambda: series(metrics, "flare_trace_lag_seconds", "sql") == 0, process)
    assert series(metrics, "flare_trace_lost_records_total") == 0
    assert series(metrics, "flare_trace_records_total", "otlp") == 0
    wait_for(lambda: series(metrics, "flare_store_wal_bytes") > 0, process)
    assert stop(process) == 0


def test_a_lost_record_is_counted_once_with_both_sinks_on(start, tmp_path, make, collector):
    """A gap that both sinks meet, and a span that the collector refuses for good."""
    upgrade(str(tmp_path / "helios.db"))
    frames = make.story(400)
    make.write_frames(tmp_path / "journal", frames)
    numbers = segment_numbers(tmp_path / "journal")
    lost = first_sequence(tmp_path / "journal", numbers[2]) - first_sequence(tmp_path / "journal", numbers[1])
    segment_path(tmp_path / "journal", numbers[1]).unlink()
    collector.refuse_larger_than = 0
    process = start(otlp_endpoint=collector.url)
    metrics = tmp_path / "run" / "recorder.metrics"
    expected = sum(len(frame) for frame in frames) - lost
    wait_for(lambda: MetricsReader(metrics).read() is not None, process)
    for sink in ("sql", "otlp"):
        wait_for(lambda s=sink: series(metrics, "flare_trace_records_total", s) == expected, process)
        wait_for(lambda s=sink: series(metrics, "flare_trace_lag_seconds", s) == 0, process)
    assert series(metrics, "flare_trace_lost_records_total") == lost > 0
    lost_spans = series(metrics, "flare_trace_lost_spans_total")
    assert collector.spans == []
    assert stop(process) == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "helios.db")) as connection:
        reasons = [row[0] for row in connection.execute("SELECT reason FROM trace_gaps ORDER BY id")]
    declared = {reason.split(": ")[1]: int(reason.split()[0]) for reason in reasons if "spans were not sent" in reason}
    assert declared[REFUSED] == collector.refused_spans > 0
    assert lost_spans == declared[REFUSED] + declared[MISSING]
    assert declared[MISSING] > 10  # plans of the segment that is gone
    assert len(reasons) == len(declared) + 1  # and what the store lacks


def first_sequence(directory: pathlib.Path, number: int) -> int:
    segment = SegmentFile(directory, number)
    segment.close()
    return segment.header.first_sequence


def test_a_stop_at_once_still_drains_the_journal(start, tmp_path, make):
    upgrade(str(tmp_path / "helios.db"))
    process = start()
    wait_for((tmp_path / "run" / "recorder.metrics").exists, process)
    wait_for(lambda: _handles_stop(process), process)
    make.write_frames(tmp_path / "journal", make.story(300))
    assert stop(process) == 0
    assert count_plans(tmp_path / "helios.db") == 300


def _handles_stop(process) -> bool:
    """Whether the process has its handler for SIGTERM (a set bit of SigCgt)."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    caught = int(status.split("SigCgt:")[1].split()[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def test_a_killed_recorder_goes_on_where_it_was(start, tmp_path, make):
    upgrade(str(tmp_path / "helios.db"))
    make.write_frames(tmp_path / "journal", make.story(400))
    process = start()
    wait_for(lambda: count_plans(tmp_path / "helios.db") > 0, process)
    process.kill()
    process.wait()
    make.write_frames(tmp_path / "journal", make.story(30, run_id="run-2"), "run-2")
    process = start()
    wait_for(lambda: count_plans(tmp_path / "helios.db") == 430, process)
    assert stop(process) == 0


def test_a_store_that_appears_later_gets_everything(start, tmp_path, make):
    make.write_frames(tmp_path / "journal", make.story(5))
    process = start()
    assert "tried again" in process.stderr.readline()
    upgrade(str(tmp_path / "helios.db"))
    wait_for(lambda: count_plans(tmp_path / "helios.db") == 5, process)
    assert stop(process) == 0


def test_a_locked_store_loses_nothing_and_does_not_hold_up_a_stop(start, tmp_path, make):
    """C32 and the deadline: an outside process holds the write lock."""
    path = tmp_path / "helios.db"
    upgrade(str(path))
    outside = sqlite3.connect(path, isolation_level=None)
    outside.execute("BEGIN IMMEDIATE")
    make.write_frames(tmp_path / "journal", make.story(5))
    process = start()
    assert "tried again" in process.stderr.readline()
    assert stop(process) != 0
    assert count_plans(path) == 0
    process = start()
    assert "tried again" in process.stderr.readline()
    outside.execute("ROLLBACK")
    outside.close()
    wait_for(lambda: count_plans(path) == 5, process)
    assert stop(process) == 0


@pytest.mark.parametrize("kind", ["refused", "black hole"])
def test_a_dead_collector_holds_nothing_up_and_gets_everything_later(start, tmp_path, make, collector, kind):
    """C28."""
    upgrade(str(tmp_path / "helios.db"))
    make.write_frames(tmp_path / "journal", make.story(5))
    hole = socket.socket()
    hole.bind(("127.0.0.1", 0))
    if kind == "black hole":
        hole.listen(64)  # connects, and never answers
    process = start(otlp_endpoint=f"http://127.0.0.1:{hole.getsockname()[1]}")
    wait_for(lambda: count_plans(tmp_path / "helios.db") == 5, process)
    assert stop(process) == 0
    hole.close()
    process = start(otlp_endpoint=collector.url)
    with collector.arrived:
        assert collector.arrived.wait_for(lambda: len(collector.spans) >= 5 + 2 + 1, WAIT_S)
    assert stop(process) == 0
    ids = [span.span_id for span in collector.spans]
    assert len(ids) == len(set(ids)) == 5 + 2 + 1


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "truncated"), ('{"data_dir": 5}', "data_dir"), ("missing", "No such file")],
)
def test_unusable_settings_are_one_sentence_and_exit_two(tmp_path, content, message):
    path = tmp_path / "settings.json"
    if content != "missing":
        path.write_text(content)
    done = subprocess.run(
        [sys.executable, "-m", "service.recorder", str(path)],
        capture_output=True, text=True, check=False, cwd=pathlib.Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_segments_that_every_sink_has_passed_are_deleted_but_for_the_newest(tmp_path, make):
    make.write_frames(tmp_path, make.story(500))
    numbers = segment_numbers(tmp_path)
    assert len(numbers) > 3
    shipped = ShippedSegments(tmp_path, "sql", "otlp")
    shipped.passed("sql", numbers[-1])
    assert segment_numbers(tmp_path) == numbers
    shipped.passed("otlp", numbers[2])
    assert segment_numbers(tmp_path) == numbers[2:]
    shipped.passed("otlp", numbers[-1] + 5)
    shipped.passed("sql", numbers[-1] + 5)
    assert segment_numbers(tmp_path) == numbers[-1:]


class FakeSink:
    """Fails as often as told, then notes what it was given."""

    name = "sql"
    run_open = False
    run_id = None

    def __init__(self, failures, stop):
        self.failures = failures
        self.stop = stop
        self.given = []

    def resume(self):
        return None

    def deliver(self, items):
        if self.failures:
            raise self.failures.pop(0)
        self.given.append(list(items))
        self.stop.set()
        return Delivery(sum(len(item.records) for item in items), 0)

    def close_lost_run(self):
        pass

    def idle(self):
        pass

    def needed_segment(self, position):
        return position.segment


@pytest.mark.parametrize(
    "failure", [SinkUnavailable("down", 0.0), sa.exc.TimeoutError(), OSError("gone"), KeyError("a mistake of ours")]
)
def test_a_pump_tries_again_after_any_failure(tmp_path, make, failure):
    make.write_frames(tmp_path / "journal", make.story(3))
    halt = threading.Event()
    sink = FakeSink([failure, SinkUnavailable("down", 0.0)], halt)
    with MetricsWriter(tmp_path / "metrics") as metrics:
        gauges = SinkGauges(metrics, "sql")
        Pump(tmp_path / "journal", sink, halt, gauges, lambda *_: None).run()
        fences = [
            r.fence for items in sink.given for b in items for r in b.records if type(r).__name__ == "PlanCommitted"
        ]
    assert fences == [1, 2, 3]


def test_the_lag_is_the_age_of_the_oldest_record_that_waits(tmp_path, make):
    make.write_frames(tmp_path / "journal", make.story(1))
    (batch, *_rest) = make.batches(tmp_path / "journal")
    with MetricsWriter(tmp_path / "metrics") as metrics:
        gauges = SinkGauges(metrics, "sql")
        gauges.behind([batch])
        waiting = series(tmp_path / "metrics", "flare_trace_lag_seconds", "sql")
        gauges.at_tail()
        assert series(tmp_path / "metrics", "flare_trace_lag_seconds", "sql") == 0
    assert waiting > 0


def test_an_interrupted_writer_is_closed_by_an_idle_recorder(start, tmp_path, make):
    """No successor: the writer's lock tells that it is gone."""
    upgrade(str(tmp_path / "helios.db"))
    make.write_frames(tmp_path / "journal", [[make.started(), make.arrived("a"), make.plan(1, ["a"])]])
    process = start()
    engine = open_database(str(tmp_path / "helios.db"))
    outcome = sa.select(plans.c.outcome)

    def lost() -> bool:
        with engine.connect() as connection:
            return connection.scalar(outcome) == "lost"

    wait_for(lost, process)
    engine.dispose()
    assert stop(process) == 0


def test_sinks_that_were_switched_off_are_forgotten(store, tmp_path, make):
    make.write_frames(tmp_path, make.story(2))
    make.drain(store, tmp_path)
    SqlSink(store, make.JournalReader(tmp_path).journal_id, switched_off=("sql",)).resume()
    assert make.rows(store, journal_offsets) == []


def test_it_deletes_what_is_too_old_on_its_own(start, tmp_path, make):
    upgrade(str(tmp_path / "helios.db"))
    make.write_frames(tmp_path / "journal", make.story(20))
    process = start()
    wait_for(lambda: count_plans(tmp_path / "helios.db") == 20, process)
    assert stop(process) == 0
    process = start(retention_days=30)
    wait_for(lambda: count_plans(tmp_path / "helios.db") == 0, process)
    assert stop(process) == 0


def test_a_recorder_gives_way_to_what_serves(start, tmp_path):
    upgrade(str(tmp_path / "helios.db"))
    process = start()
    lower = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    wait_for(lambda: os.getpriority(os.PRIO_PROCESS, process.pid) == lower, process)
