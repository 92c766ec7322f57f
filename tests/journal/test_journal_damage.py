"""Every kind of damage ends in a Gap with its reason and count, and reading goes on."""

from __future__ import annotations

import os
import struct

import pytest

from service.journal import commands
from service.journal import writer as writer_module
from service.journal.errors import JournalUnwritable
from service.journal.reader import Batch, JournalReader, Position
from service.journal.segments import (
    HEADER_BYTES,
    PROGRESS_AT,
    SegmentFile,
    journal_identity,
    segment_numbers,
    segment_path,
)

FRAMES = 200


@pytest.fixture
def journal(open_writer, helpers, tmp_path):
    """A closed journal of several segments with plans 1 to FRAMES, one per frame."""
    writer = open_writer()
    for fence in range(1, FRAMES + 1):
        writer.append([helpers.plan(fence), *helpers.filler(fence, 800)], fence)
    writer.close()
    assert len(segment_numbers(tmp_path / "journal")) >= 4
    return tmp_path / "journal"


def plans_of(records):
    return [record.fence for record in records[::2]]


def flip(path, offset):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def first_fence(directory, number):
    segment = SegmentFile(directory, number)
    fence = segment.header.start_fence + 1
    segment.close()
    return fence


def assert_one_gap(directory, helpers, missing, reason):
    records, gaps = helpers.read_all(directory)
    expected = [fence for fence in range(1, FRAMES + 1) if fence not in missing]
    assert plans_of(records) == expected
    (gap,) = gaps
    assert reason in gap.reason
    assert gap.lost_records == 2 * len(missing)
    assert (gap.from_fence, gap.to_fence) == (min(missing), max(missing))
    assert gap.run_id == "run-1"
    assert commands.verify(directory).whole is False


def test_a_flipped_bit_costs_one_frame(journal, helpers):
    flip(segment_path(journal, 2), HEADER_BYTES + 60)
    assert_one_gap(journal, helpers, [first_fence(journal, 2)], "segment-00000002.hj is damaged at byte 4096")


def test_a_flipped_bit_in_the_last_frame_costs_one_frame(journal, helpers):
    last = segment_numbers(journal)[-1]
    segment = SegmentFile(journal, last)
    flip(segment_path(journal, last), segment.progress().end - 10)
    segment.close()
    assert_one_gap(journal, helpers, [FRAMES], "damaged at byte")


def test_a_flipped_length_costs_one_frame(journal, helpers):
    path = segment_path(journal, 2)
    with path.open("r+b") as file:
        file.seek(HEADER_BYTES)
        file.write(struct.pack("<I", 0x7FFFFFF0))
    assert_one_gap(journal, helpers, [first_fence(journal, 2)], "segment-00000002.hj is damaged at byte 4096")


@pytest.mark.parametrize("size", [0, 100, HEADER_BYTES, 30_000])
def test_a_truncated_segment_costs_what_was_cut(journal, helpers, size):
    whole = SegmentFile(journal, 2)
    offset, kept = HEADER_BYTES, 0
    while (frame := whole.frame(offset)) is not None:
        offset = frame.end
        kept += offset <= size
    whole.close()
    missing = range(first_fence(journal, 2) + kept, first_fence(journal, 3))
    os.truncate(segment_path(journal, 2), size)
    assert_one_gap(journal, helpers, missing, "segment-00000002.hj")


def test_a_garbage_segment_is_left_out(journal, helpers):
    missing = range(first_fence(journal, 2), first_fence(journal, 3))
    segment_path(journal, 2).write_bytes(os.urandom(70_000))
    assert_one_gap(journal, helpers, missing, "segment-00000002.hj is not a journal segment")


def test_a_missing_segment_is_noticed(journal, helpers):
    missing = range(first_fence(journal, 2), first_fence(journal, 3))
    segment_path(journal, 2).unlink()
    assert_one_gap(journal, helpers, missing, "segment 2 is gone")


def test_a_segment_of_another_format_version_is_named(journal, helpers):
    missing = range(first_fence(journal, 2), first_fence(journal, 3))
    with segment_path(journal, 2).open("r+b") as file:
        file.seek(8)
        file.write(struct.pack("<I", 7))
    reason = "format version 7 and this program reads version 1; read it with the version of Helios that wrote it"
    assert_one_gap(journal, helpers, missing, reason)


def test_a_segment_of_another_journal_is_left_out(journal, helpers, tmp_path):
    missing = range(first_fence(journal, 2), first_fence(journal, 3))
    other = writer_module.JournalWriter(tmp_path / "other", run_id="x", segment_bytes=64 << 10, budget_bytes=1 << 20)
    other.close()
    segment_path(journal, 2).write_bytes(segment_path(tmp_path / "other", 1).read_bytes())
    assert_one_gap(journal, helpers, missing, "belongs to another journal")


