"""A disk that is full costs records, which are counted and told, and no token; when there is room again all goes on."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
from collections.abc import Iterator

import pytest
from waiting import wait_until

from service.load.faults import file_size_limit
from tests.faults.bed import LONG_S, Bed, assert_conserved, assert_gap_is_told, bed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

DISK_BYTES = 48 << 20
SEGMENT_BYTES = 256 << 10


@contextlib.contextmanager
def small_disk(path: pathlib.Path) -> Iterator[None]:
    """A file system of DISK_BYTES in memory at `path`; skips where none may be mounted."""
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", path], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}; the file-size limit stands for it")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@contextlib.contextmanager
def filled(folder: pathlib.Path) -> Iterator[None]:
    """No block of the folder's file system is free."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(bytes(size))
            except OSError:  # no block of this size is left
                size //= 2
    try:
        yield
    finally:
        ballast.unlink()


@contextlib.contextmanager
def limited(server: Bed) -> Iterator[None]:
    """Engine and recorder may write no file any more: what a quota of nothing does."""
    with contextlib.ExitStack() as stack:
        for module in ("service.engine", "service.recorder"):
            stack.enter_context(file_size_limit(server.child(module), 1))
        yield


def serve_through(server: Bed, full: contextlib.AbstractContextManager[None]) -> None:
    run, lost = server.submitter.run_id, 'flare_journal_lost_records_total{cause="disk_full"}'
    with full:
        wait_until(lambda: server.metric(lost) > 0, f"records to be lost\n{server.log()}", LONG_S)
        wait_until(lambda: server.warned("losing records: disk full"), "the warning", LONG_S)
        for _ in range(3):
            server.serves_on()
        assert server.submitter.run_id == run
    server.serves_on()
    received = server.settle()
    assert_gap_is_told(server, run)
    missing = assert_conserved(server.settings.database, received)[run]
    assert missing.fences
    assert server.metric("flare_trace_lost_records_total") == server.metric(lost)
    newest = server.sql("SELECT MAX(fence) AS fence FROM plans")[0]["fence"]
    assert newest > max(missing.fences)  # the trace goes on behind the loss


def test_a_full_disk_under_journal_and_store(tmp_path):
    with (
        small_disk(tmp_path / "data"),
        bed(tmp_path / "data", journal_segment_bytes=SEGMENT_BYTES, journal_budget=1 << 30) as server,
    ):
        serve_through(server, filled(server.data_dir))


def test_a_file_size_limit_under_journal_and_store(tmp_path):
    with bed(tmp_path / "data", journal_segment_bytes=SEGMENT_BYTES) as server:
        serve_through(server, limited(server))
