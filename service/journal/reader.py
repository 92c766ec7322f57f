"""The recorder's side of the journal: frames in order, and a Gap wherever records are missing.

Nothing that is wrong with a file raises: a damaged frame, header, version or length, and a missing segment or
tail, all come out as a Gap that says which records and fences are missing, and reading goes on behind it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from service.journal.errors import SegmentDamaged, UnknownLayout
from service.journal.packed import decode_records
from service.journal.records import PackedPlan, PlanCommitted, Record
from service.journal.segments import (
    FRAME,
    HEADER_BYTES,
    Frame,
    SegmentFile,
    count_records,
    journal_identity,
    segment_numbers,
    writer_lives,
)

Decode = Callable[[bytes], list[Record]]
_LOOK_AHEAD = 64
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError, UnknownLayout)
_PLANS = (PlanCommitted, PackedPlan)


class Position(NamedTuple):
    """A place in a journal: segment number, byte offset in it, and the number of records before it."""

    segment: int
    offset: int
    sequence: int


class Batch(NamedTuple):
    """One frame: its records, the positions before and behind it, and the run that wrote it.

    `wall_ns` and `monotonic_ns` were read together when that run's writer opened.
    """

    records: list[Record]
    start: Position
    position: Position
    run_id: str
    wall_ns: int
    monotonic_ns: int


@dataclasses.dataclass(frozen=True, slots=True)
class Gap:
    """Records are missing, or a file is damaged; go on at `position`.

    `lost_records` is exact where a readable frame or header follows or the damaged segment's own progress says
    it, else 0. `from_fence` and `to_fence` are inclusive and None where unknown; they belong to `run_id`.
    """

    reason: str
    run_id: str | None
    from_fence: int | None
    to_fence: int | None
    lost_records: int
    position: Position


class JournalReader:
    """Reads a journal directory from a position, or from its oldest segment when that is None.

    `poll` returns None at the live tail; ask again later. `run_id` is the run of the last batch. `decode` makes the
    records of a frame: decode_records, or decode_packed for one who takes packed plans as they are. The directory may
    be empty at first. Raises JournalUnwritable from the constructor only.
    """

    def __init__(
        self,
        directory: pathlib.Path | str,
        position: Position | None = None,
        *,
        run_id: str | None = None,
        decode: Decode = decode_records,
    ) -> None:
        self.directory = pathlib.Path(directory)
        self.journal_id = journal_identity(self.directory)
        self.position = position
        self.run_id = run_id
        self._decode = decode
        self._segment: SegmentFile | None = None
        self._fence: int | None = None
        self._damage: list[str] = []
        self._missing = ""
        self._left = 0
        self._left_whole = False

    def poll(self) -> Batch | Gap | None:
        """The next frame or gap, or None when there is nothing more now."""
        while True:
            if self._segment is None and not self._open():
                return self._find_segment()
            assert self._segment is not None
            assert self.position is not None
            frame = self._segment.frame(self.position.offset)
            if frame is not None and frame.sequence >= self.position.sequence:
                return self._accept(frame)
            skipped = self._skip_damaged()
            if skipped is not None:
                return skipped
            following = self._later(self._segment.header.number)
            if not following:
                return self._missing_tail()
            # The writer may have written here before it went on: look once more, now that it has.
            frame = self._segment.frame(self.position.offset)
            if frame is None or frame.sequence < self.position.sequence:
                gap = self._advance(following)
                if gap is not None:
                    return gap

    def close(self) -> None:
        """Let go of the open segment."""
        self._leave()

    def _open(self) -> bool:
        """Open the segment that the position names."""
        if self.position is None:
            return False
        try:
            self._segment = SegmentFile(self.directory, self.position.segment, self.journal_id)
        except FileNotFoundError:
            return False
        except SegmentDamaged as error:
            self._damage = [str(error)]
            return False
        return True

    def _find_segment(self) -> Gap | Batch | None:
        """The position's segment cannot be opened: begin at the oldest, or go on to the next one present."""
        number = 0 if self.position is None else self.position.segment
        following = self._later(number)
        if self.position is None:
            return self._begin(following)
        if not following and not self._damage:
            return None
        self._missing = f"segment {number} is gone"
        self._left_whole = False
        gap = self._advance(following)
        return gap if gap is not None else self.poll()

    def _begin(self, numbers: list[int]) -> Gap | Batch | None:
        """Start a journal that was never read: at its oldest segment."""
        if not numbers:
            return None
        evicted = self._newest_evictions(numbers)
        self.position = Position(numbers[0], HEADER_BYTES, 0)
        if not self._open():
            return self._find_segment()
        assert self._segment is not None
        first = self._segment.header.first_sequence
        self.position = Position(numbers[0], HEADER_BYTES, first)
        if evicted and first:
            return Gap(
                "removed to keep the journal's budget before they were read",
                None, None, None, min(evicted, first), self.position,
            )  # fmt: skip
        return self.poll()

    def _newest_evictions(self, numbers: list[int]) -> int:
        for number in reversed(numbers):
            try:
                segment = SegmentFile(self.directory, number, self.journal_id)
            except (FileNotFoundError, SegmentDamaged):
                continue
            evicted = segment.evicted_records()
            segment.close()
            return evicted
        return 0

    def _accept(self, frame: Frame) -> Batch | Gap:
        """The frame as a batch; first a gap when records before it are missing."""
        assert self._segment is not None
        assert self.position is not None
        try:
            records = self._decode(frame.payload)
        except _UNREADABLE as error:
            self._damage = [f"{self._segment.path.name} holds records that this version cannot read: {error}"]
            self._enter_run(self._segment)
            after = frame.sequence + _countable(frame.payload)
            behind = Position(self.position.segment, frame.end, after)
            return self._gap(None, after - self.position.sequence, behind)
        if frame.sequence > self.position.sequence:
            lost = frame.sequence - self.position.sequence
            self._enter_run(self._segment)
            self._damage = self._damage or ["records were dropped while they were written"]
            behind = self.position._replace(sequence=frame.sequence)
            return self._gap(_fence_before(self._segment, self.position.offset), lost, behind)
        header = self._segment.header
        self._enter_run(self._segment)
        self._damage = []
        for record in records:
            if isinstance(record, _PLANS):
                self._fence = record.fence
        start = self.position
        self.position = Position(start.segment, frame.end, frame.sequence + len(records))
        return Batch(records, start, self.position, header.run_id, header.wall_ns, header.monotonic_ns)

    def _skip_damaged(self) -> Gap | None:
        """A frame that the writer finished but that is wrong now: go on behind it."""
        assert self._segment is not None
        assert self.position is not None
        behind = self._behind_damage(self._segment, self.position)
        if behind is None:
            return None
        offset = self.position.offset
        again = self._segment.frame(offset)
        if again is not None and again.sequence >= self.position.sequence:
            return None  # it was being written when we looked first
        end, sequence, fence = behind
        self._damage = [f"{self._segment.path.name} is damaged at byte {offset}"]
        self._enter_run(self._segment)
        return self._gap(fence, sequence - self.position.sequence, Position(self.position.segment, end, sequence))

    def _behind_damage(self, segment: SegmentFile, position: Position) -> tuple[int, int, int | None] | None:
        """Where reading goes on: offset, records and fence before it. None where nothing shows that this is damage.

        That is the next whole frame; else where the damaged frame's length leads, which may be damaged itself; else the
        place of a writer that lives.
        """
        progress = segment.progress()
        written = progress is not None and position.offset < progress.end and progress.next_sequence > position.sequence
        if progress is not None and written:
            sequences = range(position.sequence + 1, progress.next_sequence)
            found = segment.next_frame(position.offset, progress.end, sequences)
            if found is not None:
                return found[0], found[1].sequence, _fence_before(segment, found[0])
        length = segment.length_at(position.offset)
        end = position.offset + FRAME.size + length
        if length and end <= segment.header.size:
            if progress is not None and written and progress.end == end:
                return end, progress.next_sequence, progress.last_fence
            frame = segment.frame(end)
            if frame is not None and frame.sequence > position.sequence:
                return end, frame.sequence, _fence_before(segment, end)
        if progress is None or not (written and length) or self._later(segment.header.number):
            return None
        return (progress.end, progress.next_sequence, progress.last_fence) if writer_lives(self.directory) else None

    def _missing_tail(self) -> Gap | None:
        """What the newest segment's header counts and the segment does not hold, once its writer is gone."""
        assert self._segment is not None
        assert self.position is not None
        offset, sequence = self.position.offset, self.position.sequence
        progress = self._segment.progress()
        if progress is None or progress.next_sequence <= sequence or writer_lives(self.directory) is not False:
            return None
        frame = self._segment.frame(offset)
        if (frame is not None and frame.sequence >= sequence) or self._later(self._segment.header.number):
            return None  # it came while we looked; the next poll finds it
        lost = progress.next_sequence - sequence
        self._damage = [f"{self._segment.path.name} ends at byte {offset} before the last records that it counts"]
        self._enter_run(self._segment)
        end = Position(self.position.segment, max(offset, progress.end), progress.next_sequence)
        return self._gap(progress.last_fence, lost, end)

    def _advance(self, numbers: list[int]) -> Gap | None:
        """Go on to the first readable one of the later segments; a gap when that leaves something out."""
        assert self.position is not None
        tail_fence = self._leave()
        for number in numbers:
            try:
                segment = SegmentFile(self.directory, number, self.journal_id)
            except FileNotFoundError:
                continue
            except SegmentDamaged as error:
                self._damage.append(str(error))
                self.position = self.position._replace(segment=number + 1, offset=HEADER_BYTES)
                continue
            self._segment = segment
            return self._arrive(segment, tail_fence)
        if not self._damage:
            return None
        if not numbers:
            self.position = self.position._replace(segment=self.position.segment + 1, offset=HEADER_BYTES)
        return self._gap(tail_fence, 0, self.position)

    def _arrive(self, segment: SegmentFile, tail_fence: int | None) -> Gap | None:
        """A readable segment follows: the gap before it, if records are missing."""
        assert self.position is not None
        header = segment.header
        lost = header.first_sequence - self.position.sequence
        position = Position(header.number, HEADER_BYTES, header.first_sequence)
        if header.run_id == self.run_id:
            tail_fence = header.start_fence
        if lost <= 0 and not self._damage:
            self.position = position
            return None
        self._damage = self._damage or [self._missing_before(header.number)]
        return self._gap(tail_fence, max(0, lost), position)

    def _missing_before(self, number: int) -> str:
        """Why records before segment `number` are missing, where no file is damaged."""
        first, last = self._left + 1, number - 1
        if first > last or not self._left_whole:
            return self._missing
        return f"segment {first} is gone" if first == last else f"segments {first} to {last} are gone"

    def _gap(self, to_fence: int | None, lost: int, position: Position) -> Gap:
        start = None if self._fence is None else self._fence + 1
        if to_fence is not None and start is not None:
            if to_fence < start:
                start = to_fence = None
            else:
                self._fence = to_fence
        gap = Gap("; ".join(self._damage), self.run_id, start, to_fence, lost, position)
        self.position = position
        self._damage = []
        return gap

    def _enter_run(self, segment: SegmentFile) -> None:
        if segment.header.run_id != self.run_id:
            self.run_id = segment.header.run_id
            self._fence = None

    def _leave(self) -> int | None:
        """Close the segment; its last committed fence where its header can be trusted."""
        if self._segment is None:
            return None
        assert self.position is not None
        progress = self._segment.progress()
        same_run = self._segment.header.run_id == self.run_id
        self._missing = f"{self._segment.path.name} is damaged or cut off at byte {self.position.offset}"
        self._left = self._segment.header.number
        self._left_whole = progress is not None and progress.next_sequence == self.position.sequence
        self._segment.close()
        self._segment = None
        return progress.last_fence if progress is not None and same_run else None

    def _later(self, number: int) -> list[int]:
        return [other for other in segment_numbers(self.directory) if other > number]


def _countable(payload: bytes) -> int:
    """How many records an unreadable payload holds; 0 when even that cannot be read."""
    try:
        return count_records(payload)
    except (msgspec.DecodeError, RecursionError):
        return 0


def _fence_before(segment: SegmentFile, offset: int) -> int | None:
    """The fence before the first plan at or behind `offset`; the segment's last fence when no plan follows soon."""
    for _ in range(_LOOK_AHEAD):
        frame = segment.frame(offset)
        if frame is None:
            break
        with contextlib.suppress(*_UNREADABLE):
            for record in decode_records(frame.payload):
                if isinstance(record, PlanCommitted):
                    return record.fence - 1
        offset = frame.end
    progress = segment.progress()
    return None if progress is None else progress.last_fence
