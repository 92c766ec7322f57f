"""The disk budget holds at every moment, whatever happens in whatever order, and no record is lost uncounted."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.journal.files import Keeper
from service.journal.reader import Batch, JournalReader
from service.journal.records import OutputPublished
from service.journal.segments import HEADER_BYTES, segment_numbers, segment_path
from service.journal.writer import JournalWriter
from tests.journal.conftest import Disk, wait_until

SMALLEST = 256 << 10
"""Of the budgets here: four segments."""

appends = st.tuples(st.just("append"), st.integers(1, 3), st.integers(0, 18_000))
others = st.one_of(
    st.tuples(st.just("keeper")),
    st.tuples(st.just("tick")),
    st.tuples(st.just("read"), st.integers(1, 40)),
    st.tuples(st.just("full"), st.booleans()),
    st.tuples(st.just("restart"), st.booleans(), st.sampled_from([SMALLEST, 2 * SMALLEST]), st.integers(64, 160)),
)


class Machine:
    """A journal, its writer whose keeper only works when told to, and a reader that removes what it has read."""

    def __init__(self, directory: pathlib.Path, disk: Disk) -> None:
        self.directory, self.disk = directory, disk
        self.budget = SMALLEST
        self.fence = self.appended = self.seen = self.missed = 0
        self.lost_by_writers = 0
        self.exact = True
        self.open(SMALLEST, 64)
        self.reader = JournalReader(directory)

    def open(self, budget: int, segment_kib: int) -> None:
        self.budget = budget
        self.writer = JournalWriter(
            self.directory, run_id=f"run-{self.fence}", segment_bytes=segment_kib << 10, budget_bytes=budget, sync_ms=0
        )

    def append(self, count: int, lanes: int) -> None:
        self.fence += 1
        self.appended += count
        self.writer.append([OutputPublished(self.fence, 1, [1] * lanes) for _ in range(count)], self.fence)

    def keeper(self) -> None:
        self.writer._keeper._work()

    def tick(self) -> None:
        self.writer._retry_ns = 0
        self.writer.sync_if_due(self.writer._synced_ns + 1)

    def read(self, items: int) -> None:
        """As the recorder does: some frames, then the segments that are behind it go."""
        for _ in range(items):
            item = self.reader.poll()
            if item is None:
                break
            if isinstance(item, Batch):
                self.seen += len(item.records)
            else:
                self.missed += item.lost_records
        if self.reader.position is not None:
            for number in segment_numbers(self.directory)[:-1]:
                if number < self.reader.position.segment:
                    segment_path(self.directory, number).unlink()

    def full(self, yes: bool) -> None:
        self.disk.full = yes

    def restart(self, killed: bool, budget: int, segment_kib: int) -> None:
        writer, keeper = self.writer, self.writer._keeper
        self.exact &= writer._segment is not None  # without one nobody can be told what was lost since
        if killed:
            for segment in (*keeper._retired.values(), *([writer._segment] if writer._segment else [])):
                writer._words.release()
                segment.map.close()
                os.close(segment.fd)
            if keeper._spare is not None:
                os.close(keeper._spare)
            os.close(writer._lock)
            writer._lock = -1
        else:
            writer.close()
        self.lost_by_writers += writer.lost_records
        self.open(budget, segment_kib)

    def check(self) -> None:
        files = [path.stat() for path in self.directory.glob("*segment*") if path.exists()]
        assert sum(status.st_size for status in files) <= self.budget
        for status in files:
            assert status.st_size == HEADER_BYTES or status.st_blocks * 512 >= status.st_size, "never sparse"


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(appends, appends, appends, others), min_size=20, max_size=120))
def test_the_budget_holds_under_any_sequence(operations):
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as name:
        patch.setattr(Keeper, "_run", lambda _: None)
        disk = Disk(patch)
        machine = Machine(pathlib.Path(name) / "journal", disk)
        reserve = os.posix_fallocate
        patch.setattr(os, "posix_fallocate", lambda *call: (reserve(*call), machine.check()))
        with contextlib.closing(machine.reader):
            for operation, *arguments in operations:
                getattr(machine, operation)(*arguments)
                machine.check()
            disk.full = False
            machine.tick()
            machine.keeper()
            machine.append(1, 1)
            machine.read(1 << 30)
            machine.writer.close()
        lost = machine.lost_by_writers + machine.writer.lost_records
        assert machine.missed <= lost
        assert machine.seen + machine.missed <= machine.appended
        if machine.exact:
            assert machine.seen + machine.missed == machine.appended


def test_a_smaller_budget_holds_from_the_start(open_writer, helpers, tmp_path):
    """The last segment of the run before does not fit into it: its header stays, by which the numbers go on."""
    first = open_writer(segment_bytes=1 << 20, budget_bytes=8 << 20)
    for fence in range(1, 9):
        first.append([helpers.plan(fence), *helpers.filler(fence, 30_000)], fence)
    first.close()
    second = open_writer("run-2", budget_bytes=SMALLEST)
    assert second.bytes_used <= SMALLEST
    assert segment_path(tmp_path / "journal", 1).stat().st_size == HEADER_BYTES
    second.append([helpers.plan(1)], 1)
    second.close()
    assert second.lost_records == 16
    records, gaps = helpers.read_all(tmp_path / "journal")
    assert [record.fence for record in records] == [1]
    assert sum(gap.lost_records for gap in gaps) == 16


def test_the_next_segment_is_reserved_while_half_of_this_one_is_left(open_writer, helpers, tmp_path, monkeypatch):
    """By the keeper's thread; the append that goes on to goes nothing and makes no room."""
    writer = open_writer(segment_bytes=256 << 10)
    assert writer._keeper._spare is None
    while writer._end <= (256 << 10) // 2:
        assert writer._keeper._spare is None
        writer.append(helpers.filler(1, 3000), 1)
    wait_until(lambda: writer._keeper._spare is not None)
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: pytest.fail("reserved in the loop"))
    monkeypatch.setattr(Keeper, "_make_room", lambda *_: pytest.fail("made room in the loop"))
    number = writer._number
    while writer._number == number:
        writer.append(helpers.filler(1, 3000), 1)
    assert writer.lost_records == 0


def test_a_segment_that_is_being_closed_counts_although_it_was_removed(open_writer, helpers, monkeypatch):
    """While a sync hangs: an unlink does not free what is open."""
    entered, release = threading.Event(), threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda _: (entered.set(), release.wait()))
    writer = open_writer(budget_bytes=SMALLEST)
    frames = [[helpers.plan(fence), *helpers.filler(fence, 3000)] for fence in range(1, 100)]
    try:
        while writer._number == 1:
            writer.append(frames.pop(0), 1)
        assert entered.wait(30)
        for frame in frames:
            writer.append(frame, 1)
        assert not segment_path(writer.directory, 1).exists()
        assert sum(path.stat().st_size for path in writer.directory.glob("*segment*")) + (64 << 10) <= SMALLEST
        assert writer._number > 4
    finally:
        release.set()
    writer.close()
    records, gaps = helpers.read_all(writer.directory)
    assert [gap.lost_records + len(records) for gap in gaps] == [198]
