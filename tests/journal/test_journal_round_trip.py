"""Writing and reading back: batches, rotation, kills, restarts, the live tail."""

from __future__ import annotations

import fcntl
import os
import pathlib
import tempfile
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.journal.errors import FrameTooLarge, JournalBusy, JournalTooSmall, JournalUnwritable
from service.journal.reader import Batch, JournalReader
from service.journal.records import OutputPublished
from service.journal.segments import HEADER_BYTES, LOCK_FILE, SegmentFile, segment_numbers, segment_path, writer_lives
from service.journal.writer import LOCK_TRIES, JournalWriter


def fences(records):
    return [record.fence for record in records]


def test_what_was_appended_is_read_back_in_order(open_writer, helpers, tmp_path):
    writer = open_writer()
    for fence in range(1, 50):
        writer.append([helpers.plan(fence), OutputPublished(fence, 7, [0])], fence)
    records, gaps = helpers.read_all(tmp_path / "journal")
    assert fences(records) == [fence for fence in range(1, 50) for _ in range(2)]
    assert records[0] == helpers.plan(1)
    assert gaps == []


def test_a_reader_waits_at_the_live_tail_and_goes_on_from_there(open_writer, helpers, tmp_path):
    writer = open_writer()
    reader = JournalReader(tmp_path / "journal")
    assert reader.poll() is None
    writer.append(helpers.filler(1), 1)
    first = reader.poll()
    assert isinstance(first, Batch)
    assert first.run_id == "run-1"
    assert reader.poll() is None
    writer.append(helpers.filler(2), 2)
    assert fences(reader.poll().records) == [2]
    reader.close()


def test_a_reader_that_starts_first_waits_for_the_first_writer(open_writer, helpers, tmp_path):
    reader = JournalReader(tmp_path / "journal")
    assert reader.poll() is None
    writer = open_writer()
    assert writer.journal_id == reader.journal_id
    writer.append(helpers.filler(1), 1)
    assert fences(reader.poll().records) == [1]
    reader.close()


def test_full_segments_rotate_and_are_sealed(open_writer, helpers, tmp_path):
    writer = open_writer()
    for fence in range(1, 200):
        writer.append(helpers.filler(fence, 1000), fence)
    directory = tmp_path / "journal"
    numbers = segment_numbers(directory)
    assert len(numbers) > 3
    assert SegmentFile(directory, numbers[0]).progress().state == 1
    assert SegmentFile(directory, numbers[-1]).progress().state == 0
    records, gaps = helpers.read_all(directory)
    assert fences(records) == list(range(1, 200))
    assert gaps == []


def test_segments_are_reserved_and_never_sparse(open_writer, helpers, tmp_path):
    writer = open_writer(segment_bytes=1 << 20)
    writer.append(helpers.filler(1), 1)
    status = segment_path(tmp_path / "journal", 1).stat()
    assert status.st_size == 1 << 20
    assert status.st_blocks * 512 >= status.st_size


def test_a_new_run_opens_a_new_segment_and_counts_on(open_writer, helpers, tmp_path):
    first = open_writer("run-1")
    first.append(helpers.filler(1), 1)
    first.close()
    second = open_writer("run-2")
    second.append(helpers.filler(1), 1)
    reader = JournalReader(tmp_path / "journal")
    batches = [reader.poll(), reader.poll()]
    assert [batch.run_id for batch in batches] == ["run-1", "run-2"]
    assert [batch.position.segment for batch in batches] == [1, 2]
    assert [batch.position.sequence for batch in batches] == [1, 2]
    reader.close()


def test_a_second_writer_is_refused_until_the_first_is_gone(open_writer, helpers, tmp_path):
    first = open_writer()
    assert writer_lives(tmp_path / "journal") is True
    with pytest.raises(JournalBusy, match="--data-dir"):
        open_writer("run-2")
    helpers.kill(first)
    assert writer_lives(tmp_path / "journal") is False
    open_writer("run-2")


@pytest.mark.parametrize("tries", [1, LOCK_TRIES - 1])
def test_somebody_who_asks_whether_a_writer_lives_keeps_no_writer_out(open_writer, tmp_path, monkeypatch, tries):
    (tmp_path / "journal").mkdir()
    asking = os.open(tmp_path / "journal" / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    fcntl.flock(asking, fcntl.LOCK_SH)
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == tries:
            fcntl.flock(asking, fcntl.LOCK_UN)

    monkeypatch.setattr(time, "sleep", pause)
    writer = open_writer()
    assert len(pauses) == tries
    writer.close()
    os.close(asking)


def test_the_header_knows_the_last_fence_after_each_append(open_writer, helpers, tmp_path):
    writer = open_writer()
    segment = SegmentFile(tmp_path / "journal", 1)
    for fence in (3, 9):
        writer.append(helpers.filler(fence), fence)
        assert segment.progress().last_fence == fence
        assert segment.progress().next_sequence == (1 if fence == 3 else 2)
    segment.close()


def test_an_append_is_one_write(open_writer, helpers, monkeypatch):
    writer = open_writer()
    writes = []
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *call: writes.append(call[0]) or real(*call))
    writer.append([helpers.plan(1), helpers.plan(2), OutputPublished(1, 1, [0])], 2)
    assert len(writes) == 1


