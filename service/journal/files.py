"""The writing side of segment files: creation, the spare, the budget, syncing. Runs beside the hot path.

Every segment's blocks are reserved before its first byte is written: a full disk is an error of the reservation and
never of an append. What takes long (reserving a segment, syncing) runs on `Keeper`'s thread and outside its lock. The
writer only calls `take` when a segment is full; in the ordinary case a spare waits there, and while the keeper is
still busy a short segment is reserved on the spot.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import pathlib
import struct
import threading
from collections.abc import Callable
from typing import NamedTuple

from service.journal.errors import SegmentDamaged
from service.journal.segments import (
    EVICTED_WORD,
    FRESH_FILE,
    HEADER_BYTES,
    PROGRESS_AT,
    SPARE_FILE,
    SegmentFile,
    count_records,
    segment_numbers,
    segment_path,
)
from service.journal.status import BudgetTaken

SHORT_BYTES = 1 << 20
"""Of a segment that is reserved on the spot; more only where one frame needs it."""


class Tail(NamedTuple):
    """Where a journal's last segment ended."""

    number: int
    sequence: int
    evicted_records: int


class OpenSegment(NamedTuple):
    """A segment being written, all of its `size` bytes reserved on the disk; the map covers its header page."""

    number: int
    fd: int
    map: mmap.mmap
    size: int


def find_tail(directory: pathlib.Path, journal_id: str) -> Tail:
    """The highest segment number present, with the record count and evictions of the newest readable segment."""
    numbers = segment_numbers(directory)
    for number in reversed(numbers):
        try:
            segment = SegmentFile(directory, number, journal_id)
        except (FileNotFoundError, SegmentDamaged):
            continue
        try:
            return Tail(numbers[-1], _end_sequence(segment), segment.evicted_records())
        finally:
            segment.close()
    return Tail(numbers[-1] if numbers else 0, 0, 0)


def records_in(directory: pathlib.Path, number: int, following: int) -> int:
    """How many records segment `number` holds, by headers alone; 0 when they cannot be read.

    `following`: the next segment present. Where it is the very next one, its first record ends this segment.
    """
    own = _ends(directory, number)
    if own is None:
        return 0
    after = _ends(directory, following) if following == number + 1 else None
    return max(0, (own[1] if after is None else after[0]) - own[0])


def _ends(directory: pathlib.Path, number: int) -> tuple[int, int] | None:
    """Record counts at a segment's beginning and, as its progress says, at its end; None when it is unreadable."""
    try:
        segment = SegmentFile(directory, number)
    except (FileNotFoundError, SegmentDamaged):
        return None
    progress = segment.progress()
    segment.close()
    first = segment.header.first_sequence
    return first, first if progress is None else progress.next_sequence


def _end_sequence(segment: SegmentFile) -> int:
    """The record count behind the segment's last whole frame, or what its progress says where that is more."""
    progress = segment.progress()
    offset = progress.end if progress is not None else HEADER_BYTES
    sequence = progress.next_sequence if progress is not None else segment.header.first_sequence
    while (frame := segment.frame(offset)) is not None:
        if frame.sequence >= sequence:
            with contextlib.suppress(Exception):  # an unreadable payload counts no records
                sequence = frame.sequence + count_records(frame.payload)
        offset = frame.end
    return sequence


