"""Who may be let in before a preempted request that waits: those that keep nobody from pages, and not for ever."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpu.device import PagesExhausted
from service.engine import admission, completion

BOUND = 3


def script(first: int) -> list[int]:
    return [30 + (first + 3 * place) % 60 for place in range(500)]


def narrow(make_rig, **more):
    """A pool for one and a half long requests."""
    rig = make_rig(states=True, pages=24, slots=6, queue_limit=100, **more)
    for first in range(10, 90):
        rig.device.scripts[first] = script(first)
    return rig


def two_long(rig) -> None:
    rig.submit("a", prompt=60, output=190, first=10)
    rig.submit("b", prompt=70, output=180, first=20)


def run_until_preempted(rig) -> None:
    """Until b waits in the queue again."""
    for _ in range(2000):
        rig.step()
        request = rig.core.table.get("b")
        if request is not None and request.preemptions and request.handle is None:
            return
    raise AssertionError("b is not preempted")


class Waits:
    """Of each time that a preempted request waited: how many were let in meanwhile that had not been preempted."""

    def __init__(self, rig) -> None:
        self.finished: list[int] = []
        self._open: dict[str, int] = {}
        table = rig.core.table
        admit, requeue = table.admit, table.requeue

        def admitted(request, handle) -> None:
            admit(request, handle)
            if request.request_id in self._open:
                self.finished.append(self._open.pop(request.request_id))
            for name in self._open:
                self._open[name] += request.preemptions == 0

        def requeued(request) -> None:
            requeue(request)
            self._open[request.request_id] = 0

        table.admit, table.requeue = admitted, requeued


def test_a_short_request_passes_a_preempted_one_that_waits(make_rig):
    rig = narrow(make_rig)
    two_long(rig)
    run_until_preempted(rig)
    rig.submit("short", prompt=5, output=3, first=30)
    while rig.ending_of("short") is None:
        rig.step()
    assert rig.core.table.get("a") is not None, "it need not wait for what the preempted one waits for"
    assert rig.core.table.get("b").handle is None
    rig.settle()
    assert rig.text("b") == script(20)[:180]
    assert (rig.ending("a").preemptions, rig.ending("b").preemptions) == (0, 1)


def test_one_that_could_take_pages_which_others_need_later_does_not_pass(make_rig):
    rig = narrow(make_rig)
    two_long(rig)
    run_until_preempted(rig)
    rig.submit("long", prompt=5, output=180, first=30)
    rig.submit("short", prompt=5, output=3, first=31)
    rig.step()
    while rig.core.table.get("a") is not None:
        assert rig.core.table.queued == 3, "its prompt would fit, all of it does not; and nobody passes it in turn"
        rig.step()
    rig.settle()
    assert {rig.ending(name).finish_reason for name in ("a", "b", "long", "short")} == {"length"}


def test_after_so_many_passes_the_preempted_one_is_next(make_rig, monkeypatch):
    monkeypatch.setattr(admission, "MOST_PASSES", BOUND)
    rig = narrow(make_rig)
    two_long(rig)
    run_until_preempted(rig)
    waits = Waits(rig)
    waits._open["b"] = 0
    for number in range(12):
        rig.submit(f"s{number}", prompt=5, output=3, first=30 + number)
    while rig.core.table.get("b").handle is None:
        rig.step()
    assert waits.finished == [BOUND]
    assert rig.core.table.queued > 0
    rig.settle()


@given(
    shorts=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60), st.integers(0, 12)), max_size=25),
    longs=st.lists(st.tuples(st.integers(30, 90), st.integers(100, 200)), min_size=2, max_size=4),
    slots=st.integers(2, 6),
)
@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # an example takes too long to be shrunk
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_every_preempted_request_comes_back_after_a_bounded_number_of_others(
    rig_class, tmp_path_factory, monkeypatch, shorts, longs, slots
):
    monkeypatch.setattr(admission, "MOST_PASSES", BOUND)
    rig = rig_class(tmp_path_factory.mktemp("rig"), states=True, pages=24, slots=slots, queue_limit=100)
    for first in range(10, 90):
        rig.device.scripts[first] = script(first)
    waits, expected = Waits(rig), {}
    arrivals = [(prompt, output, 0) for prompt, output in longs] + shorts
    for number, (prompt, output, steps) in enumerate(arrivals):
        rig.submit(f"r{number}", prompt=prompt, output=output, first=10 + number)
        expected[f"r{number}"] = script(10 + number)[:output]
        rig.step(steps)
    rig.settle(20_000)
    assert {name: rig.text(name) for name in expected} == expected
    assert max(waits.finished, default=0) <= BOUND
    assert len(waits.finished) == sum(rig.ending(name).preemptions for name in expected)
    assert rig.device.held_pages() == 0


@pytest.mark.parametrize(("losses", "end"), [(completion.MOST_LIVES, "length"), (completion.MOST_LIVES + 1, "error")])
def test_only_lives_that_the_device_ended_count_against_a_request(make_rig, losses, end):
    rig = narrow(make_rig)
    rig.submit("a", prompt=60, output=120, first=10)
    rig.step()
    request = rig.core.table.get("a")
    for life in range(completion.MOST_LIVES):
        while not request.decodes:
            rig.step()
        rig.core.scheduler.preempt(request.handle)
        while request.preemptions == life:
            rig.step()
    rig.device.refusals = [PagesExhausted("none left")] * losses
    rig.settle()
    assert rig.ending("a").finish_reason == end
    assert rig.ending("a").preemptions == 2 * completion.MOST_LIVES
    assert rig.device.held_pages() == 0
