"""Where a request's time went: phases that always add up to the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.records import FinishReason, RequestSpec
from service.engine.requests import Ending, EngineRequest, phases
from service.ipc.messages import Sampling

MS = 1_000_000


def test_phases_add_up_and_each_belongs_where_the_time_went(rig):
    rig.device.automatic = False
    rig.clock.advance(10 * MS)
    rig.submit("a", output=2, arrived_ns=rig.clock() - 10 * MS, tokenize_ns=3 * MS)
    rig.clock.advance(5 * MS)
    rig.step()
    rig.device.finish(40 * MS)
    rig.clock.advance(1 * MS)
    rig.step()
    rig.device.finish(30 * MS)
    rig.clock.advance(2 * MS)
    rig.step(2)
    done, arrived = rig.ending("a"), rig.arrived("a")
    assert (done.queue_ns, done.prefill_ns, done.decode_ns, done.publish_ns) == (12 * MS, 40 * MS, 31 * MS, 2 * MS)
    parts = arrived.tokenize_ns + done.queue_ns + done.prefill_ns + done.decode_ns + done.publish_ns
    assert parts == done.finished_ns - arrived.arrived_ns


@pytest.mark.parametrize("arrived", [0, -(2**62), 2**62])
def test_times_that_cannot_be_still_give_phases_that_add_up(rig, arrived):
    rig.submit("a", arrived_ns=rig.clock() + arrived, tokenize_ns=2**62)
    rig.settle()
    done, came = rig.ending("a"), rig.arrived("a")
    parts = (done.queue_ns, done.prefill_ns, done.decode_ns, done.publish_ns)
    assert min(parts) >= 0
    assert came.tokenize_ns + sum(parts) == done.finished_ns - came.arrived_ns


marks = st.one_of(st.none(), st.integers(0, 1000))


@given(marks, marks, st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_phases_are_never_negative_and_always_sum_to_the_whole(commit, output, decided, finished, arrived, tokenize):
    request = EngineRequest(
        b"", RequestSpec("a", 1, 1, 2), [1], Sampling(), frozenset(), arrived, tokenize, None, commit, output
    )
    finished += arrived + tokenize
    got = phases(request, Ending(FinishReason.STOP, None, decided), finished)
    parts = (got.queue_ns, got.prefill_ns, got.decode_ns, got.publish_ns)
    assert min(parts) >= 0
    assert sum(parts) + tokenize == finished - arrived
