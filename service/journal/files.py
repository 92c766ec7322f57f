"""The writing side of segment files: creation, the spare, the budget, syncing. Runs beside the hot path.

Everything here may take milliseconds. `Keeper` runs it on its own thread; the writer only calls `take` when a
segment is full, and finds a spare file waiting there in the ordinary case.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pathlib
import threading
from collections import deque
from typing import NamedTuple

from service.journal.errors import SegmentDamaged
from service.journal.segments import (
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
    """A segment being written; the map covers its header page."""

    fd: int
    map: mmap.mmap


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


def records_in(directory: pathlib.Path, number: int) -> int:
    """How many records a segment holds; 0 when it cannot be read."""
    try:
        segment = SegmentFile(directory, number)
    except (FileNotFoundError, SegmentDamaged):
        return 0
    try:
        return max(0, _end_sequence(segment) - segment.header.first_sequence)
    finally:
        segment.close()


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
    """Keeps one spare segment ready and the directory within its budget; syncs and closes files on its thread."""

    def __init__(self, directory: pathlib.Path, segment_bytes: int, budget_bytes: int, evicted_records: int) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._budget_bytes = budget_bytes
        self._spare_path = directory / SPARE_FILE
        self._files = threading.Lock()
        self._spare: int | None = None
        self._retired: deque[OpenSegment] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._sync_fd = -1
        self._spare_wanted = False
        self.evicted_records = evicted_records
        self.newly_evicted = 0
        self.bytes_used = 0
        self.sync_failures = 0
        self.measure()
        self._thread = threading.Thread(target=self._run, name="journal-keeper", daemon=True)
        self._thread.start()

    def take(self, number: int, header: bytes) -> OpenSegment:
        """A new segment file with this header, in place under its name. Raises OSError when the disk is full."""
        with self._files:
            fd, self._spare = self._spare, None
            if fd is None:
                fd = self._allocate()
            try:
                os.pwrite(fd, header, 0)
                mapped = mmap.mmap(fd, HEADER_BYTES)
                self._spare_path.rename(segment_path(self._directory, number))
            except BaseException:
                os.close(fd)
                raise
        return OpenSegment(fd, mapped)

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
        self._spare_path.unlink(missing_ok=True)
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
            with self._files, contextlib.suppress(OSError):  # a full disk is noticed when the spare is needed
                if self._spare is None:
                    self._spare = self._allocate()
        self.measure()

    def _sync(self, fd: int) -> None:
        try:
            os.fdatasync(fd)
        except OSError:
            self.sync_failures += 1

    def _allocate(self) -> int:
        """An empty file of a segment's size under the spare name, all of its blocks reserved."""
        self._make_room()
        fd = os.open(self._spare_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, self._segment_bytes)
        except BaseException:
            os.close(fd)
            self._spare_path.unlink(missing_ok=True)
            raise
        return fd

    def _make_room(self) -> None:
        """Remove the oldest segments until one more fits into the budget; the newest stays."""
        sizes = self._sizes()
        total = sum(size for _, size in sizes)
        for number, size in sizes[:-1]:
            if total + self._segment_bytes <= self._budget_bytes:
                return
            records = records_in(self._directory, number)
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
