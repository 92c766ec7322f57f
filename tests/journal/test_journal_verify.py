"""`helios journal dump` and `verify`: exact words for each damage, and no false alarm beside a writer."""

from __future__ import annotations

import threading

import pytest

from service.journal import commands
from service.journal.reader import Gap, JournalReader
from service.journal.segments import PROGRESS_AT, SegmentFile, segment_numbers, segment_path

NAME = "segment-00000001.hj"


@pytest.fixture
def killed(open_writer, helpers, tmp_path):
    """The journal of a killed run: plans 1 to 5, one in each frame of one segment; and where each frame ends."""
    writer = open_writer()
    ends = []
    for fence in range(1, 6):
        writer.append([helpers.plan(fence)], fence)
        ends.append(writer._end)
    helpers.kill(writer)
    return tmp_path / "journal", ends


def overwrite(directory, offset, data):
    with segment_path(directory, 1).open("r+b") as file:
        file.seek(offset)
        file.write(data)


def the_gap(directory):
    reader = JournalReader(directory)
    items = []
    while (item := reader.poll()) is not None:
        items.append(item)
    reader.close()
    (gap,) = [item for item in items if isinstance(item, Gap)]
    return gap


def test_a_missing_tail_of_a_dead_writer_is_a_gap_with_its_fences(killed, open_writer, helpers):
    directory, ends = killed
    overwrite(directory, ends[2], bytes(ends[4] - ends[2]))
    gap = the_gap(directory)
    assert gap.reason == f"{NAME} ends at byte {ends[2]} before the last records that it counts"
    assert (gap.run_id, gap.from_fence, gap.to_fence, gap.lost_records) == ("run-1", 4, 5, 2)
    again = JournalReader(directory, gap.position, run_id="run-1")
    assert again.poll() is None, "told once"
    open_writer("run-2").append([helpers.plan(1)], 1)
    (batch,) = [again.poll()]
    assert (batch.run_id, batch.records[0].fence) == ("run-2", 1)
    assert again.poll() is None
    again.close()


def test_a_missing_tail_is_no_gap_while_a_writer_lives(open_writer, helpers, tmp_path, monkeypatch):
    """Its header may be ahead of what a reader has seen."""
    writer = open_writer()
    writer.append([helpers.plan(1)], 1)
    monkeypatch.setattr(SegmentFile, "frame", lambda *_: None)
    monkeypatch.setattr(SegmentFile, "length_at", lambda *_: 0)
    reader = JournalReader(tmp_path / "journal")
    assert reader.poll() is None
    reader.close()


@pytest.mark.parametrize(
    ("torn_at", "with_length", "words"),
    [
        (0, False, "ends at byte {3} before the last records that it counts"),
        (3, False, "ends at byte {3} before the last records that it counts"),
        (4, True, "is damaged at byte {3}"),
        (60, True, "is damaged at byte {3}"),
    ],
)
def test_a_torn_last_frame_is_told_by_its_place(killed, torn_at, with_length, words):
    """`with_length`: the frame's length is there, so that it is seen as a frame that was not finished."""
    directory, ends = killed
    start = ends[3] + torn_at * with_length
    overwrite(directory, start, bytes(ends[4] - start))
    result = commands.verify(directory)
    problem = f"{NAME} " + words.format(*ends)
    assert result.gaps == [f"{problem} (1 records)"]
    assert [segment.problem for segment in result.segments] == [problem]
    assert commands.describe(result)[-1] == "1 records are known to be missing"
    assert [line["gap"] for line in commands.dump(directory) if "gap" in line] == [problem]


def test_a_corrupt_frame_in_the_middle_is_told_by_its_place(killed):
    directory, ends = killed
    overwrite(directory, ends[1] + 30, b"\xff\xfe\xfd")
    result = commands.verify(directory)
    assert result.gaps == [f"{NAME} is damaged at byte {ends[1]} (1 records)"]
    assert result.segments[0].records == 4
    assert [line["fence"] for line in commands.dump(directory) if "fence" in line] == [1, 2, 4, 5]


@pytest.mark.parametrize(
    ("offset", "data", "words"),
    [
        (0, b"GARBAGE!", f"{NAME} is not a journal segment"),
        (
            8,
            b"\x09\0\0\0",
            f"{NAME} has format version 9 and this program reads version 1; read it with the version of Helios that "
            "wrote it, or move it away",
        ),
        (40, b"\xff\xff\xff\xff", f"{NAME} has a damaged header"),
    ],
)
def test_a_header_that_cannot_be_used_is_told(killed, offset, data, words):
    overwrite(killed[0], offset, data)
    result = commands.verify(killed[0])
    assert [segment.problem for segment in result.segments] == [words]
    assert not result.whole


def test_a_journal_that_is_written_and_shipped_meanwhile_is_whole(open_writer, helpers, tmp_path):
    """A writer and whoever removes what was shipped go on while it is read, again and again."""
    directory = tmp_path / "journal"
    writer = open_writer(budget_bytes=64 << 20)
    done = threading.Event()

    def go_on():
        for fence in range(1, 1200):
            writer.append([helpers.plan(fence), *helpers.filler(fence, 2000)], fence)
            for number in segment_numbers(directory)[:-4]:
                segment_path(directory, number).unlink()
        done.set()

    work = threading.Thread(target=go_on)
    work.start()
    looks = 0
    try:
        while not done.is_set() or not looks:
            result = commands.verify(directory)
            assert result.whole, commands.describe(result)
            assert [line for line in commands.dump(directory) if "gap" in line and "gone" not in line["gap"]] == []
            looks += 1
    finally:
        work.join()
    assert writer.lost_records == 0
    assert commands.verify(directory).removed_segments > 10


def test_a_writer_that_is_held_up_between_two_words_of_its_progress_is_no_damage(
    open_writer, helpers, tmp_path, monkeypatch
):
    writer = open_writer()
    writer.append([helpers.plan(1)], 1)
    path = segment_path(tmp_path / "journal", 1)
    whole = path.read_bytes()
    half = bytearray(whole)
    half[PROGRESS_AT : PROGRESS_AT + 8] = (99).to_bytes(8, "little")
    path.write_bytes(half)
    pauses = []

    def goes_on(seconds):
        pauses.append(seconds)
        path.write_bytes(whole)

    monkeypatch.setattr(commands.time, "sleep", goes_on)
    assert commands.verify(tmp_path / "journal").whole
    assert len(pauses) == 1


def test_a_segment_that_the_budget_took_while_it_was_read_is_missing(open_writer, helpers, tmp_path, monkeypatch):
    """Its records went unread: the count of evictions says so."""
    writer = open_writer(budget_bytes=256 << 10)
    writer.append([helpers.plan(1), *helpers.filler(1, 9000)], 1)
    real, waited = JournalReader.poll, []

    def poll(reader):
        if reader.position is not None and not waited:
            waited.append(True)
            for fence in range(2, 60):
                writer.append([helpers.plan(fence), *helpers.filler(fence, 9000)], fence)
            reader.close()  # as if it had not got to the file before
        return real(reader)

    monkeypatch.setattr(JournalReader, "poll", poll)
    result = commands.verify(tmp_path / "journal")
    assert not result.whole
    assert "gone" in result.gaps[0]
    assert result.lost_records > 0
