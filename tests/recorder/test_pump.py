"""The pump by itself: a sink that fails while nothing is pending is tried again with growing pauses."""

from __future__ import annotations

from service.recorder.pump import Delivery, Pump, SinkUnavailable


class CountingStop:
    """Stands in for the stop event: records each pause and stops after `turns` of them."""

    def __init__(self, turns):
        self.pauses = []
        self._turns = turns

    def is_set(self):
        return len(self.pauses) >= self._turns

    def wait(self, seconds):
        self.pauses.append(seconds)
        return self.is_set()


class FailingAtRest:
    """Takes records, but cannot be used once there are none."""

    name = "sql"
    run_open = False
    run_id = None

    def __init__(self, failures):
        self._failures = failures

    def resume(self):
        return None

    def deliver(self, items):
        return Delivery(len(items), 0)

    def close_lost_run(self):
        raise AssertionError("no run is open")

    def idle(self):
        if self._failures:
            self._failures -= 1
            raise SinkUnavailable("no space left on device")

    def needed_segment(self, position):
        return position.segment


class Gauges:
    def __init__(self):
        self.said = []

    def __getattr__(self, name):
        return lambda *_: self.said.append(name)


def test_a_sink_that_fails_at_rest_is_backed_off_warned_of_once_and_not_called_up_to_date(tmp_path, caplog):
    stop, gauges = CountingStop(4), Gauges()
    Pump(tmp_path, FailingAtRest(failures=3), stop, gauges, lambda *_: None).run()
    assert stop.pauses == [0.1, 0.2, 0.4, 0.05]
    assert gauges.said == ["behind", "behind", "behind", "at_tail", "at_tail"]
    assert sum("tried again" in record.message for record in caplog.records) == 1
