"""A collector that is away: what waits in the journal, what is given up beyond the limit, and how that is declared."""

from __future__ import annotations

import collections

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, DEFAULT_OFF, DEFAULT_ON
from otlp_receiver import Answer, attributes, partial_success

from service.journal.reader import JournalReader
from service.journal.segments import segment_numbers, segment_path
from service.recorder.backlog import Backlog
from service.recorder.collector import Collector
from service.recorder.offsets import OTLP_SINK
from service.recorder.open_spans import SpanOptions
from service.recorder.otlp_sink import OtlpSink
from service.recorder.pump import SinkUnavailable
from service.store.tables import journal_offsets, requests, trace_gaps
from service.telemetry.exporter_settings import ExporterSettings
from service.telemetry.sampling import SpanSampler

SEGMENT = 64 << 10
PLANS = 1000
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Shipper:
    """What the pump does, one batch at a time, with a failed delivery left to the caller."""

    def __init__(self, store, directory, url, make, *, limit: int | None = None, options=None, batch: int = 20):
        self.reader = JournalReader(directory)
        collector = Collector(ExporterSettings(f"{url}/v1/traces", timeout_s=5.0))
        backlog = None if limit is None else Backlog(directory, limit)
        self.sink = OtlpSink(store, self.reader.journal_id, collector, backlog, options)
        self.reader.position = self.sink.resume()
        self.make, self.batch = make, batch
        self.pending: list = []
        self.ahead: list = []
        self.lost = 0
        self.tries = 0

    def turn(self) -> bool:
        """One batch delivered; False at the journal's end. Raises SinkUnavailable and keeps the batch."""
        while len(self.pending) < self.batch:
            item = self.ahead.pop() if self.ahead else self.reader.poll()
            if item is None:
                break
            if self.pending and self.make._run_changes(self.pending, item):
                self.ahead.append(item)
                break
            self.pending.append(item)
        if not self.pending:
            return False
        self.tries += 1
        self.lost += self.sink.deliver(self.pending).lost_spans
        self.pending = []
        return True

    def deliver_all(self) -> None:
        """To the journal's end, or to the first failure."""
        while self.turn():
            pass

    def run(self) -> None:
        """To the end, as often as it takes."""
        while True:
            try:
                if not self.turn():
                    return
            except SinkUnavailable:
                assert self.tries < 10_000


def long_story(make, plans: int = PLANS, first: int = 1, run_id: str = "run-1") -> list:
    frames = [[make.started(run_id), make.policy(), make.arrived("a"), make.arrived("b")]]
    for fence in range(first, first + plans):
        frames.append([make.plan(fence, ["a", "b"], fence), make.completed(fence, 2, fence + 0.5)])
    return [*frames, [make.finished("a"), make.finished("b"), make.ended(plans + 100.0)]]


def gaps(store, make) -> dict[str, dict]:
    return {row["reason"].split(": ")[1]: row for row in make.rows(store, trace_gaps)}


def test_a_collector_that_was_away_gets_every_span_once(store, tmp_path, make, collector):
    """Every kind of trouble, a restart in the middle of it, and no limit reached."""
    make.write_frames(tmp_path, long_story(make, 200), segment_bytes=SEGMENT)
    trouble = [503, Answer(429, {"Retry-After": "0"}), Answer(how="reset"), 502, 504]
    for _ in range(2):
        collector.answers = list(trouble)
        shipper = Shipper(store, tmp_path, collector.url, make, limit=1 << 30)
        for _ in trouble:
            with pytest.raises(SinkUnavailable):
                shipper.deliver_all()
        assert shipper.turn()
    shipper.run()
    assert shipper.lost == 0
    ids = [span.span_id for span in collector.spans]
    assert len(ids) == len(set(ids)) == 200 + 2 + 1
    assert make.rows(store, trace_gaps) == []


