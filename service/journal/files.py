"""The writing side of segment files: creation, the spare, the budget, syncing. Runs beside the hot path.

What takes long (reserving blocks, syncing) runs on `Keeper`'s thread and outside its lock. The writer only calls
`take` when a segment is full; a spare waits there in the ordinary case, and a file without reserved blocks is made
in its place while the keeper is still busy.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import pathlib
import threading
from collections import deque
from typing import NamedTuple

from service.journal.errors import SegmentDamaged
from service.journal.segments import (
    FRESH_FILE,
    HEADER_BYTES,
    SPARE_FILE,
    SegmentFile,
    count_records,
    segment_numbers,
    segment_path,
)


class Tail(NamedTuple):
    """Where a journal's last segment ended."""

    number: int
    sequence: int
    evicted_records: int


class OpenSegment(NamedTuple):
    """A segment being written; the map covers its header page. `reserved`: all of its blocks are its own already."""

    fd: int
    map: mmap.mmap
    reserved: bool


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

    The lock guards the spare and evictions, and is held for a few quick calls on files only: never while blocks
    are reserved, a file is synced or records are read. The budget may be exceeded by one segment for the moment in
    which a spare is made and `take` makes a file of its own.
    """

    def __init__(self, directory: pathlib.Path, segment_bytes: int, budget_bytes: int, evicted_records: int) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._budget_bytes = budget_bytes
        self._spare_path = directory / SPARE_FILE
        self._files = threading.Lock()
        self._spare: int | None = None
        self._refused = 0
        self._retired: deque[OpenSegment] = deque()
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

    def take(self, number: int, header: bytes) -> OpenSegment:
        """A new segment file with this header, in place under its name; never waits for the keeper's long work.

        Raises OSError when the disk is full: then only a spare, whose blocks are reserved, ends the refusal.
        """
        with self._files:
            spare, self._spare = self._spare, None
            if spare is None and self._refused:
                self.request(spare=True)
                raise OSError(self._refused, os.strerror(self._refused))
            self._make_room()
            path = self._spare_path if spare is not None else self._directory / FRESH_FILE
            try:
                fd = spare if spare is not None else self._unreserved(path)
                try:
                    # The whole page, so that no later store into its map meets a hole of a full disk.
                    _write_whole(fd, header.ljust(HEADER_BYTES, b"\0"))
                    mapped = mmap.mmap(fd, HEADER_BYTES)
                    path.rename(segment_path(self._directory, number))
                except BaseException:
                    os.close(fd)
                    raise
            except OSError as error:
                self.refuse(error)
                raise
        return OpenSegment(fd, mapped, reserved=spare is not None)

    def refuse(self, error: OSError) -> None:
        """The disk is full or broken: only a segment whose blocks are reserved is handed out until one was made."""
        self._refused = error.errno or errno.EIO

    @property
    def refuses(self) -> bool:
        """Whether the last attempt to get disk space failed."""
        return self._refused != 0

    def retire(self, segment: OpenSegment) -> None:
        """Sync and close a segment that is written no more."""
        self._retired.append(segment)
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
        self.bytes_used = sum(size for _, size in self._sizes())

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
        retired = list(self._retired)
        fd, self._sync_fd = self._sync_fd, -1
        if fd >= 0 and all(segment.fd != fd for segment in retired):
            self._sync(fd)
        for segment in retired:
            self._sync(segment.fd)
            segment.map.close()
            os.close(segment.fd)
            self._retired.popleft()
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
        """An empty file of a segment's size under the spare name, all of its blocks reserved, unless one waits."""
        if self._spare is not None:  # only this thread makes one
            return
        try:
            with self._files:
                self._make_room()
                fd = os.open(self._spare_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, self._segment_bytes)
            except BaseException:
                os.close(fd)
                self._spare_path.unlink(missing_ok=True)
                raise
        except OSError as error:  # noticed when the spare is needed
            self.refuse(error)
            return
        with self._files:
            self._spare, self._refused = fd, 0

    def _unreserved(self, path: pathlib.Path) -> int:
        """A file of a segment's size that has no blocks yet: made at once, but a full disk may fail its writes."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, self._segment_bytes)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _make_room(self) -> None:
        """Remove the oldest segments until one more fits into the budget; the newest stays."""
        sizes = self._sizes()
        total = sum(size for _, size in sizes)
        for (number, size), (following, _) in itertools.pairwise(sizes):
            if total + self._segment_bytes <= self._budget_bytes:
                return
            records = records_in(self._directory, number, following)
            try:
                segment_path(self._directory, number).unlink()
            except OSError:  # the recorder was faster
                continue
            finally:
                total -= size
            self.evicted_records += records
            self.newly_evicted += records

    def _sizes(self) -> list[tuple[int, int]]:
        """(number, bytes) of the segment files, ascending."""
        sizes = []
        for number in segment_numbers(self._directory):
            with contextlib.suppress(OSError):
                sizes.append((number, segment_path(self._directory, number).stat().st_size))
        return sizes


def _write_whole(fd: int, data: bytes) -> None:
    """Write at the file's beginning. Raises OSError, also when only a part was taken."""
    if os.pwrite(fd, data, 0) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