class Keeper:
    """Keeps one spare segment ready and the directory within its budget; syncs and closes files on its thread.

    Segments, the spare and whatever is being made take `budget_bytes` at the most, at every moment. The oldest segment
    goes when more is needed; the newest one stays. What an unlink does not free yet counts until the file is closed.

    The lock guards this account. It is held for quick calls on files, and by `take` for a short reservation: never
    while the keeper reserves a whole segment or syncs, nor while records are read. Taking a spare needs no lock: only
    the keeper's thread makes one, while there is none, and only the writer takes it.
    """

    def __init__(self, directory: pathlib.Path, segment_bytes: int, budget_bytes: int, evicted_records: int) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._budget_bytes = budget_bytes
        self._spare_path = directory / SPARE_FILE
        self._files = threading.Lock()
        self._spare: int | None = None
        self._promised_bytes = 0
        self._newest: OpenSegment | None = None
        self._refused: OSError | None = None
        self._retired: dict[int, OpenSegment] = {}
        self._closing = -1
        self._unfreed = (0, 0)
        self._wake = threading.Event()
        self._stopping = False
        self._sync_fd = -1
        self._spare_wanted = False
        self.evicted_records = evicted_records
        self.newly_evicted = 0
        self.bytes_used = 0
        self.sync_failures = 0
        self._make_spare()
        self.measure()
        self._thread = threading.Thread(target=self._run, name="journal-keeper", daemon=True)
        self._thread.start()

    def take(self, number: int, needed_bytes: int, header_of: Callable[[int], bytes]) -> OpenSegment:
        """Segment `number`, of at least `needed_bytes` and in place under its name. `header_of`: its header by size.

        Raises OSError when the disk is full: then only a spare that the keeper could reserve ends the refusal.
        """
        try:
            segment = self._take_spare(number, header_of) or self._take_short(number, needed_bytes, header_of)
        except OSError as error:
            self.refuse(error)
            raise
        self._newest = segment
        self._note_evictions()
        return segment

    def _take_spare(self, number: int, header_of: Callable[[int], bytes]) -> OpenSegment | None:
        fd = self._spare
        if fd is None:
            return None
        try:
            return self._place(fd, self._spare_path, number, self._segment_bytes, header_of)
        finally:
            self._spare = None  # only now may the keeper use the spare's name again

    def _take_short(self, number: int, needed_bytes: int, header_of: Callable[[int], bytes]) -> OpenSegment:
        self.request(spare=True)
        if self._refused is not None:
            raise type(self._refused)(*self._refused.args)
        size = min(self._segment_bytes, max(SHORT_BYTES, -(-needed_bytes // HEADER_BYTES) * HEADER_BYTES))
        path = self._directory / FRESH_FILE
        with self._files:
            self._make_room(size)
            return self._place(_reserved(path, size), path, number, size, header_of)

    def _place(
        self, fd: int, path: pathlib.Path, number: int, size: int, header_of: Callable[[int], bytes]
    ) -> OpenSegment:
        """Write the header into a reserved file and give it the segment's name. On an error the file is gone."""
        try:
            _write_whole(fd, header_of(size).ljust(HEADER_BYTES, b"\0"))
            mapped = mmap.mmap(fd, HEADER_BYTES)
            path.rename(segment_path(self._directory, number))
        except BaseException:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        return OpenSegment(number, fd, mapped, size)

    def refuse(self, error: OSError) -> None:
        """The disk or the budget is full, or the disk broken: no segment is reserved on the spot until the keeper
        could reserve a spare.
        """
        self._refused = error

    @property
    def refuses(self) -> bool:
        """Whether the last attempt to get disk space failed."""
        return self._refused is not None

    def retire(self, segment: OpenSegment) -> None:
        """Sync and close a segment that is written no more."""
        self._retired[segment.number] = segment
        self._wake.set()

    def request(self, *, sync_fd: int = -1, spare: bool = False) -> None:
        """Ask for a sync of an open segment, or for a spare; returns at once."""
        if sync_fd >= 0:
            self._sync_fd = sync_fd
        if spare:
            self._spare_wanted = True
        self._wake.set()

    def measure(self) -> None:
        """Bring bytes_used up to date."""
        self.bytes_used = sum(self._sizes().values())

    def close(self) -> None:
        """Finish what was asked for, and stop."""
        self._stopping = True
        self._wake.set()
        self._thread.join()
        if self._spare is not None:
            os.close(self._spare)
        for name in (SPARE_FILE, FRESH_FILE):
            (self._directory / name).unlink(missing_ok=True)
        self.measure()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait()
            self._wake.clear()
            self._work()
        self._work()

    def _work(self) -> None:
        fd, self._sync_fd = self._sync_fd, -1
        if fd >= 0 and all(segment.fd != fd for segment in tuple(self._retired.values())):
            self._sync(fd)
        for number in tuple(self._retired):
            self._closing = number  # before it leaves the table, so that nobody takes it for closed
            segment = self._retired.pop(number, None)
            if segment is not None:
                self._sync(segment.fd)
                _close(segment)
            self._closing = -1
        if self._spare_wanted and not self._stopping:
            self._spare_wanted = False
            self._make_spare()
        self.measure()

    def _sync(self, fd: int) -> None:
        try:
            os.fdatasync(fd)
        except OSError:
            self.sync_failures += 1

    def _make_spare(self) -> None:
        """A file of a segment's size under the spare's name, all of its blocks reserved, unless one waits."""
        if self._spare is not None:
            return
        try:
            with self._files:
                self._make_room(self._segment_bytes)
                self._promised_bytes = self._segment_bytes
            fd = _reserved(self._spare_path, self._segment_bytes)
        except OSError as error:  # noticed when the spare is needed
            self.refuse(error)
            return
        finally:
            self._promised_bytes = 0
        self._refused = None
        self._spare = fd

    def _make_room(self, size: int) -> None:
        """Remove the oldest segments until a file of `size` bytes fits into the budget. Raises BudgetTaken if it never
        does.
        """
        sizes = self._sizes()
        total = sum(sizes.values()) + self._spare_bytes() + self._unfreed_bytes()
        numbers = list(sizes)
        for number, following in itertools.pairwise(numbers):
            if total + size <= self._budget_bytes:
                return
            if self._evict(number, following):
                if number == self._closing:
                    self._unfreed = (number, sizes[number])
                else:
                    total -= sizes[number]
        if total + size > self._budget_bytes and numbers and self._newest is None:
            total -= self._cut(numbers[-1], sizes[numbers[-1]])
        if total + size > self._budget_bytes:
            raise BudgetTaken(errno.EDQUOT, "the journal's budget is taken by segments that cannot be removed")

    def _evict(self, number: int, following: int) -> bool:
        """Remove a segment, and count its records unless the recorder was faster. Whether it is gone."""
        records = records_in(self._directory, number, following)
        retired = self._retired.pop(number, None)
        if retired is not None:  # an open file would keep its blocks
            _close(retired)
        try:
            segment_path(self._directory, number).unlink()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        self._count(records)
        return True

    def _cut(self, number: int, size: int) -> int:
        """Leave an earlier run's last segment its header, by which the numbering goes on. Returns the bytes freed."""
        records = records_in(self._directory, number, number)
        try:
            os.truncate(segment_path(self._directory, number), HEADER_BYTES)
        except OSError:
            return 0
        self._count(records)
        return max(0, size - HEADER_BYTES)

    def _count(self, records: int) -> None:
        self.evicted_records += records
        self.newly_evicted += records
        self._note_evictions()

    def _note_evictions(self) -> None:
        """Write their number where readers that begin at the oldest segment look: into the newest one's header page."""
        if self._newest is not None and not self._newest.map.closed:
            struct.pack_into("=Q", self._newest.map, PROGRESS_AT + 8 * EVICTED_WORD, self.evicted_records)

    def _sizes(self) -> dict[int, int]:
        """Bytes of the segment files by number, ascending."""
        sizes = {}
        for number in segment_numbers(self._directory):
            with contextlib.suppress(OSError):
                sizes[number] = segment_path(self._directory, number).stat().st_size
        return sizes

    def _unfreed_bytes(self) -> int:
        """Of a segment that was removed while it is being closed."""
        number, size = self._unfreed
        return size if number == self._closing else 0

    def _spare_bytes(self) -> int:
        """What the spare takes, or is about to."""
        try:
            return max(self._promised_bytes, self._spare_path.stat().st_size)
        except OSError:
            return self._promised_bytes


def _reserved(path: pathlib.Path, size: int) -> int:
    """A new file of `size` bytes, all of its blocks its own. Raises OSError, and leaves nothing behind then."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
    except BaseException:
        os.close(fd)
        path.unlink(missing_ok=True)
        raise
    return fd


def _close(segment: OpenSegment) -> None:
    segment.map.close()
    os.close(segment.fd)


def _write_whole(fd: int, data: bytes) -> None:
    """Write at the file's beginning. Raises OSError, also when only a part was taken."""
    if os.pwrite(fd, data, 0) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
