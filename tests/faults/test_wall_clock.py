"""The wall clock steps by an hour, either way, while everything goes on: only in the server's own processes."""

from __future__ import annotations

import contextlib
import os
import pathlib
import struct
import subprocess

import pytest
from needs import program
from waiting import wait_until

from tests.faults.bed import LONG_S, assert_whole, bed, lock

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

HOUR_S = 3600


class WallClock:
    """The clock of every process that is started while it is set up."""

    def __init__(self, folder: pathlib.Path, monkeypatch) -> None:
        compiler = program("cc", "gcc", "clang", instruction="the clock's test needs a C compiler (Debian: gcc)")
        library, self._file = folder / "stepped_clock.so", folder / "offset"
        source = pathlib.Path(__file__).parent / "stepped_clock.c"
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        self._file.write_bytes(struct.pack("=q", 0))
        monkeypatch.setenv("LD_PRELOAD", str(library))
        monkeypatch.setenv("TEST_WALL_CLOCK", str(self._file))

    def step(self, seconds: int) -> None:
        """Set the processes' wall clock so far from the system's, at once."""
        with self._file.open("r+b") as file:
            os.pwrite(file.fileno(), struct.pack("=q", seconds), 0)


@pytest.mark.parametrize("step_s", [-HOUR_S])
def test_a_step_of_an_hour_changes_no_time_of_a_run_and_loses_nothing(tmp_path, monkeypatch, step_s):
    clock = WallClock(tmp_path, monkeypatch)
    with bed(tmp_path / "data") as server:
        first = server.submitter.run_id
        server.serves_on()
        clock.step(step_s)
        server.serves_on()
        wait_until(lambda: not server.warned("behind"), "no lag that the clock's step made up", LONG_S)
        with contextlib.closing(lock(server.data_dir / "helios.db")):
            wait_until(lambda: server.warned("behind"), f"the real lag to show: {server.lag_s()}", LONG_S)
            server.serves_on()
            assert 5 < server.lag_s() < HOUR_S / 2
        server.kill("service.engine")
        second = server.submitter.wait_ready(other_than=first, seconds=LONG_S)
        server.serves_on()
        received = server.settle()
        assert {found.run_id for found in received.values()} == {first, second}
        assert_whole(server.settings.database, received)
        started = {row["run_id"]: row["started_wall_ns"] for row in server.sql("SELECT * FROM engine_runs")}
        assert abs((started[second] - started[first]) / 1e9 - step_s) < HOUR_S / 2
        for run in (first, second):
            rows = server.sql("SELECT committed_at, committed_ns FROM plans WHERE run_id = :r ORDER BY fence", r=run)
            assert [row["committed_at"] for row in rows] == sorted(row["committed_at"] for row in rows)
            assert [row["committed_ns"] for row in rows] == sorted(row["committed_ns"] for row in rows)
        minutes = server.sql("SELECT run_id, SUM(plans) AS n FROM plan_minutes GROUP BY run_id ORDER BY run_id")
        counted = "SELECT run_id, COUNT(*) AS n FROM plans WHERE outcome = 'completed' GROUP BY run_id ORDER BY run_id"
        assert minutes == server.sql(counted)
        assert server.ready()