def test_records_of_a_newer_version_are_counted_and_left_out(open_writer, helpers, tmp_path):
    import msgspec

    writer = open_writer()
    writer.append([helpers.plan(1)], 1)
    unknown = type("Future", (msgspec.Struct,), {"__annotations__": {"a": int}}, tag="future", array_like=True)
    writer.append([unknown(5), unknown(6)], 1)
    writer.append([helpers.plan(2)], 2)
    records, gaps = helpers.read_all(tmp_path / "journal")
    assert [record.fence for record in records] == [1, 2]
    assert [gap.lost_records for gap in gaps] == [2]
    assert "cannot read" in gaps[0].reason


def test_damage_in_the_live_segment_is_reported_without_waiting(open_writer, helpers, tmp_path):
    writer = open_writer()
    for fence in (1, 2, 3):
        writer.append([helpers.plan(fence)], fence)
    directory = tmp_path / "journal"
    segment = SegmentFile(directory, 1)
    flip(segment_path(directory, 1), segment.frame(HEADER_BYTES).end + 30)
    segment.close()
    records, gaps = helpers.read_all(directory)
    assert [record.fence for record in records] == [1, 3]
    assert [(gap.from_fence, gap.to_fence, gap.lost_records) for gap in gaps] == [(2, 2, 1)]


def test_a_frame_in_the_making_is_waited_for(open_writer, helpers, tmp_path):
    """Its first bytes are in the file, its last are not."""
    writer = open_writer()
    writer.append([helpers.plan(1)], 1)
    path = segment_path(tmp_path / "journal", 1)
    end = writer._end
    writer.append([helpers.plan(2)], 2)
    whole = path.read_bytes()
    torn = bytearray(whole)
    torn[end + 50 : writer._end] = bytes(writer._end - end - 50)
    torn[PROGRESS_AT : PROGRESS_AT + 40] = struct.pack("=5Q", *_progress_before(writer, end))
    path.write_bytes(torn)
    reader = JournalReader(tmp_path / "journal")
    assert isinstance(reader.poll(), Batch)
    assert reader.poll() is None
    path.write_bytes(whole)
    assert [record.fence for record in reader.poll().records] == [2]
    reader.close()


def _progress_before(writer, end):
    from service.journal.segments import check_word

    return (1, end, 1, 0, check_word(1, end, 1, 0))


def test_a_frame_that_is_finished_while_we_look_is_no_damage(open_writer, helpers, tmp_path, monkeypatch):
    """The frame is torn at our first look; then the writer finishes it and moves its progress on."""
    writer = open_writer()
    writer.append([helpers.plan(1)], 1)
    path = segment_path(tmp_path / "journal", 1)
    whole = path.read_bytes()
    torn = bytearray(whole)
    torn[writer._end - 20 : writer._end] = bytes(20)
    path.write_bytes(torn)
    look = SegmentFile.progress

    def finish_first(segment):
        path.write_bytes(whole)
        return look(segment)

    monkeypatch.setattr(SegmentFile, "progress", finish_first)
    reader = JournalReader(tmp_path / "journal")
    items = [reader.poll(), reader.poll()]
    assert [record.fence for item in items if item is not None for record in item.records] == [1]
    reader.close()


def test_an_untrusted_progress_hides_no_frame(open_writer, helpers, tmp_path):
    writer = open_writer()
    for fence in range(1, 6):
        writer.append([helpers.plan(fence)], fence)
    helpers.kill(writer)
    flip(segment_path(tmp_path / "journal", 1), PROGRESS_AT + 3)
    second = open_writer("run-2")
    second.append([helpers.plan(1)], 1)
    records, gaps = helpers.read_all(tmp_path / "journal")
    assert [record.fence for record in records] == [1, 2, 3, 4, 5, 1]
    assert gaps == []


def test_the_budget_removes_the_oldest_and_counts_it(open_writer, helpers, tmp_path):
    writer = open_writer(budget_bytes=256 << 10)
    for fence in range(1, FRAMES + 1):
        writer.append([helpers.plan(fence), *helpers.filler(fence, 800)], fence)
    writer.close()  # until then its keeper may make room
    directory = tmp_path / "journal"
    assert writer.lost_records > 0
    records, gaps = helpers.read_all(directory)
    assert len(records) + writer.lost_records == 2 * FRAMES
    assert [gap.lost_records for gap in gaps] == [writer.lost_records]
    assert "budget" in gaps[0].reason
    assert sum(file.stat().st_size for file in directory.glob("*.hj")) <= 256 << 10
    assert writer.bytes_used <= 256 << 10


