"""What the engine's scheduler writes down, given to another one: the same plans and the same state, to the bit."""

from __future__ import annotations

import collections
import zlib
from typing import ClassVar

import msgspec
import pytest

from service.engine.decision_log import LoggedScheduler
from service.why.errors import NotReplayable
from service.why.player import Completed, Decided, Player
from service.why.states import state_difference
from tests.scheduler.differential import drive, pair
from tests.scheduler.differential.compare import differing, same_plan
from tests.scheduler.differential.scenario import learning_scenario, level_scenario, make_scenario


class Recording(pair.Pair):
    """The fast side writes its log; every restart checks that what was written since the last one gives it again."""

    replayed: ClassVar[collections.Counter] = collections.Counter()

    def __init__(self, scenario, plain_of=None):
        super().__init__(scenario, plain_of)
        self.state = None
        self.plans = {}

    def commit(self, plans, fence):
        taken = super().commit(plans, fence)
        if taken:
            self.plans[fence] = plans[0]
        return taken

    def observe(self, shape, duration):
        if self.state is None:  # a sample from elsewhere is no call of the scheduler: only before the first checkpoint
            super().observe(shape, duration)

    def restart(self, scenario):
        before, taken = self.state, self.fast.take_checkpoint()
        if not taken:
            return
        self.state = zlib.decompress(taken[-1].data)
        if before is None or len(taken) == 1:
            return
        calls, checkpoint = taken
        assert calls.first_call + calls.calls == checkpoint.call
        entries = msgspec.msgpack.decode(calls.data)
        assert len(entries) == calls.calls
        self.replay(before, entries)

    def replay(self, before, entries):
        fast, plain = Player.fast(before), Player.reference(before)
        for entry in entries:
            event = fast.step(entry)
            assert (plain.step(entry) is None) == (event is None)
            self.replayed[type(event).__name__] += 1
            if isinstance(event, Decided):
                same_plan(event.plan, self.plans[event.fence])
        different = state_difference(fast.scheduler.checkpoint(), self.state)
        if different is not None:
            differing("checkpoint", *different.split(", ", 1))


def often(make):
    def scenario(seed):
        made = make(seed)
        made.rates |= {"restart": 0.3, "stale": 0.0}
        return made

    return scenario


@pytest.mark.parametrize(
    ("make", "seeds"),
    [(make_scenario, range(200, 216)), (level_scenario, range(8, 11)), (learning_scenario, range(5, 8))],
    ids=["any", "ties", "learning"],
)
def test_a_recorded_run_replays_to_the_bit(monkeypatch, make, seeds):
    monkeypatch.setattr(pair, "RequestScheduler", LoggedScheduler)
    monkeypatch.setattr(drive, "Pair", Recording)
    monkeypatch.setattr(drive.Driver, "hesitate", lambda _driver: None)  # the worker commits a plan at once
    monkeypatch.setattr(Recording, "replayed", collections.Counter())
    for seed in seeds:
        report = drive.run_scenario(seed, 60, make=often(make))
        assert report.difference is None, report.difference
    assert Recording.replayed["Decided"] > 10 * len(seeds)
    assert Recording.replayed["Completed"] > 10 * len(seeds)


def test_a_call_of_a_later_version_is_named(device_shapes):
    player = Player.fast(LoggedScheduler(*device_shapes).checkpoint())
    for entry in ([99, 1], ["text"], [], [0], None, [7, 1]):
        with pytest.raises(NotReplayable, match=r"recorded the run|have parted"):
            player.step(entry)


def test_a_completion_without_a_frame_parts_log_and_scheduler(device_shapes):
    player = Player.fast(LoggedScheduler(*device_shapes).checkpoint())
    with pytest.raises(NotReplayable, match="have parted"):
        player.step([1, 1, [5], 5, 0, b"", [], None, None])
    assert Completed(1) != Decided(1, None)


@pytest.fixture
def device_shapes():
    from scheduler.catalog import Catalog
    from scheduler.policy import PolicyConfig
    from scheduler.shapes import GraphKind, GraphShape

    shapes = (GraphShape(GraphKind.PREFILL, 1, prefill_capacity=64), GraphShape(GraphKind.DECODE, 1))
    return Catalog(shapes), PolicyConfig()
