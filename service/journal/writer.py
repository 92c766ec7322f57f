"""The engine's side of the journal: one write per worker iteration, into a preallocated segment.

On the hot path an append encodes once into a reused buffer, writes it with one pwrite, and stores five words of
the mapped header page; it logs nothing and raises nothing but FrameTooLarge. A full disk costs records, which are
counted, never the engine.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import time
import zlib
from collections.abc import Sequence

from service.journal.errors import FrameTooLarge, JournalBusy, JournalTooSmall, JournalUnwritable
from service.journal.files import Keeper, OpenSegment, find_tail
from service.journal.records import Record, encoder
from service.journal.segments import (
    CLOSED,
    FRAME,
    FRESH_FILE,
    HEADER_BYTES,
    LOCK_FILE,
    OPEN,
    PROGRESS_AT,
    PROGRESS_WORDS,
    SEALED,
    SPARE_FILE,
    Header,
    Progress,
    check_word,
    journal_identity,
    pack_header,
    store_progress,
)
from service.journal.status import LOSSES, OVER_BUDGET, UNWRITABLE, JournalStatus, cause_of

RETRY_NS = 100_000_000
"""How often a new segment is tried for while the disk is full."""
MIN_SEGMENT_BYTES = 32 << 10
MIN_SEGMENTS = 4
"""That a budget holds at least: the one being written, one being closed, a spare being made and a short one."""
LOCK_TRIES, LOCK_PAUSE_S = 10, 0.02
_NEVER = 1 << 62


class JournalWriter:
    """Appends frames of records to the segments of one directory, for one engine run.

    `segment_bytes` shrinks to a quarter of the budget where that is smaller. `lost_records` counts records of this run
    that were dropped (full disk, unencodable) and records of any run that were removed to keep the budget before
    the recorder deleted their segment. Not for several threads.

    Raises JournalUnwritable, JournalBusy, JournalTooSmall.
    """

    def __init__(
        self,
        directory: pathlib.Path | str,
        *,
        run_id: str,
        segment_bytes: int = 64 << 20,
        budget_bytes: int = 1 << 30,
        sync_ms: int = 1000,
    ) -> None:
        self.directory = pathlib.Path(directory)
        self.run_id = run_id
        self._segment_bytes = min(segment_bytes, budget_bytes // MIN_SEGMENTS) // HEADER_BYTES * HEADER_BYTES
        if self._segment_bytes < MIN_SEGMENT_BYTES:
            raise JournalTooSmall(
                f"the journal needs a budget of at least {MIN_SEGMENTS * MIN_SEGMENT_BYTES} bytes and segments of at "
                f"least {MIN_SEGMENT_BYTES}; got {budget_bytes} and {segment_bytes}"
            )
        self.journal_id = journal_identity(self.directory)
        self._lock = _lock(self.directory)
        tail = find_tail(self.directory, self.journal_id)
        for name in (SPARE_FILE, FRESH_FILE):
            (self.directory / name).unlink(missing_ok=True)
        self._number = tail.number
        self._sequence = tail.sequence
        self._fence = 0
        self._wall_ns, self._monotonic_ns = time.time_ns(), time.monotonic_ns()
        self._sync_ns = sync_ms * 1_000_000
        self._synced_ns = self._monotonic_ns
        self._dirty = False
        self._lost = dict.fromkeys(LOSSES, 0)
        self._stuck: str | None = None
        self._retry_ns = 0
        self._buffer = bytearray(64 << 10)
        self._segment: OpenSegment | None = None
        self._words: memoryview = memoryview(bytearray(8 * PROGRESS_WORDS)).cast("Q")
        self._fd = -1
        self._end = self._limit = 0
        self._reserve_at = 0
        self._keeper = Keeper(self.directory, self._segment_bytes, budget_bytes, tail.evicted_records)
        self._open_next(HEADER_BYTES)

    @property
    def bytes_used(self) -> int:
        """Bytes of all segment files, as of the last sync or rotation."""
        return self._keeper.bytes_used

    @property
    def lost_records(self) -> int:
        """Records that will never reach a sink because of this writer."""
        return sum(self._lost.values()) + self._keeper.newly_evicted

    def status(self) -> JournalStatus:
        """What went wrong so far, and whether it still does."""
        lost = {**self._lost, OVER_BUDGET: self._lost[OVER_BUDGET] + self._keeper.newly_evicted}
        return JournalStatus(lost, self._keeper.sync_failures, self._stuck if self._keeper.refuses else None)

    def append(self, records: Sequence[Record], last_fence: int) -> None:
        """Hand `records` to the operating system as one frame; `last_fence` is the last committed fence.

        Raises FrameTooLarge when they do not fit into a segment; they are then counted as lost.
        """
        if not records:
            return
        buffer = self._buffer
        count = len(records)
        try:
            encoder.encode_into(records, buffer, FRAME.size)
        except Exception:  # a value that msgpack cannot hold
            count = self._encode_what_can(records)
            if not count:
                self._fence = last_fence
                return
        size = len(buffer)
        if self._end + size > self._limit and not self._rotate(size, count, last_fence):
            return
        self._fence = last_fence  # not before: a new segment begins with the fence before this frame
        FRAME.pack_into(buffer, 0, size - FRAME.size, 0, self._sequence)
        FRAME.pack_into(buffer, 0, size - FRAME.size, zlib.crc32(buffer), self._sequence)
        try:
            written = os.pwrite(self._fd, buffer, self._end)
            error = None
        except OSError as refusal:
            written, error = 0, refusal
        self._sequence += count
        if written != size:
            # A write that is cut short says no reason; the next one would: no space.
            self._give_up_segment(count, error or OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
            return
        end = self._end = self._end + size
        self._dirty = True
        words = self._words
        words[0] = self._sequence
        words[1] = end
        words[2] = last_fence
        words[4] = check_word(self._sequence, end, last_fence, OPEN)
        if end > self._reserve_at:
            self._reserve_at = _NEVER
            self._keeper.request(spare=True)

    def sync_if_due(self, now_ns: int) -> None:
        """Ask the helper thread for an fdatasync when records are unsynced and sync_ms have passed."""
        if (self._dirty or self._stuck) and now_ns - self._synced_ns >= self._sync_ns:
            self._synced_ns = now_ns
            # While the disk refuses, a spare is tried for each time: the first one ends the refusal.
            self._keeper.request(sync_fd=self._fd if self._dirty else -1, spare=self._keeper.refuses)
            self._dirty = False

    def close(self) -> None:
        """Sync, mark the segment as ended in order, and let the next writer in. Idempotent."""
        if self._lock < 0:
            return
        self._leave_segment(CLOSED)
        self._keeper.close()
        os.close(self._lock)
        self._lock = -1

    def _encode_what_can(self, records: Sequence[Record]) -> int:
        """Encode the records that can be encoded; the others are lost. Returns how many were kept."""
        kept = []
        for record in records:
            with contextlib.suppress(Exception):
                encoder.encode(record)
                kept.append(record)
        self._drop(len(records) - len(kept), UNWRITABLE)
        encoder.encode_into(kept, self._buffer, FRAME.size)
        return len(kept)

    def _rotate(self, size: int, count: int, last_fence: int) -> bool:
        """Go on to a segment with room for a frame of `size` bytes. False: its `count` records are lost."""
        room = self._segment_bytes - HEADER_BYTES
        if size > room:
            self._fence = last_fence
            self._drop(count, UNWRITABLE)
            raise FrameTooLarge(
                f"{count} records of one iteration take {size} bytes; a journal segment has room for {room}. "
                "Raise --journal-budget"
            )
        if self._open_next(HEADER_BYTES + size):
            return True
        self._fence = last_fence
        assert self._stuck is not None
        self._drop(count, self._stuck)
        return False

    def _open_next(self, needed_bytes: int) -> bool:
        """Open the next segment, then seal this one. False when the disk refuses, or refused a moment ago."""
        now_ns = time.monotonic_ns()
        if now_ns < self._retry_ns:
            return False
        number = self._number + 1
        try:
            segment = self._keeper.take(number, needed_bytes, lambda size: pack_header(self._header(number, size)))
        except OSError as error:
            self._retry_ns = now_ns + RETRY_NS
            self._stuck = cause_of(error)
            return False
        self._stuck = None
        self._leave_segment(SEALED)
        self._number = number
        self._segment = segment
        self._fd = segment.fd
        self._words = memoryview(segment.map)[PROGRESS_AT : PROGRESS_AT + 8 * PROGRESS_WORDS].cast("Q")
        self._end, self._limit = HEADER_BYTES, segment.size
        # The next one is reserved while half of this one is left to write, and at once behind a short one.
        self._reserve_at = segment.size // 2 if segment.size == self._segment_bytes else _NEVER
        store_progress(self._words, Progress(self._sequence, self._end, self._fence, OPEN))
        return True

    def _header(self, number: int, size: int) -> Header:
        return Header(
            self.journal_id,
            number,
            size,
            self._sequence,
            self._fence,
            self._wall_ns,
            self._monotonic_ns,
            self._keeper.evicted_records,
            self.run_id,
        )

    def _give_up_segment(self, count: int, error: OSError) -> None:
        """The disk took only part of a frame: its records are lost, and the next append opens a new segment."""
        self._lost[cause_of(error)] += count
        self._leave_segment(OPEN)

    def _leave_segment(self, state: int) -> None:
        if self._segment is not None:
            self._note(state)
            self._words.release()
            self._keeper.retire(self._segment)
        self._segment = None
        self._fd = -1
        self._end = self._limit = 0

    def _drop(self, count: int, cause: str) -> None:
        """Count records as lost and leave their numbers out, by which every reader sees the loss too."""
        self._lost[cause] += count
        self._sequence += count
        if self._segment is not None:
            self._note(OPEN)

    def _note(self, state: int) -> None:
        """Bring the segment's header up to date with records and fences that were lost."""
        store_progress(self._words, Progress(self._sequence, self._words[1], self._fence, state))


def _lock(directory: pathlib.Path) -> int:
    """The writer lock; the kernel frees it when the process ends. Raises JournalBusy, JournalUnwritable."""
    path = directory / LOCK_FILE
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise JournalUnwritable(path, error) from error
    try:
        _take_lock(fd)
    except BlockingIOError as error:
        os.close(fd)
        raise JournalBusy(
            f"another engine writes to the journal at {directory}; stop it, or choose another --data-dir"
        ) from error
    except OSError as error:
        os.close(fd)
        raise JournalUnwritable(path, error) from error
    return fd


def _take_lock(fd: int) -> None:
    """Several tries: whoever asks whether a writer lives holds the lock for an instant. Raises OSError."""
    for _ in range(LOCK_TRIES - 1):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(LOCK_PAUSE_S)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
