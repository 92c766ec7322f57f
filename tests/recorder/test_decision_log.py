"""The decision log's records become rows: consecutive calls together, a checkpoint alone, exactly once, whole again."""

from __future__ import annotations

import itertools
import zlib

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from service.journal.records import SchedulerCalls, SchedulerCheckpoint
from service.recorder.decision_log import LogChunks
from service.store.decision_log import LARGEST_CHUNK, DamagedBlob, pack_calls, unpack_calls, unpack_state
from service.store.engines import read_transaction
from service.store.tables import decision_log
from tests.recorder.crashing import Crash, crash_at


def calls(first: int, count: int, fence: int, data: bytes = b"calls") -> SchedulerCalls:
    """`count` calls that commit frame `fence`."""
    return SchedulerCalls(first, count, fence, fence, 5_000_000_000, data)


def checkpoint(call: int, last_fence: int) -> SchedulerCheckpoint:
    return SchedulerCheckpoint(call, last_fence, 5_000_000_000, zlib.compress(b"state"))


def shape_of(rows: list) -> list[tuple]:
    return [tuple(row[1:6]) for row in rows]


def test_consecutive_calls_share_a_row_and_a_checkpoint_has_its_own():
    chunks = LogChunks("run-1")
    chunks.add_checkpoint(checkpoint(0, 0))
    chunks.add_calls(calls(1, 3, 1))
    chunks.add_calls(calls(4, 2, 2))
    chunks.add_checkpoint(checkpoint(6, 2))
    chunks.add_calls(calls(7, 1, 3))
    rows = chunks.rows()
    assert shape_of(rows) == [(0, 1, 1, 0, True), (1, 5, 1, 2, False), (6, 1, 3, 2, True), (7, 1, 3, 3, False)]
    assert unpack_calls(rows[1][6]) == [b"calls", b"calls"]
    assert unpack_state(rows[0][6]) == b"state"


def test_calls_behind_a_hole_begin_another_row():
    chunks = LogChunks("run-1")
    chunks.add_calls(calls(0, 2, 1))
    chunks.add_calls(calls(5, 2, 4))
    assert shape_of(chunks.rows()) == [(0, 2, 1, 1, False), (5, 2, 4, 4, False)]


def test_a_row_is_bounded():
    chunks = LogChunks("run-1")
    for number in range(5):
        chunks.add_calls(calls(number, 1, number + 1, bytes(LARGEST_CHUNK // 2)))
    rows = chunks.rows()
    assert [row[2] for row in rows] == [2, 2, 1]
    assert all(sum(map(len, unpack_calls(row[6]))) <= LARGEST_CHUNK for row in rows)


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_packed_pieces_come_out_as_they_went_in(pieces):
    assert unpack_calls(pack_calls(pieces)) == pieces


@pytest.mark.parametrize("damage", [lambda b: b[:-3], lambda b: b"no zlib", lambda b: zlib.compress(b"\0\0\0\x09abc")])
def test_a_damaged_blob_is_named(damage):
    with pytest.raises(DamagedBlob):
        unpack_calls(damage(pack_calls([b"one", b"two"])))


def log_of(make) -> list[list]:
    """Frames of a journal: the plans of a story, each with its calls."""
    story = [make.started(), checkpoint(0, 0)]
    frames = [story]
    for fence in (1, 2, 3):
        frames.append([make.plan(fence, ["a"]), calls(2 * fence - 1, 2, fence, b"of %d" % fence)])
    return frames


def stored(engine: sa.Engine) -> list[tuple]:
    with read_transaction(engine) as connection:
        return [tuple(row) for row in connection.execute(sa.select(decision_log).order_by(decision_log.c.first_call))]


def pieces_of(engine: sa.Engine) -> list[bytes]:
    return [piece for row in stored(engine) if not row[5] for piece in unpack_calls(row[6])]


@pytest.mark.parametrize("batch", [1, 100])
def test_the_log_reaches_both_databases(any_store, tmp_path, make, batch):
    make.write_frames(tmp_path / "journal", log_of(make))
    assert make.drain(any_store, tmp_path / "journal", batch) == 0
    assert pieces_of(any_store) == [b"of 1", b"of 2", b"of 3"]
    rows = stored(any_store)
    assert [row[:2] for row in rows if row[5]] == [("run-1", 0)]
    assert rows[-1][4] == 3
    for before, row in itertools.pairwise(rows):
        assert before[1] + before[2] == row[1]


def test_a_crash_anywhere_neither_loses_nor_repeats_a_call(any_store, tmp_path, make):
    make.write_frames(tmp_path / "journal", log_of(make))
    for number in range(1, 30):
        try:
            make.drain(any_store, tmp_path / "journal", 1, step=crash_at(number))
        except Crash:
            continue
        break
    assert pieces_of(any_store) == [b"of 1", b"of 2", b"of 3"]


@pytest.mark.parametrize("value", ["text", 5_000_000_000, 1.5, None])
@pytest.mark.parametrize("unpack", [unpack_state, unpack_calls])
def test_what_is_no_bytes_is_a_damaged_blob(unpack, value):
    with pytest.raises(DamagedBlob):
        unpack(value)