def test_beyond_the_limit_the_oldest_spans_are_given_up_and_that_is_declared(store, tmp_path, make, collector):
    make.write_frames(tmp_path, long_story(make), segment_bytes=SEGMENT)
    numbers = segment_numbers(tmp_path)
    assert len(numbers) > 10
    limit = 3 * SEGMENT
    collector.answers = [503] * 1000
    shipper = Shipper(store, tmp_path, collector.url, make, limit=limit)
    with pytest.raises(SinkUnavailable):
        shipper.deliver_all()
    # It gave up only as much as it had to, and asked the collector at its start and its end alone.
    position = shipper.sink._sent
    assert Backlog(tmp_path, 0).held_bytes(position.segment) <= limit
    assert numbers[-5] <= position.segment <= numbers[-3]
    assert collector.posts == 2
    (gap,) = make.rows(store, trace_gaps)
    given_up = shipper.lost
    assert gap["reason"] == f"{given_up} spans were not sent: the collector was away for too long for --otlp-backlog"
    assert (gap["run_id"], gap["from_fence"], gap["to_fence"]) == ("run-1", 1, given_up - 1)  # and the policy's span
    collector.answers = []
    shipper.run()
    assert shipper.lost == given_up
    sent = collections.Counter(span.span_id for span in collector.spans)
    assert set(sent.values()) == {1}
    assert len(sent) + given_up == PLANS + 2 + 1
    last = [attributes(span)["helios.plan.fence"] for span in collector.named("helios.plan")]
    assert last == list(range(given_up, PLANS + 1))


def test_what_was_given_up_is_declared_once_across_a_restart(store, tmp_path, make, collector):
    """The loss and the offset behind it are one transaction."""
    make.write_frames(tmp_path, long_story(make), segment_bytes=SEGMENT)
    collector.answers = [503] * 1000
    first = Shipper(store, tmp_path, collector.url, make, limit=SEGMENT, batch=50)
    for _ in range(3):
        assert first.turn()
    collector.answers = []
    second = Shipper(store, tmp_path, collector.url, make, limit=SEGMENT, batch=50)
    second.run()
    declared = sum(int(row["reason"].split()[0]) for row in make.rows(store, trace_gaps))
    assert declared == first.lost + second.lost
    assert second.lost == 2  # the requests, whose beginning was given up
    assert len({span.span_id for span in collector.spans}) == len(collector.spans)
    assert len(collector.spans) + declared == PLANS + 2 + 1


def test_a_store_that_is_down_neither_loses_a_span_nor_declares_one(any_store, tmp_path, make, collector, monkeypatch):
    make.write_frames(tmp_path, long_story(make, 40), segment_bytes=SEGMENT)
    collector.answers = [partial_success(2)]
    shipper = Shipper(any_store, tmp_path, collector.url, make, limit=1 << 30)
    monkeypatch.setattr("service.recorder.otlp_sink.store_offset", broken)
    assert shipper.turn()
    assert (make.rows(any_store, trace_gaps), make.rows(any_store, journal_offsets)) == ([], [])
    monkeypatch.undo()
    shipper.sink.idle()
    (gap,) = make.rows(any_store, trace_gaps)
    assert gap["reason"] == "2 spans were not sent: the collector refused them"
    assert OTLP_SINK in {row["sink"] for row in make.rows(any_store, journal_offsets)}
    collector.answers = [400] * 5  # twenty spans, then ten, five, two, and one alone
    shipper.run()
    (gap,) = make.rows(any_store, trace_gaps)  # the same row has grown
    assert int(gap["reason"].split()[0]) == shipper.lost > 2


def broken(*_arguments):
    from sqlalchemy.exc import OperationalError

    raise OperationalError("INSERT", {}, Exception("the disk is full"))


def test_segments_that_were_removed_before_they_were_sent_are_declared(store, tmp_path, make, collector):
    make.write_frames(tmp_path, long_story(make), segment_bytes=SEGMENT)
    numbers = segment_numbers(tmp_path)
    shipper = Shipper(store, tmp_path, collector.url, make, limit=1 << 30)
    while shipper.sink._sent is None or shipper.sink._sent.segment < numbers[2]:
        assert shipper.turn()
    for number in numbers[5:8]:
        segment_path(tmp_path, number).unlink()
    shipper.run()
    gap = gaps(store, make)["their records are missing from the journal"]
    plans = collector.named("helios.plan")
    assert gap["to_fence"] - gap["from_fence"] + 1 == PLANS - len(plans)
    assert shipper.lost == int(gap["reason"].split()[0]) == PLANS - len(plans)