def test_a_frame_larger_than_a_segment_is_named_and_counted(open_writer, helpers, tmp_path):
    writer = open_writer()
    with pytest.raises(FrameTooLarge, match=r"1 records .* 61440"):
        writer.append(helpers.filler(1, 100_000), 1)
    writer.append(helpers.filler(2), 2)
    assert writer.lost_records == 1
    records, gaps = helpers.read_all(tmp_path / "journal")
    assert fences(records) == [2]
    assert [gap.lost_records for gap in gaps] == [1]


def test_a_record_that_cannot_be_encoded_costs_only_itself(open_writer, helpers, tmp_path):
    writer = open_writer()
    writer.append([OutputPublished(1, 2**70, [0]), *helpers.filler(2)], 2)
    assert writer.lost_records == 1
    records, gaps = helpers.read_all(tmp_path / "journal")
    assert fences(records) == [2]
    assert [gap.lost_records for gap in gaps] == [1]


def test_unusable_settings_and_directories_are_typed(tmp_path):
    with pytest.raises(JournalTooSmall, match="budget"):
        JournalWriter(tmp_path, run_id="r", budget_bytes=1000)
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalUnwritable, match="--data-dir"):
        JournalWriter(tmp_path / "file" / "journal", run_id="r")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=60),
    cut=st.floats(0, 1),
    zeroed=st.booleans(),
    successor=st.booleans(),
)
def test_a_tail_cut_anywhere_leaves_exactly_the_whole_frames(sizes, cut, zeroed, successor, helpers):
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        writer = JournalWriter(directory, run_id="run-1", segment_bytes=64 << 10, budget_bytes=8 << 20, sync_ms=0)
        ends = []
        for fence, size in enumerate(sizes, 1):
            writer.append(helpers.filler(fence, size), fence)
            ends.append((writer._number, writer._end))
        helpers.kill(writer)
        last = ends[-1][0]
        offset = HEADER_BYTES + int(cut * (ends[-1][1] - HEADER_BYTES))
        _cut(segment_path(directory, last), offset, zeroed)
        if successor:
            next_writer = JournalWriter(directory, run_id="run-2", segment_bytes=64 << 10, budget_bytes=8 << 20)
            next_writer.append(helpers.filler(1_000_000), 1)
            helpers.kill(next_writer)
        records, gaps = helpers.read_all(directory)
        whole = [fence for fence, end in enumerate(ends, 1) if end < (last, 0) or end <= (last, offset)]
        assert fences(records) == whole + [1_000_000] * successor
        lost = len(sizes) - len(whole)
        assert sum(gap.lost_records for gap in gaps) == lost
        assert [gap.to_fence for gap in gaps] == [len(sizes)] * bool(lost) or whole == []


def _cut(path: pathlib.Path, offset: int, zeroed: bool) -> None:
    with path.open("r+b") as file:
        size = path.stat().st_size
        if zeroed:
            file.seek(offset)
            file.write(bytes(size - offset))
        else:
            file.truncate(offset)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    runs=st.lists(st.lists(st.integers(0, 4000), max_size=30), min_size=1, max_size=4),
    stops=st.sets(st.integers(0, 100), max_size=5),
)
def test_readers_that_stop_and_go_on_see_every_record_once(runs, stops, helpers):
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        expected = []
        for number, sizes in enumerate(runs):
            writer = JournalWriter(directory, run_id=f"run-{number}", segment_bytes=64 << 10, budget_bytes=8 << 20)
            for fence, size in enumerate(sizes):
                writer.append(helpers.filler(fence, size), fence)
                expected.append((f"run-{number}", fence))
            helpers.kill(writer)
        reader, seen, polls = JournalReader(directory), [], 0
        while (item := reader.poll()) is not None:
            assert isinstance(item, Batch), item
            seen.extend((item.run_id, record.fence) for record in item.records)
            polls += 1
            if polls in stops:
                reader.close()
                reader = JournalReader(directory, item.position, run_id=item.run_id)
        reader.close()
        assert seen == expected
