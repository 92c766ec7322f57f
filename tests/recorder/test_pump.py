"""The pump by itself: a sink that fails while nothing is pending is tried again with growing pauses."""

from __future__ import annotations

from service.recorder.pump import BATCH_RECORDS, MOST_RECORDS, Delivery, Pump, SinkUnavailable


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
    *failed, idle = stop.pauses
    assert all(whole / 2 <= pause <= whole for pause, whole in zip(failed, [0.1, 0.2, 0.4], strict=True))
    assert idle == 0.05
    assert gauges.said == ["behind", "behind", "behind", "at_tail", "at_tail"]
    assert sum("tried again" in record.message for record in caplog.records) == 1
    assert sum("can be used again" in record.message for record in caplog.records) == 1


class Counting(FailingAtRest):
    """Notes how many records came with each delivery; refuses the first deliveries."""

    def __init__(self, refusals=0):
        super().__init__(0)
        self.sizes = []
        self._refusals = refusals

    def deliver(self, items):
        count = sum(len(item.records) for item in items)
        if self._refusals:
            self._refusals -= 1
            raise SinkUnavailable("later")
        self.sizes.append(count)
        return Delivery(count, 0)


def test_a_sink_that_is_behind_gets_larger_transactions_up_to_a_bound(tmp_path, make):
    plans = [make.plan(fence, ["a"], alternatives=0) for fence in range(1, 20_001)]
    frames = [plans[start : start + 100] for start in range(0, len(plans), 100)]
    make.write_frames(tmp_path, frames, segment_bytes=32 << 20, budget_bytes=256 << 20)
    sink = Counting()
    Pump(tmp_path, sink, CountingStop(1), Gauges(), lambda *_: None, now=lambda: 0.0).run()
    assert sum(sink.sizes) == 20_000
    assert sink.sizes[:3] == [BATCH_RECORDS, 2 * BATCH_RECORDS, MOST_RECORDS]
    assert max(sink.sizes) == MOST_RECORDS


def test_what_was_refused_is_tried_again_as_it_was(tmp_path, make):
    make.write_frames(tmp_path, [[make.plan(fence, ["a"])] for fence in range(1, 2001)], segment_bytes=32 << 20)
    sink = Counting(refusals=3)
    Pump(tmp_path, sink, CountingStop(4), Gauges(), lambda *_: None, now=lambda: 0.0).run()
    assert sink.sizes == [BATCH_RECORDS, 2000 - BATCH_RECORDS]


def test_records_at_the_journals_end_wait_a_little_for_company(tmp_path, make):
    make.write_frames(tmp_path, [[make.plan(1, ["a"])]])
    stop, sink = CountingStop(9), Counting()
    pump = Pump(tmp_path, sink, stop, Gauges(), lambda *_: None, now=lambda: 0.1 * len(stop.pauses))
    while not sink.sizes:
        pump._turn()
    assert stop.pauses == [0.05, 0.05]


def test_a_stop_ends_the_waiting(tmp_path, make):
    make.write_frames(tmp_path, [[make.plan(1, ["a"])]])
    stop, sink = CountingStop(2), Counting()
    Pump(tmp_path, sink, stop, Gauges(), lambda *_: None, now=lambda: 0.0).run()
    assert (sink.sizes, stop.pauses) == ([1], [0.05, 0.05])
