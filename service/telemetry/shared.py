"""Counters in a shared-memory file: one process writes, any process reads, nobody waits.

    TelemetryError
    ├── UnknownSeries       a metric or label value that the table does not declare
    └── MetricsUnavailable  the file cannot be created (reading never raises: an unusable file is absent)

Layout, little-endian and native: a header of HEADER_BYTES (magic, table digest, writer's pid, the writer
process's start time in kernel ticks, start and heartbeat in CLOCK_MONOTONIC ns), then SLOT_COUNT float64 slots, then
EXEMPLAR_WORD_COUNT uint64 words (service.telemetry.series).

Torn reads: the data begins at a page plus 4,096 bytes and every slot is 8 bytes, so each store is one aligned
8-byte move, which x86-64 and arm64 perform as a whole: a reader sees the old number or the new one, never a
mixture. Different slots may be one update apart; a histogram's count is the sum of its own buckets, so it never
contradicts them, and only `_sum` can be one observation ahead or behind. Counters therefore never go back. An exemplar
is several words with a check: a reader leaves out one that is being written.

A new file is filled beside the old one and renamed over it, so a reader maps a complete file or the previous one.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import pathlib
import struct
import time
from typing import Any, Literal, NamedTuple, Self

from service.telemetry.metric_table import (
    EXEMPLAR_WORD_COUNT,
    METRIC_BY_NAME,
    SLOT_COUNT,
    Metric,
    MetricType,
    exemplar_offsets,
    slot_offsets,
    table_digest,
)
from service.telemetry.series import (
    EXEMPLAR_WORDS,
    Counter,
    Exemplar,
    Gauge,
    Histogram,
    TracedHistogram,
    read_exemplar,
)

MAGIC = b"HELIOSM2"
HEADER_BYTES = 4096
_HEADER = struct.Struct("=8s32sqqqq")
_HEARTBEAT_INDEX = (_HEADER.size - 8) // 8
_PID_INDEX = (_HEADER.size - 32) // 8
_WORDS_AT = HEADER_BYTES + 8 * SLOT_COUNT
FILE_BYTES = _WORDS_AT + 8 * EXEMPLAR_WORD_COUNT


class TelemetryError(Exception):
    """Base of this package's errors."""


class UnknownSeries(TelemetryError, KeyError):
    """A metric or a label value that metric_table does not declare."""


class MetricsUnavailable(TelemetryError):
    """The metrics file cannot be created; the message says why."""


class MetricsWriter:
    """The one writer of a metrics file. All series start at 0. Raises MetricsUnavailable when it cannot be made.

    `counter`, `gauge`, `histogram` and `traced_histogram` hand out the series, to be kept; updating one costs about
    100 ns and no system call. They raise UnknownSeries for what the table does not declare. Not for several threads.
    """

    def __init__(self, path: pathlib.Path | str) -> None:
        self.path = pathlib.Path(path)
        self._offsets, self._exemplars = slot_offsets(), exemplar_offsets()
        try:
            self._map = _create(self.path)
        except OSError as error:
            raise MetricsUnavailable(f"cannot create {self.path}: {error.strerror}") from error
        self._words = memoryview(self._map)[:HEADER_BYTES].cast("q")
        self._slots: memoryview[float] = memoryview(self._map)[HEADER_BYTES:_WORDS_AT].cast("d")
        self._exemplar_words: memoryview[int] = memoryview(self._map)[_WORDS_AT:].cast("Q")

    def counter(self, name: str, *label_values: str) -> Counter:
        """The counter with these label values, in the table's order of labels."""
        return Counter(self._slots, self._index(name, label_values, MetricType.COUNTER))

    def gauge(self, name: str, *label_values: str) -> Gauge:
        """The gauge (or info series) with these label values."""
        return Gauge(self._slots, self._index(name, label_values, MetricType.GAUGE, MetricType.INFO))

    def histogram(self, name: str, *label_values: str) -> Histogram:
        """The histogram with these label values."""
        index = self._index(name, label_values, MetricType.HISTOGRAM)
        return Histogram(self._slots, index, METRIC_BY_NAME[name].buckets)

    def traced_histogram(self, name: str, *label_values: str) -> TracedHistogram:
        """The histogram with these label values, for observations whose trace is known."""
        index = self._index(name, label_values, MetricType.HISTOGRAM)
        if not METRIC_BY_NAME[name].traced:
            raise UnknownSeries(f"{name} has no exemplars")
        first_word = self._exemplars[name, label_values]
        return TracedHistogram(self._slots, index, METRIC_BY_NAME[name].buckets, self._exemplar_words, first_word)

    def heartbeat(self, now_ns: int) -> None:
        """Say that the writer lives at `now_ns` (CLOCK_MONOTONIC)."""
        self._words[_HEARTBEAT_INDEX] = now_ns

    def close(self) -> None:
        """Mark the file as without a writer and let go of it. Idempotent; series handed out become unusable."""
        if self._map.closed:
            return
        self._words[_PID_INDEX] = 0
        self._words.release()
        self._slots.release()
        self._exemplar_words.release()
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _index(self, name: str, values: tuple[str, ...], *types: MetricType) -> int:
        metric = METRIC_BY_NAME.get(name)
        if metric is None or metric.type not in types:
            raise UnknownSeries(f"{name} is no {types[0].value} of the metric table")
        if (name, values) not in self._offsets:
            raise UnknownSeries(f"{name} has no series {dict(zip(metric.label_names, values, strict=False))}")
        return self._offsets[name, values]


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """One reading: the slots, the writer and its times in CLOCK_MONOTONIC ns, and the exemplars' words if asked for."""

    slots: tuple[float, ...]
    pid: int
    started_ns: int
    heartbeat_ns: int
    exemplars: tuple[int, ...] = ()


