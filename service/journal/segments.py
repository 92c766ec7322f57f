"""Segment files: their names, header and frames.

    0      fixed header: magic, version, journal id, number, size, first sequence, start fence, clocks, run id, crc32
    2048   progress: six native 64-bit words that the writer keeps up to date through a memory map
    4096   frames: u32 length, u32 crc32, u64 sequence, payload; a length of 0 is the end so far

`sequence` counts records: a frame's sequence is the number of records before it in the whole journal, so a jump
says how many are missing. The checksum covers length, sequence and payload. Fences are those of the run that
wrote the segment; `start_fence` is its last committed fence when the segment was begun.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import re
import struct
import uuid
import zlib
from typing import NamedTuple

import msgspec

from service.journal.errors import HeaderDamaged, JournalUnwritable, OtherFormat, OtherJournal, SegmentDamaged

MAGIC = b"HELIOSJ\n"
VERSION = 1
HEADER_BYTES = 4096
PROGRESS_AT = 2048
PROGRESS_WORDS = 6
ID_FILE = "journal.id"
LOCK_FILE = "writer.lock"
SPARE_FILE = "spare.segment"
FRESH_FILE = "fresh.segment"
OPEN, SEALED, CLOSED = 0, 1, 2
"""States of a segment: being written; the next segment follows; its run ended in order."""

FRAME = struct.Struct("<IIQ")
_FIXED = struct.Struct("<8sII16s7QI128s")
_CRC = struct.Struct("<I")
_PROGRESS = struct.Struct("=5Q")
_WORD = struct.Struct("=Q")
EVICTED_WORD = 5
"""Records removed to keep the budget so far."""
_NAME = re.compile(r"segment-(\d{8,})\.hj\Z")
_CHECK = 0x48454C494F534A31
_MASK = (1 << 64) - 1


class Header(NamedTuple):
    """What a segment says about itself. `wall_ns` and `monotonic_ns` were read together when its run began.

    `evicted_records`: records removed unshipped to keep the budget, in the journal's life until then.
    """

    journal_id: str
    number: int
    size: int
    first_sequence: int
    start_fence: int
    wall_ns: int
    monotonic_ns: int
    evicted_records: int
    run_id: str


class Progress(NamedTuple):
    """The writer's place: records written in the journal, bytes used in the segment, last committed fence, state."""

    next_sequence: int
    end: int
    last_fence: int
    state: int


class Frame(NamedTuple):
    """One frame; `end` is the offset behind it."""

    sequence: int
    payload: bytes
    end: int


def segment_path(directory: pathlib.Path, number: int) -> pathlib.Path:
    """The file of segment `number` (from 1)."""
    return directory / f"segment-{number:08d}.hj"


def segment_numbers(directory: pathlib.Path) -> list[int]:
    """Numbers of the segment files present, ascending; a missing directory has none."""
    try:
        names = os.listdir(directory)  # noqa: PTH208 - names only, no Path objects
    except OSError:
        return []
    return sorted(int(match[1]) for name in names if (match := _NAME.match(name)))


def pack_header(header: Header) -> bytes:
    """The fixed header's bytes. A run id longer than 128 bytes is cut."""
    run_id = header.run_id.encode()[:128]
    fixed = _FIXED.pack(
        MAGIC, VERSION, HEADER_BYTES, bytes.fromhex(header.journal_id), *header[1:8], len(run_id), run_id
    )
    return fixed + _CRC.pack(zlib.crc32(fixed))


def unpack_header(data: bytes, path: pathlib.Path, journal_id: str | None = None) -> Header:
    """The header in `data`. Raises HeaderDamaged, OtherFormat or, when `journal_id` differs, OtherJournal."""
    if len(data) < HEADER_BYTES or data[:8] != MAGIC:
        raise HeaderDamaged(f"{path.name} is not a journal segment")
    (version,) = _CRC.unpack_from(data, 8)
    if version != VERSION:
        raise OtherFormat(
            f"{path.name} has format version {version} and this program reads version {VERSION}; read it with the "
            "version of Helios that wrote it, or move it away"
        )
    fixed = data[: _FIXED.size]
    if _CRC.unpack_from(data, _FIXED.size)[0] != zlib.crc32(fixed):
        raise HeaderDamaged(f"{path.name} has a damaged header")
    identity, *numbers, length, run_id = _FIXED.unpack(fixed)[3:]
    if journal_id is not None and identity.hex() != journal_id:
        raise OtherJournal(f"{path.name} belongs to another journal")
    return Header._make((identity.hex(), *numbers, run_id[:length].decode(errors="replace")))


def store_progress(words: memoryview, progress: Progress) -> None:
    """Write the progress into a segment's mapped words. Each word is stored whole."""
    words[0] = progress.next_sequence
    words[1] = progress.end
    words[2] = progress.last_fence
    words[3] = progress.state
    words[4] = check_word(*progress)


def check_word(next_sequence: int, end: int, last_fence: int, state: int) -> int:
    """The fifth word, by which a reader tells a whole set of four from a mixture."""
    return next_sequence ^ end * 0x9E3779B97F4A7C15 & _MASK ^ last_fence << 1 & _MASK ^ state << 60 ^ _CHECK


def frame_checksum(length: int, sequence: int, payload: bytes) -> int:
    """The crc32 of a frame."""
    return zlib.crc32(payload, zlib.crc32(FRAME.pack(length, 0, sequence)))


def count_records(payload: bytes) -> int:
    """How many records a frame's payload holds. Raises msgspec.DecodeError."""
    return len(msgspec.msgpack.decode(payload, type=list[msgspec.Raw]))


