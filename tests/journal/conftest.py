"""Records and journals for the journal's tests."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import threading
from collections.abc import Callable, Iterator

import pytest

from service.journal.reader import Batch, Gap, JournalReader, Position
from service.journal.records import OutputPublished, PartsRecord, PlanCommitted, Record, ShapeRecord
from service.journal.writer import JournalWriter

SHAPE = ShapeRecord("decode", 4, 0, 1, 4, 0, False, "none")
PARTS = PartsRecord(1.0, 2.0, 3.0, 4.0, 0.5, 20.0)


def plan_record(fence: int) -> PlanCommitted:
    return PlanCommitted(
        fence, fence * 1000, SHAPE, "ordinary", "rate", 1.0, 0.0, PARTS, 5, None, "fresh", 1, 1, None, 2,
        0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 1, 12.0, None, None, [], [],
    )  # fmt: skip


def filler(fence: int, count: int = 1) -> list[Record]:
    return [OutputPublished(fence, fence, list(range(1, count + 1)))]


def kill(writer: JournalWriter) -> None:
    """What kill -9 does to a writer: descriptors close, nothing is sealed, the lock is free."""
    writer._keeper.close()
    if writer._segment is not None:
        writer._words.release()
        writer._segment.map.close()
        os.close(writer._segment.fd)
        writer._segment = None
    os.close(writer._lock)
    writer._lock = -1


def read_all(directory: pathlib.Path, position: Position | None = None) -> tuple[list[Record], list[Gap]]:
    reader = JournalReader(directory, position)
    records: list[Record] = []
    gaps = []
    while (item := reader.poll()) is not None:
        if isinstance(item, Batch):
            records.extend(item.records)
        else:
            gaps.append(item)
    reader.close()
    return records, gaps


class Disk:
    """While `full`, no file gets blocks and no write is taken; everything else goes to the real disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        for name in ("posix_fallocate", "pwrite"):
            monkeypatch.setattr(os, name, self._guarded(getattr(os, name)))

    def _guarded(self, call: Callable) -> Callable:
        def guarded(*arguments):
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*arguments)

        return guarded


def wait_until(condition: Callable[[], object]) -> None:
    """For what the keeper's thread does; fails after half a minute."""
    pause = threading.Event()
    for _ in range(3000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen")


@pytest.fixture
def disk(monkeypatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def helpers():
    class Helpers:
        plan = staticmethod(plan_record)
        filler = staticmethod(filler)
        kill = staticmethod(kill)
        wait_until = staticmethod(wait_until)
        read_all = staticmethod(read_all)

    return Helpers


@pytest.fixture
def open_writer(tmp_path) -> Iterator[Callable[..., JournalWriter]]:
    """Opens writers on tmp_path/journal; they are closed at the end."""
    writers = []

    def make(run_id: str = "run-1", **options) -> JournalWriter:
        settings = {"segment_bytes": 64 << 10, "budget_bytes": 8 << 20, "sync_ms": 0, **options}
        writer = JournalWriter(tmp_path / "journal", run_id=run_id, **settings)
        writers.append(writer)
        return writer

    yield make
    for writer in writers:
        with contextlib.suppress(OSError):
            writer.close()
