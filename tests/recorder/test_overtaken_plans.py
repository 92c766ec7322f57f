"""A plan whose completion is missing from the journal is lost once a later one completes, not when the run ends."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from service.journal.reader import Gap
from service.journal.records import PlanCompleted
from service.journal.segments import segment_path
from service.recorder.sql_sink import SqlSink
from service.store.tables import plans, trace_gaps


def outcomes(store) -> dict[int, str]:
    with store.connect() as connection:
        return dict(connection.execute(sa.select(plans.c.fence, plans.c.outcome)).tuples().all())


def without_completion_of(make, fence: int, fences: int = 4) -> list[list]:
    """The frames of a run that goes on, one completion left out."""
    frames = make.story(fences)[:-2]
    return [[r for r in frame if not (isinstance(r, PlanCompleted) and r.fence == fence)] for frame in frames]


def damaged(make, directory, fence: int) -> None:
    """Writes such a run, with the frame of that completion damaged on disk."""
    make.write_frames(directory, make.story(4)[:-2], segment_bytes=64 << 10)
    (batch,) = [
        batch
        for batch in make.batches(directory)
        if any(isinstance(record, PlanCompleted) and record.fence == fence for record in batch.records)
    ]
    with segment_path(directory, batch.start.segment).open("r+b") as file:
        file.seek(batch.position.offset - 8)
        file.write(b"\xa5" * 8)


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_a_lost_completion_is_known_by_the_next_one(any_store, tmp_path, make, batch):
    damaged(make, tmp_path, 2)
    make.drain(any_store, tmp_path, batch, close=False)
    assert outcomes(any_store) == {1: "completed", 2: "lost", 3: "completed", 4: "completed"}


def test_a_recorder_that_was_restarted_behind_the_gap_knows_it_too(store, tmp_path, make):
    damaged(make, tmp_path, 2)
    everything = make.batches(tmp_path)
    sink = SqlSink(store, "a" * 32)
    behind = next(n for n, item in enumerate(everything) if isinstance(item, Gap)) + 1
    sink.deliver(everything[:behind])
    assert outcomes(store)[2] == "in_flight"  # it may still complete, as far as anyone knows
    again = SqlSink(store, "a" * 32)
    again.resume()
    again.deliver(everything[behind:])
    assert outcomes(store) == {1: "completed", 2: "lost", 3: "completed", 4: "completed"}


def test_without_a_gap_the_plans_in_flight_stay_so(store, tmp_path, make):
    frames = without_completion_of(make, 2)
    make.write_frames(tmp_path, frames)
    make.drain(store, tmp_path, close=False)
    assert outcomes(store)[2] == "in_flight"
    with store.connect() as connection:
        assert connection.execute(sa.select(trace_gaps)).all() == []


def test_a_gap_of_an_earlier_run_loses_nothing_of_the_next(store, tmp_path, make):
    damaged(make, tmp_path, 2)
    frames = [*make.story(2, run_id="run-2")[:2], [make.plan(1, ["request-0"]), make.plan(2, ["request-0"])]]
    make.write_frames(tmp_path, [*frames, [make.completed(2, 1)]], "run-2")
    make.drain(store, tmp_path, close=False)
    with store.connect() as connection:
        query = sa.select(plans.c.fence, plans.c.outcome).where(plans.c.run_id == "run-2")
        assert dict(connection.execute(query).tuples().all()) == {1: "in_flight", 2: "completed"}