class SegmentFile:
    """One segment opened for reading; it stays readable after the file was removed.

    Reads with pread, never through a map, so a file that shrinks is short and not a SIGBUS.
    """

    CHUNK_BYTES = 256 << 10
    SEARCH_BYTES = 1 << 20

    def __init__(self, directory: pathlib.Path, number: int, journal_id: str | None = None) -> None:
        """Raises FileNotFoundError, SegmentDamaged."""
        self.path = segment_path(directory, number)
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise HeaderDamaged(f"{self.path.name} cannot be opened: {error.strerror}") from error
        try:
            self.header = unpack_header(self._pread(HEADER_BYTES, 0), self.path, journal_id)
            if self.header.number != number:
                raise HeaderDamaged(f"{self.path.name} holds segment {self.header.number}")
        except SegmentDamaged:
            os.close(self._fd)
            raise
        self._buffer = b""
        self._buffer_at = 0

    def progress(self) -> Progress | None:
        """The writer's place now, or None when it cannot be trusted."""
        for _ in range(3):  # the writer may be between two words
            data = self._pread(_PROGRESS.size, PROGRESS_AT)
            if len(data) < _PROGRESS.size:
                return None
            *words, check = _PROGRESS.unpack(data)
            if check_word(*words) == check:
                return Progress(*words)
        return None

    def evicted_records(self) -> int:
        """Records that were removed unshipped to keep the budget, in the journal's life."""
        data = self._pread(_WORD.size, PROGRESS_AT + _WORD.size * EVICTED_WORD)
        noted: int = _WORD.unpack(data)[0] if len(data) == _WORD.size else 0
        return max(noted, self.header.evicted_records)

    def frame(self, offset: int) -> Frame | None:
        """The whole and correct frame at `offset`, or None."""
        return self._buffered(offset) or self._refilled(offset)

    def length_at(self, offset: int) -> int:
        """The length that a damaged frame at `offset` claims; 0 at the end of what was written."""
        data = self._pread(FRAME.size, offset)
        return FRAME.unpack(data)[0] if len(data) == FRAME.size else 0

    def next_frame(self, offset: int, end: int, sequences: range) -> tuple[int, Frame] | None:
        """The first whole frame behind `offset` and before `end` whose sequence is one of these, and where it begins.

        For when a length cannot be trusted: every place is tried, within SEARCH_BYTES.
        """
        if not sequences:
            return None
        data = self._pread(min(end - offset, self.SEARCH_BYTES), offset)
        low, high = (number.to_bytes(8, "little") for number in (sequences[0], sequences[-1]))
        same = next(count for count in range(9) if low[count:] == high[count:])
        at = data.find(low[same:], FRAME.size - 7 + same)
        while at >= 0:
            start = at - same - FRAME.size + 8
            if start + FRAME.size > len(data):
                break
            length, _, sequence = FRAME.unpack_from(data, start)
            if sequence in sequences and 0 < length <= end - offset - start - FRAME.size:
                frame = self.frame(offset + start)
                if frame is not None:
                    return offset + start, frame
            at = data.find(low[same:], at + 1)
        return None

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _buffered(self, offset: int) -> Frame | None:
        start = offset - self._buffer_at
        if start < 0 or start + FRAME.size > len(self._buffer):
            return None
        length, checksum, sequence = FRAME.unpack_from(self._buffer, start)
        payload = self._buffer[start + FRAME.size : start + FRAME.size + length]
        if not length or len(payload) < length or frame_checksum(length, sequence, payload) != checksum:
            return None
        return Frame(sequence, payload, offset + FRAME.size + length)

    def _refilled(self, offset: int) -> Frame | None:
        """Read again from `offset`: a large piece, then the whole frame if it is larger than that."""
        length = self.length_at(offset)
        if not length or offset + FRAME.size + length > self.header.size:
            return None
        self._buffer = self._pread(max(self.CHUNK_BYTES, FRAME.size + length), offset)
        self._buffer_at = offset
        return self._buffered(offset)

    def _pread(self, count: int, offset: int) -> bytes:
        """Up to `count` bytes; an unreadable place of the disk reads as the file's end."""
        try:
            return os.pread(self._fd, count, offset)
        except (OSError, OverflowError, ValueError):
            return b""


def journal_identity(directory: pathlib.Path) -> str:
    """The journal's id as 32 hex digits: from journal.id, else from its newest readable segment, else a new one.

    Creates the directory and journal.id where missing. Raises JournalUnwritable.
    """
    path = directory / ID_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        known = _read_identity(path)
        if known is None:
            _publish_identity(path, _segment_identity(directory) or uuid.uuid4().hex)
            known = _read_identity(path)
    except OSError as error:
        raise JournalUnwritable(directory, error) from error
    if known is None:
        raise JournalUnwritable(path, OSError(0, "it does not hold the journal's id"))
    return known


def writer_lives(directory: pathlib.Path) -> bool | None:
    """Whether a process holds the writer lock; None when that cannot be known."""
    try:
        fd = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(fd)
    return False


def _read_identity(path: pathlib.Path) -> str | None:
    try:
        text = path.read_bytes()[:64].decode("ascii", errors="replace").strip()
    except FileNotFoundError:
        return None
    return text if re.fullmatch(r"[0-9a-f]{32}", text) else None


def _publish_identity(path: pathlib.Path, identity: str) -> None:
    """Put the id in place whole; of two processes that do so at once the first one's id stays."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fresh.write_text(identity + "\n")
    try:
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
        if _read_identity(path) is None:  # there, but damaged
            fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _segment_identity(directory: pathlib.Path) -> str | None:
    for number in reversed(segment_numbers(directory)):
        with contextlib.suppress(FileNotFoundError, SegmentDamaged):
            segment = SegmentFile(directory, number)
            segment.close()
            return segment.header.journal_id
    return None
