"""How long a pump waits for a sink that is away."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.recorder.pump import FIRST_RETRY_S, LAST_RETRY_S, LONGEST_ASKED_S, Pump, SinkUnavailable


class Gauges:
    def behind(self, _items) -> None:
        pass


class Stop(threading.Event):
    """Notes the pauses and does not make them."""

    def __init__(self):
        super().__init__()
        self.pauses: list[float] = []

    def wait(self, timeout=None):
        self.pauses.append(timeout)
        return False


def pauses(asked: list[float | None]) -> list[float]:
    class Away:
        name, run_open, run_id = "otlp", False, None

        def resume(self):
            raise SinkUnavailable("away", asked[len(stop.pauses)])

    stop = Stop()
    pump = Pump(None, Away(), stop, Gauges(), lambda *_: None)
    for _ in asked:
        assert pump._turn() is False
    return stop.pauses


def test_pauses_double_up_to_the_last_with_a_share_of_chance():
    found = pauses([None] * 12)
    for count, pause in enumerate(found):
        whole = min(LAST_RETRY_S, FIRST_RETRY_S * 2**count)
        assert whole / 2 <= pause <= whole
    assert len(set(found[-6:])) > 1  # the last ones would all be equal otherwise


@given(st.floats(0, 1e6))
def test_a_pause_that_the_sink_asks_for_is_made_within_bounds(asked):
    """Neither a busy loop nor an hour, whatever it asks."""
    (pause,) = pauses([asked])
    assert pause == pytest.approx(min(max(asked, FIRST_RETRY_S / 2), LONGEST_ASKED_S))