def test_a_plan_whose_end_is_missing_ends_as_lost_when_a_later_one_completes(store, tmp_path, make, collector):
    frames = [[make.started(), make.arrived("a")], [make.plan(1, ["a"], 5), make.plan(2, ["a"], 6)]]
    make.write_frames(tmp_path, [*frames, [make.completed(2, 1, 30)], [make.plan(3, ["a"], 31)]])
    Shipper(store, tmp_path, collector.url, make).run()
    first, second = collector.named("helios.plan")
    assert (attributes(first)["helios.plan.outcome"], first.status.code) == ("lost", Status.STATUS_CODE_ERROR)
    assert (attributes(second)["helios.plan.outcome"], second.status.code) == ("completed", Status.STATUS_CODE_UNSET)


def test_a_request_that_ends_without_a_beginning_is_a_loss(store, tmp_path, make, collector):
    """Not in a journal whose beginning nobody has read: what was shipped before spans were switched on."""
    make.write_frames(tmp_path, [[make.started(), make.finished("gone")]])
    shipper = Shipper(store, tmp_path, collector.url, make)
    shipper.run()
    assert shipper.lost == 1
    assert list(gaps(store, make)) == ["their records are missing from the journal"]
    (tmp_path / "later").mkdir()
    make.write_frames(tmp_path / "later", [[make.finished("gone")]])
    later = Shipper(store, tmp_path / "later", collector.url, make)
    later.run()
    assert later.lost == 0


def test_a_request_that_stays_open_does_not_hold_more_of_the_journal_than_is_allowed(store, tmp_path, make, collector):
    make.write_frames(tmp_path, long_story(make), segment_bytes=SEGMENT)
    numbers = segment_numbers(tmp_path)
    for limit, needed in ((1 << 30, numbers[0]), (2 * SEGMENT, numbers[6])):
        shipper = Shipper(store, tmp_path, collector.url, make, limit=limit)
        while shipper.reader.position is None or shipper.reader.position.segment < numbers[6]:
            assert shipper.turn()
        assert shipper.sink.needed_segment(shipper.reader.position) == needed


@pytest.mark.parametrize(
    ("sampler", "sent_requests", "sent_plans"),
    [(None, {"off", "on", "none"}, {1, 2, 3}), (DEFAULT_ON, {"on", "none"}, {1, 2, 3}), (ALWAYS_OFF, set(), set()),
     (DEFAULT_OFF, {"on"}, {2, 3})],
)  # fmt: skip
def test_sampling_decides_what_is_sent_and_not_what_is_stored(
    store, tmp_path, make, collector, sampler, sent_requests, sent_plans
):
    """A caller's flag hides its request's span alone; a request that is sent brings the plans that served it."""
    caller = {"trace_id": TRACE, "parent_span_id": PARENT}
    arrivals = [make.arrived("off", trace_flags=0, **caller), make.arrived("on", **caller), make.arrived("none")]
    served = {1: ["off"], 2: ["off", "on"], 3: ["on", "none"]}
    frames = [[make.started(), *arrivals]]
    for fence, names in served.items():
        frames.append([make.plan(fence, names, fence), make.completed(fence, len(names), fence + 0.5)])
    make.write_frames(tmp_path, [*frames, [make.finished(name) for name in ("off", "on", "none")]])
    make.drain(store, tmp_path)
    shipper = Shipper(store, tmp_path, collector.url, make, options=SpanOptions(SpanSampler(sampler)))
    shipper.run()
    asked = [span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER]
    assert {attributes(span)["gen_ai.response.id"] for span in asked} == sent_requests
    assert {attributes(span)["helios.plan.fence"] for span in collector.named("helios.plan")} == sent_plans
    assert {row["request_id"] for row in make.rows(store, requests)} == {"off", "on", "none"}
    assert shipper.lost == 0


def test_what_is_given_up_at_the_end_of_a_lost_run_is_counted_with_the_next_delivery(store, tmp_path, make, collector):
    make.write_frames(tmp_path, [[make.started(), make.arrived("a"), make.plan(1, ["a"])]])
    collector.answers = [503] * 99
    shipper = Shipper(store, tmp_path, collector.url, make, limit=-1)  # nothing may wait
    shipper.run()
    shipper.sink.close_lost_run()
    assert shipper.lost == 0
    make.write_frames(tmp_path, make.story(2, run_id="run-2"), "run-2")
    shipper.run()
    declared = sum(int(row["reason"].split()[0]) for row in make.rows(store, trace_gaps))
    assert declared == shipper.lost == 2 + 2 + 2 + 1
