"""What happens to the recorder and the store leaves serving untouched, and the trace ends whole."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest
from waiting import wait_until

from tests.e2e.helios_server import process_state
from tests.faults.bed import LONG_S, assert_whole, bed, lock

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def stored_plans(server) -> int:
    """How many the store has; 0 while it does not answer."""
    return sum(row["n"] for row in server.sql("SELECT COUNT(*) AS n FROM plans"))


def test_a_recorder_that_is_killed_again_and_again_loses_and_repeats_nothing(tmp_path):
    with bed(tmp_path / "data") as server:
        recorder = server.child("service.recorder")
        for _ in range(3):
            before = stored_plans(server)
            wait_until(lambda n=before: stored_plans(server) > n, "it to store", LONG_S)
            os.kill(recorder, signal.SIGKILL)
            server.serves_on()
            recorder = server.replaced("service.recorder", recorder)
        assert_whole(server.settings.database, server.settle())


def test_a_foreign_write_lock_for_eight_seconds_delays_the_trace_and_nothing_else(tmp_path):
    with bed(tmp_path / "data") as server:
        with contextlib.closing(lock(server.data_dir / "helios.db")):
            wait_until(lambda: (server.lag_s() or 0) >= 8, "the recorder to be locked out for 8 s", LONG_S)
            wait_until(lambda: server.warned("behind: its records wait in the journal"), "the lag at /health/ready")
            server.serves_on()
        assert "sink sql cannot be used now" in server.log()
        assert_whole(server.settings.database, server.settle())


def test_an_engine_that_is_killed_while_the_store_is_locked_is_replaced_all_the_same(tmp_path):
    with bed(tmp_path / "data") as server:
        first = server.submitter.run_id
        with contextlib.closing(lock(server.data_dir / "helios.db")):
            server.kill("service.engine")
            server.submitter.wait_ready(other_than=first, seconds=LONG_S)
            server.serves_on()
        assert_whole(server.settings.database, server.settle())


def test_a_reader_that_stays_open_bounds_the_log_and_the_trace_waits_for_it(tmp_path):
    limit = 2 << 20
    with bed(tmp_path / "data", store_wal_limit=limit) as server:
        wal = server.data_dir / "helios.db-wal"
        with contextlib.closing(lock(server.data_dir / "helios.db")) as reader:
            reader.execute("ROLLBACK")
            reader.execute("BEGIN")
            reader.execute("SELECT COUNT(*) FROM plans").fetchone()
            wait_until(lambda: "reader's open transaction" in server.log(), "the recorder to wait", LONG_S)
            reached = wal.stat().st_size
            wait_until(lambda: server.warned("behind: its records wait"), "the lag at /health/ready", LONG_S)
            server.serves_on()
            assert limit < reached == wal.stat().st_size < 4 * limit  # and what a slow machine stores in one go
            assert server.metric("flare_store_wal_bytes") == reached
        assert_whole(server.settings.database, server.settle())
        wait_until(lambda: server.metric("flare_store_wal_bytes") <= limit, "the log to be small again", LONG_S)


def test_a_recorder_that_hangs_is_told_and_catches_up(tmp_path):
    with bed(tmp_path / "data") as server:
        recorder = server.kill("service.recorder", signal.SIGSTOP)
        wait_until(lambda: process_state(recorder) == "T", "the recorder to stop")
        wait_until(lambda: server.warned("the recorder does not answer"), "the silence at /health/ready", LONG_S)
        server.serves_on()
        os.kill(recorder, signal.SIGCONT)
        assert_whole(server.settings.database, server.settle())
