"""Publications of several requests at once are those of each of them, one after another, or none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import Catalog, RequestHandle, RequestScheduler, layout
from scheduler.errors import InvalidFence
from scheduler.frames import LaneColumns
from tests.scheduler.conftest import SHAPES, Harness

LANES = 4
STRANGERS = (RequestHandle(0, 9), RequestHandle(LANES, 1), None, (0, 1))


@pytest.fixture(scope="module")
def completed() -> tuple[bytes, list[RequestHandle], int]:
    """A scheduler whose last frame served LANES requests, none of it visible yet; their handles, and its fence."""
    h = Harness(measured=True)
    for number in range(LANES):
        h.admit(f"r{number}")
    while True:
        plan = h.scheduler.plan()
        h.fence += 1
        h.scheduler.commit(plan, h.fence)
        h.complete(plan, publish=len(plan.lanes) < LANES)
        if len(plan.lanes) == LANES:
            return h.scheduler.checkpoint(), [lane.handle for lane in plan.lanes], h.fence


def restored(data: bytes) -> RequestScheduler:
    scheduler = RequestScheduler.restore(data, Catalog(SHAPES))
    scheduler.advance_to(scheduler.now_ns + 1_000_000)
    return scheduler


@settings(max_examples=25, deadline=None)
@given(chosen=st.lists(st.integers(0, LANES - 1), max_size=2 * LANES))
def test_several_at_once_are_each_of_them_in_turn(completed, chosen):
    data, handles, fence = completed
    at_once, in_turn = restored(data), restored(data)
    at_once.published_outputs([handles[number] for number in chosen], fence)
    for number in chosen:
        in_turn.published_output(handles[number], fence)
    assert at_once.checkpoint() == in_turn.checkpoint()
    assert (at_once.checkpoint() != restored(data).checkpoint()) == bool(chosen)


@pytest.mark.parametrize("stranger", STRANGERS)
def test_one_that_was_not_served_keeps_the_others_from_being_noted(completed, stranger):
    data, handles, fence = completed
    scheduler = restored(data)
    with pytest.raises(InvalidFence, match="has no output of fence"):
        scheduler.published_outputs([*handles, stranger], fence)
    with pytest.raises(InvalidFence):
        scheduler.published_outputs(handles, fence + 1)
    assert scheduler.checkpoint() == restored(data).checkpoint()


LANE = st.tuples(*[st.integers(-(2**62), 2**62)] * 7, st.floats(allow_nan=False))


@given(rows=st.lists(LANE, min_size=1, max_size=9))
def test_lanes_are_read_as_numpy_reads_them(rows):
    cohort = np.array(rows, layout.LANE)
    assert [list(column) for column in LaneColumns.of(cohort)] == [
        cohort[name].tolist() for name in ("slot", "generation", "ceiling", "prompt_tokens")
    ]
