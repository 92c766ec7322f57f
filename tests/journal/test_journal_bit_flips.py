"""One bit of a journal changes while its engine writes on: one frame is lost, and its loss is known exactly."""

from __future__ import annotations

import pathlib
import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from service.journal.reader import Batch, Gap, JournalReader
from service.journal.segments import HEADER_BYTES, SegmentFile, segment_numbers, segment_path
from service.journal.writer import JournalWriter
from tests.journal.conftest import filler, kill, plan_record

FRAMES = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 200)), min_size=2, max_size=12)
"""Records of each frame, and how large they are."""


def frames_of(directory: pathlib.Path, number: int) -> list[tuple[int, int]]:
    """Where each whole frame begins and ends."""
    segment = SegmentFile(directory, number)
    places, offset = [], HEADER_BYTES
    while (frame := segment.frame(offset)) is not None:
        places.append((offset, frame.end))
        offset = frame.end
    segment.close()
    return places


def flip(path: pathlib.Path, offset: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def read(reader: JournalReader) -> tuple[list[object], int]:
    """What is there now, and how many records are told to be lost."""
    records, lost = [], 0
    while (item := reader.poll()) is not None:
        if isinstance(item, Batch):
            records += item.records
        else:
            assert isinstance(item, Gap)
            assert "is damaged at byte" in item.reason
            lost += item.lost_records
    return records, lost


def written(writer: JournalWriter, frames, first: int) -> list[list[object]]:
    """Writes the frames; their records, each a plan and what fills it."""
    made = []
    for fence, (count, size) in enumerate(frames, first):
        made.append([plan_record(fence), *(record for _ in range(count - 1) for record in filler(fence, size))])
        writer.append(made[-1], fence)
    return made


@settings(max_examples=150)
@given(
    before=FRAMES,
    after=FRAMES,
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
    read_to=st.integers(0, 3),
)
def test_a_bit_that_flips_ahead_of_the_reader_costs_its_frame_alone(before, after, place, bit, read_to):
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name) / "journal"
        writer = JournalWriter(directory, run_id="run-1", segment_bytes=64 << 10, budget_bytes=8 << 20, sync_ms=0)
        reader = JournalReader(directory)
        read_first = before[: min(read_to, len(before) - 1)]
        made = written(writer, read_first, 1)
        records, _ = read(reader)
        made += written(writer, before[len(read_first) :], 1 + len(read_first))
        places = frames_of(directory, 1)
        ahead = places[len(read_first) :]
        offset = ahead[0][0] + int(place * (ahead[-1][1] - ahead[0][0]))
        hit = next(number for number, (begin, end) in enumerate(places) if begin <= offset < end)
        flip(segment_path(directory, 1), offset, bit)
        more, lost = read(reader)
        made += written(writer, after, 1 + len(before))
        rest, lost_later = read(reader)
        kill(writer)
        last, lost_last = read(reader)
        reader.close()
        expected = [record for number, frame in enumerate(made) if number != hit for record in frame]
        assert [*records, *more, *rest, *last] == expected
        assert lost + lost_later + lost_last == len(made[hit])


def test_a_length_that_leads_nowhere_does_not_hold_up_what_is_written_behind_it(open_writer, tmp_path):
    """The reader does not wait for the segment's end."""
    writer, directory = open_writer(), tmp_path / "journal"
    reader = JournalReader(directory)
    written(writer, [(1, 0)] * 3, 1)
    flip(segment_path(directory, 1), frames_of(directory, 1)[1][0] + 3, 6)
    records, lost = read(reader)
    assert ([record.fence for record in records], lost) == ([1, 3], 1)
    assert segment_numbers(directory) == [1]
    reader.close()
