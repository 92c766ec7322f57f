"""Full, slow and small disks: what the writer loses, says, and never waits for."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading

import pytest

from service.journal import writer as writer_module
from service.journal.segments import SegmentFile, segment_numbers, segment_path
from service.journal.status import WARNINGS


def test_a_full_disk_costs_records_and_not_the_engine(open_writer, helpers, tmp_path, monkeypatch, disk):
    writer = open_writer()
    monkeypatch.setattr(writer_module, "RETRY_NS", 0)
    for fence in range(1, 101):
        disk.full = fence > 30
        writer.append([helpers.plan(fence), *helpers.filler(fence, 800)], fence)
    lost = writer.lost_records
    assert lost == 140
    assert writer.status().stuck == "disk_full"
    assert writer.status().lost["disk_full"] == lost
    disk.full = False
    helpers.wait_until(lambda: writer._keeper._spare is not None)
    assert writer.status().stuck is None
    writer.append([helpers.plan(101)], 101)
    assert writer.lost_records == lost
    records, gaps = helpers.read_all(tmp_path / "journal")
    assert records[-1].fence == 101
    assert [gap.lost_records for gap in gaps] == [lost]
    assert (gaps[0].from_fence, gaps[0].to_fence) == (31, 100)


def test_a_freed_disk_is_found_without_traffic(open_writer, helpers, disk):
    writer = open_writer()
    disk.full = True
    for fence in (1, 2):  # the first costs the segment, the second finds no other
        writer.append([helpers.plan(fence)], fence)
    assert writer.status().stuck == "disk_full"
    disk.full = False
    writer.sync_if_due(writer._synced_ns + 1)
    helpers.wait_until(lambda: writer.status().stuck is None)


def test_a_disk_that_is_full_from_the_start_is_survived(helpers, tmp_path, monkeypatch, disk):
    monkeypatch.setattr(writer_module, "RETRY_NS", 0)
    disk.full = True
    writer = writer_module.JournalWriter(tmp_path, run_id="r", segment_bytes=64 << 10, budget_bytes=1 << 20)
    writer.append([helpers.plan(1)], 1)
    disk.full = False
    helpers.wait_until(lambda: writer._keeper._spare is not None)
    writer.append([helpers.plan(2)], 2)
    assert writer.lost_records == 1
    records, _gaps = helpers.read_all(tmp_path)
    assert [record.fence for record in records] == [2]
    writer.close()


def test_a_real_limit_on_file_sizes_is_a_full_disk(helpers, tmp_path):
    """In a process of its own, whose files may not grow to a segment's size."""
    script = (
        "import resource, sys; from service.journal.writer import JournalWriter;"
        "from service.journal.records import OutputPublished;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000));"
        "writer = JournalWriter(sys.argv[1], run_id='r', segment_bytes=65536, budget_bytes=1 << 20);"
        "[writer.append([OutputPublished(fence, fence, [0])], fence) for fence in range(1, 6)];"
        "print(writer.status().stuck, writer.lost_records); writer.close()"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["disk_full", "5"]


def test_a_slow_reservation_holds_no_append_up(open_writer, helpers, tmp_path, monkeypatch):
    """The keeper hangs while it reserves the spare's blocks; rotation goes on, with short segments reserved at once."""
    writer = open_writer(budget_bytes=320 << 10)
    entered, release = threading.Event(), threading.Event()
    real = os.posix_fallocate

    def slow(*arguments):
        if threading.current_thread().name == "journal-keeper":
            entered.set()
            release.wait()
        return real(*arguments)

    monkeypatch.setattr(os, "posix_fallocate", slow)
    writer.append(helpers.filler(0, 12_000), 0)
    writer.sync_if_due(writer._synced_ns + 1)
    try:
        assert entered.wait(30)
        frames = [[helpers.plan(fence), *helpers.filler(fence, 800)] for fence in range(1, 201)]
        work = threading.Thread(target=lambda: [writer.append(f, n) for n, f in enumerate(frames, 1)], daemon=True)
        work.start()
        work.join(30)
        assert not work.is_alive()
        used = sum(path.stat().st_size for path in writer.directory.glob("*.hj"))
        assert used + (64 << 10) <= 320 << 10, "what the keeper is about to take counts"
    finally:
        release.set()
    assert writer._number > 5
    for number in segment_numbers(tmp_path / "journal"):
        status = segment_path(tmp_path / "journal", number).stat()
        assert status.st_blocks * 512 >= status.st_size
    helpers.wait_until(lambda: writer._keeper._spare is not None)
    writer.close()
    assert writer.status().lost["over_budget"] == writer.lost_records > 0
    records, gaps = helpers.read_all(tmp_path / "journal")
    assert len(records) + sum(gap.lost_records for gap in gaps) == 401


def test_making_room_reads_headers_only(open_writer, helpers, monkeypatch):
    writer = open_writer(budget_bytes=256 << 10)
    monkeypatch.setattr(SegmentFile, "frame", lambda *_: pytest.fail("a whole segment is read"))
    for fence in range(1, 201):
        writer.append([helpers.plan(fence), *helpers.filler(fence, 800)], fence)
    assert writer.status().lost["over_budget"] == writer.lost_records > 0


def test_a_budget_whose_segments_cannot_be_removed_is_not_called_a_full_disk(open_writer, helpers, monkeypatch):
    """The directory may not be changed any more: what is over budget stays, and the disk has room."""
    monkeypatch.setattr(writer_module, "RETRY_NS", 0)
    writer = open_writer(budget_bytes=256 << 10)
    monkeypatch.setattr(pathlib.Path, "unlink", _refused)
    for fence in range(1, 401):
        writer.append([helpers.plan(fence), *helpers.filler(fence, 800)], fence)
    helpers.wait_until(lambda: writer.status().stuck is not None)
    assert writer.status().stuck == "over_budget"
    assert writer.status().lost["disk_full"] == 0
    assert writer.status().lost["over_budget"] == writer.lost_records > 0
    assert "disk" not in WARNINGS["over_budget"]
    monkeypatch.undo()
    writer.sync_if_due(writer._synced_ns + 1)
    helpers.wait_until(lambda: writer.status().stuck is None)
    writer.append([helpers.plan(401)], 401)


def _refused(path, **_):
    raise PermissionError(13, "Permission denied", str(path))