def test_a_reader_that_was_overtaken_knows_exactly_what_it_missed(open_writer, helpers, tmp_path):
    writer = open_writer(budget_bytes=256 << 10)
    writer.append([helpers.plan(1)], 1)
    reader = JournalReader(tmp_path / "journal")
    position = reader.poll().position
    reader.close()
    for fence in range(2, FRAMES + 1):
        writer.append([helpers.plan(fence), *helpers.filler(fence, 800)], fence)
    writer.close()  # until then its keeper may make room
    records, gaps = helpers.read_all(tmp_path / "journal", position)
    assert gaps[0].lost_records + len(records) == 2 * (FRAMES - 1)
    assert "segment 1 is gone" in gaps[0].reason


def test_a_failed_write_costs_its_frame_and_opens_a_new_segment(open_writer, helpers, tmp_path, monkeypatch):
    writer = open_writer()
    writer.append([helpers.plan(1)], 1)
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:40], at))
    writer.append([helpers.plan(2)], 2)
    monkeypatch.setattr(os, "pwrite", real)
    writer.append([helpers.plan(3)], 3)
    assert writer.lost_records == 1
    records, gaps = helpers.read_all(tmp_path / "journal")
    assert [record.fence for record in records] == [1, 3]
    assert [(gap.lost_records, gap.from_fence, gap.to_fence) for gap in gaps] == [(1, 2, 2)]


def test_a_position_from_nowhere_ends_in_a_gap(journal, helpers):
    records, gaps = helpers.read_all(journal, Position(2, 5000, 10))
    assert records[-1].fence == FRAMES
    assert len(gaps) == 1


@pytest.mark.parametrize("text", [b"", b"garbage\n", b"\xff" * 40])
def test_a_damaged_identity_file_is_repaired_from_the_segments(journal, text):
    identity = journal_identity(journal)
    (journal / "journal.id").write_bytes(text)
    assert journal_identity(journal) == identity


def test_the_helper_thread_syncs_at_most_once_per_interval(open_writer, helpers, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    writer = open_writer(sync_ms=1000)
    second = 1_000_000_000
    start = writer._synced_ns
    writer.sync_if_due(start + second)  # nothing was written
    for step in range(30):
        writer.append(helpers.filler(step), step)
        writer.sync_if_due(start + step * second // 10)
    writer.close()
    assert 1 <= len(synced) <= 4  # two intervals at most, and the close


def test_verify_and_dump_tell_a_whole_journal(journal):
    result = commands.verify(journal)
    assert result.whole
    assert sum(segment.records for segment in result.segments) == 2 * FRAMES
    assert result.segments[-1].state == "closed"
    assert commands.describe(result)[-1] == "everything is whole"
    lines = list(commands.dump(journal))
    assert len(lines) == 2 * FRAMES
    assert lines[0]["record"] == "PlanCommitted"
    assert lines[0]["shape"]["kind"] == "decode"


def test_verify_tells_what_the_budget_removed_from_what_was_shipped(open_writer, helpers, tmp_path):
    writer = open_writer(budget_bytes=256 << 10)
    for fence in range(1, 201):
        writer.append([helpers.plan(fence), *helpers.filler(fence, 800)], fence)
    writer.close()
    lost = writer.lost_records  # the keeper may still have made room for a spare
    result = commands.verify(tmp_path / "journal")
    assert result.removed_segments == segment_numbers(tmp_path / "journal")[0] - 1 > 0
    assert result.removed_records == result.evicted_records == lost > 0
    assert f"{lost} unread to keep the budget" in commands.describe(result)[1]
    assert not result.whole


def test_verify_names_a_missing_end_and_a_wrong_directory(journal, tmp_path):
    last = segment_numbers(journal)[-1]
    path = segment_path(journal, last)
    data = path.read_bytes()
    path.write_bytes(data[:HEADER_BYTES] + bytes(len(data) - HEADER_BYTES))
    result = commands.verify(journal)
    assert not result.whole
    whole = SegmentFile(journal, last)
    count = whole.progress().next_sequence - whole.header.first_sequence
    whole.close()
    problem = f"{path.name} ends at byte 4096 before the last records that it counts"
    assert result.segments[-1].problem == problem
    assert result.gaps == [f"{problem} ({count} records)"]
    with pytest.raises(JournalUnwritable, match="nowhere"):
        commands.verify(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