class Heartbeat(NamedTuple):
    """Who writes the file, and when it last said that it lives (CLOCK_MONOTONIC ns)."""

    pid: int
    at_ns: int


class MetricsReader:
    """Reads a metrics file at any time, from any process."""

    def __init__(self, path: pathlib.Path | str) -> None:
        self.path = pathlib.Path(path)

    def read(self, exemplars: bool = False, dead: bool = False) -> Snapshot | None:
        """The numbers now; None when the file is missing, of another table, or its writer is dead.

        `dead`: also what a writer left that was killed; one that ends in order takes its name away.
        """
        try:
            with self.path.open("rb") as file, mmap.mmap(file.fileno(), FILE_BYTES, access=mmap.ACCESS_READ) as view:
                magic, digest, pid, ticks, started_ns, heartbeat_ns = _HEADER.unpack_from(view)
                if magic != MAGIC or digest != table_digest() or not (_is_alive(pid, ticks) or (dead and pid > 0)):
                    return None
                slots = _read(view, HEADER_BYTES, _WORDS_AT, "d")
                words = _read(view, _WORDS_AT, FILE_BYTES, "Q") if exemplars else ()
                return Snapshot(slots, pid, started_ns, heartbeat_ns, words)
        except (OSError, ValueError):  # ValueError: shorter than the table's layout
            return None

    def heartbeat(self) -> Heartbeat | None:
        """The writer's last heartbeat, dead or alive, from the header alone; None as for `read`. Takes about 20 us."""
        try:
            with self.path.open("rb", buffering=0) as file:
                magic, digest, pid, _ticks, _started_ns, heartbeat_ns = _HEADER.unpack(file.read(_HEADER.size))
        except (OSError, struct.error):
            return None
        return Heartbeat(pid, heartbeat_ns) if magic == MAGIC and digest == table_digest() and pid > 0 else None


def series_values(metric: Metric, values: tuple[str, ...], slots: tuple[float, ...]) -> tuple[float, ...]:
    """The slots of one series."""
    first = _OFFSETS[metric.name, values]
    return slots[first : first + metric.slots]


def _read(view: mmap.mmap, start: int, stop: int, code: Literal["d", "Q"]) -> tuple[Any, ...]:
    """Numbers of 8 bytes each, every one of them read as a whole."""
    with memoryview(view) as whole, whole[start:stop] as data, data.cast(code) as numbers:
        return tuple(numbers)


def series_exemplars(metric: Metric, values: tuple[str, ...], words: tuple[int, ...]) -> list[Exemplar | None]:
    """The exemplar of each bucket of a traced histogram's series, where it has one. `words`: Snapshot.exemplars."""
    first = _EXEMPLARS[metric.name, values]
    starts = range(first, first + metric.exemplar_words, EXEMPLAR_WORDS)
    return [read_exemplar(words[start : start + EXEMPLAR_WORDS]) for start in starts]


_OFFSETS, _EXEMPLARS = slot_offsets(), exemplar_offsets()


def _create(path: pathlib.Path) -> mmap.mmap:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return _create_beside(path)
    except OSError:
        reused = _take_over(path)  # a full disk must not keep a process from starting again
        if reused is None:
            raise
        return reused


def _take_over(path: pathlib.Path) -> mmap.mmap | None:
    """The file of a writer that is dead, back at 0 in its own blocks; None when there is none of this layout."""
    try:
        with path.open("r+b") as file:
            if os.fstat(file.fileno()).st_size != FILE_BYTES:
                return None
            mapped = mmap.mmap(file.fileno(), FILE_BYTES)
    except (OSError, ValueError):
        return None
    _, _, pid, ticks, _, _ = _HEADER.unpack_from(mapped)
    if _is_alive(pid, ticks):
        mapped.close()
        return None
    now_ns = time.monotonic_ns()
    mapped[:HEADER_BYTES] = bytes(HEADER_BYTES)  # first, so that no reader takes what follows for this writer's
    mapped[HEADER_BYTES:] = bytes(FILE_BYTES - HEADER_BYTES)
    mapped[: _HEADER.size] = _HEADER.pack(MAGIC, table_digest(), os.getpid(), _start_ticks(os.getpid()), now_ns, now_ns)
    return mapped


def _create_beside(path: pathlib.Path) -> mmap.mmap:
    """A new file, renamed over the old one once it is whole. Raises OSError."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        return _filled(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def _filled(fresh: pathlib.Path, path: pathlib.Path) -> mmap.mmap:
    now_ns = time.monotonic_ns()
    with fresh.open("w+b") as file:
        # Written out, not truncated to size: a store into a hole of a full disk would be a SIGBUS.
        header = _HEADER.pack(MAGIC, table_digest(), os.getpid(), _start_ticks(os.getpid()), now_ns, now_ns)
        file.write(header.ljust(FILE_BYTES, b"\0"))
        file.flush()
        mapped = mmap.mmap(file.fileno(), FILE_BYTES)
    fresh.replace(path)
    return mapped


def _is_alive(pid: int, ticks: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # the latter: no process has such an id
        return False
    except PermissionError:
        pass  # alive, and another user's
    return _start_ticks(pid) == ticks


def _start_ticks(pid: int) -> int:
    """When the process started, in kernel ticks since boot; 0 where there is no /proc. Tells a reused pid apart.

    -1 for a process that has ended and only waits to be reaped.
    """
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return -1 if fields[0] in ("Z", "X") else int(fields[19])
