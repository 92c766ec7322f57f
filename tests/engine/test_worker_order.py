"""The order of one iteration: journal before publication, one policy version per plan, shutdown, failure."""

from __future__ import annotations

import random

import pytest

from scheduler.policy import PolicyConfig
from service.engine.run import EXIT_FAILED, EXIT_OK, GRACE_NS, StopSignal, run_worker
from service.engine.worker import TICK_NS
from service.ipc.messages import ConfigurePolicy, EngineStopping, Hello, PolicyAcknowledged, Refused, Tokens
from service.journal.errors import FrameTooLarge
from service.journal.records import (
    OutputPublished,
    PlanCommitted,
    PlanCompleted,
    PolicyApplied,
    RequestArrived,
    RequestFinished,
    RunEnded,
    RunStarted,
    SchedulerCalls,
    SchedulerCheckpoint,
)

MS = 1_000_000


def configure(rig, version, **changes):
    coefficients = {**PolicyConfig().as_dict(), **changes}
    rig.transport.inbox.append((b"A", ConfigurePolicy(version, coefficients)))


def run_mixed_load(rig):
    choose = random.Random(1)
    for number in range(60):
        rig.submit(f"r{number}", choose.randrange(1, 150), choose.randrange(1, 8))
        if number % 3 == 0:
            rig.cancel(f"r{choose.randrange(number + 1)}")
        rig.step(choose.randrange(3))
    rig.settle()


def test_nothing_is_published_before_the_write_that_records_its_completion(rig):
    run_mixed_load(rig)
    written: dict[str, int] = {}
    published: dict[str, int] = {}
    lanes: dict[int, list[str]] = {}
    for kind, items in rig.events:
        for item in items:
            if isinstance(item, PlanCommitted):
                lanes[item.fence] = [lane.request_id for lane in item.lanes]
            elif isinstance(item, PlanCompleted):
                for lane in item.lanes:
                    name = lanes[item.fence][lane.lane]
                    written[name] = written.get(name, 0) + lane.committed_tokens
            elif isinstance(item, Tokens):
                published[item.request_id] = item.output_tokens
                assert kind == "send"
                assert item.output_tokens <= written.get(item.request_id, 0)
    assert sum(published.values()) == sum(written.values()) > 100


def test_an_acknowledged_or_accepted_command_is_in_the_journal_before_the_answer(rig):
    configure(rig, 2, token_fairness=1.0)
    rig.submit("a")
    rig.step()
    kinds = [(kind, type(item)) for kind, items in rig.events for item in items]
    answered = kinds.index(("send", PolicyAcknowledged))
    assert kinds.index(("write", RunStarted)) < answered
    assert [k for k in kinds[:answered] if k == ("write", PolicyApplied)] == [("write", PolicyApplied)] * 2
    assert ("write", RequestArrived) in kinds[:answered]


def test_an_iteration_writes_at_most_once_and_publication_records_follow_in_the_next(rig):
    rig.submit("a", output=3)
    for _ in range(12):
        before = len(rig.journal.writes)
        rig.step()
        assert len(rig.journal.writes) - before <= 1
        if rig.core.records:
            assert rig.worker.wait_ns() == 0
    for number, (records, _) in enumerate(rig.journal.writes):
        for record in records:
            if isinstance(record, OutputPublished):
                earlier = [r for w, _ in rig.journal.writes[:number] for r in w if isinstance(r, PlanCompleted)]
                assert record.fence in [r.fence for r in earlier]


def test_every_write_carries_the_last_committed_fence(rig):
    run_mixed_load(rig)
    last = 0
    for records, fence in rig.journal.writes:
        last = max([last, *(r.fence for r in records if isinstance(r, PlanCommitted))])
        assert fence == last
    assert [plan.fence for plan in rig.plans()] == list(range(1, last + 1))


def test_every_published_lane_had_tokens_and_every_lane_with_visible_tokens_is_published(rig):
    rig.device.scripts[10] = [50, 50, 1]
    run_mixed_load(rig)
    published = {(r.fence, lane) for r in rig.journal.of(OutputPublished) for lane in r.lanes}
    committed = {(d.fence, lane.lane) for d in rig.completions() for lane in d.lanes if lane.committed_tokens}
    assert published <= committed
    assert len(published) == sum(1 for _, e in rig.transport.sent if isinstance(e, Tokens) and e.token_ids)


def test_the_scheduler_learns_of_each_publication_at_its_time(rig):
    rig.submit("a", output=9)
    rig.device.automatic = False
    rig.step()
    rig.device.finish(10 * MS)
    rig.step()
    rig.clock.advance(7 * MS)
    rig.device.finish(10 * MS)
    rig.step()
    rig.step()
    state = rig.core.scheduler._state
    state.refresh()
    assert state.slots[0]["last_visible_ns"] == rig.journal.of(OutputPublished)[-1].published_ns
    ages = [lane.age_ms for plan in rig.plans() for lane in plan.lanes]
    assert set(ages[1:]) == {0.0}, "what is complete counts as delivered when the next graph is chosen"


class Loop:
    """Runs the worker's loop with a wait that a test scripts: one call per wait, then a stop."""

    def __init__(self, rig, *script) -> None:
        self.rig = rig
        self.script = list(script)
        self.waits: list[int] = []
        self.stop = StopSignal()

    def wait(self, at_most_ns: int) -> None:
        self.waits.append(at_most_ns)
        if self.script:
            self.script.pop(0)()
        elif not self.stop.requested:
            self.stop.request()
        else:
            self.rig.clock.advance(at_most_ns)

    def run(self) -> int:
        with self.stop:
            return run_worker(self.rig.worker, self.stop, self.wait, self.rig.clock)


def settle_then_stop(loop):
    """Keep waiting until the engine is at rest."""

    def again():
        loop.rig.clock.advance(MS)
        if len(loop.rig.core.table):
            loop.script.insert(0, again)

    return again


def test_an_idle_engine_stops_at_once_and_in_order(rig):
    rig.transport.inbox.append((b"A", Hello("w")))
    assert Loop(rig).run() == EXIT_OK
    assert isinstance(rig.transport.sent[-1][1], EngineStopping)
    (ended,) = rig.journal.of(RunEnded)
    assert ended.reason == "stopped"
    assert rig.journal.records[-1] is ended


def test_an_idle_engine_sleeps_until_its_next_look_around(rig):
    loop = Loop(rig, *[lambda: rig.clock.advance(TICK_NS)] * 4)
    loop.run()
    assert loop.waits[:4] == [TICK_NS] * 4


def test_open_streams_end_at_once_and_a_graph_that_finishes_in_time_is_completed(rig):
    rig.device.automatic = False
    rig.submit("a", output=50)
    rig.submit("b", output=50)
    loop = Loop(rig, lambda: None)
    loop.script.append(loop.stop.request)

    def finish():
        assert [type(e) for _, e in rig.transport.sent[-3:]] == [EngineStopping, Tokens, Tokens]
        rig.device.finish(1000 * MS)

    loop.script += [lambda: None, finish]
    assert loop.run() == EXIT_OK
    for name in ("a", "b"):
        assert (rig.ending(name).finish_reason, rig.ending(name).error) == ("abort", "the server is shutting down")
    assert [done.outcome for done in rig.completions()] == ["completed"]
    assert len(rig.plans()) == 1
    assert rig.device.held_pages() == 0


def test_a_graph_still_running_after_four_seconds_is_abandoned_and_recorded_so(rig):
    rig.device.automatic = False
    rig.submit("a", output=50)
    loop = Loop(rig, lambda: None)
    loop.script.append(loop.stop.request)
    began = rig.clock()
    assert loop.run() == EXIT_OK
    (done,) = rig.completions()
    assert (done.outcome, done.fence, done.device_ns) == ("abandoned", 1, 0)
    assert done.completed_ns - began == GRACE_NS
    assert isinstance(rig.journal.records[-1], RunEnded)
    assert rig.ending("a").finish_reason == "abort"


def test_a_request_that_comes_while_stopping_is_refused(rig):
    rig.device.automatic = False
    rig.submit("a")
    loop = Loop(rig, lambda: None)
    loop.script.append(loop.stop.request)
    loop.script += [lambda: rig.submit("late"), rig.device.finish]
    assert loop.run() == EXIT_OK
    (refused,) = [e for _, e in rig.transport.sent if isinstance(e, Refused)]
    assert (refused.request_id, refused.code) == ("late", "stopping")
    assert len(rig.plans()) == 1


def test_an_unexpected_error_ends_the_run_as_failed_and_tells_the_clients(rig, monkeypatch, capsys):
    rig.submit("a", output=50)

    def broken():
        raise ZeroDivisionError("a bug")

    loop = Loop(rig, lambda: None, lambda: monkeypatch.setattr(rig.core.scheduler, "plan", broken))
    assert loop.run() == EXIT_FAILED
    assert rig.journal.of(RunEnded)[0].reason == "failed: ZeroDivisionError: a bug"
    assert rig.ending("a").finish_reason == "error"
    assert EngineStopping in [type(e) for _, e in rig.transport.sent]
    assert "a bug" in capsys.readouterr().err
    assert not [fence for fence in (p.fence for p in rig.plans()) if fence not in {d.fence for d in rig.completions()}]


def test_a_journal_that_breaks_publishes_nothing_more(rig, capsys):
    rig.submit("a", output=50)
    loop = Loop(rig, lambda: None, lambda: None)
    loop.script.append(lambda: setattr(rig.journal, "fail", OSError("gone")))
    sent = []
    loop.script.append(lambda: sent.append(len(rig.text("a"))))
    assert loop.run() == EXIT_FAILED
    assert sent == []
    committed = sum(lane.committed_tokens for done in rig.completions() for lane in done.lanes)
    assert len(rig.text("a")) == committed


def test_records_that_fit_into_no_segment_are_lost_and_the_engine_goes_on(rig):
    rig.journal.fail = FrameTooLarge("too large")
    rig.device.journal = None
    rig.submit("a", output=2)
    rig.step(2)
    rig.journal.fail = None
    rig.settle()
    assert len(rig.text("a")) == 2


def test_a_state_of_the_scheduler_is_written_apart_from_plans(rig, monkeypatch):
    """One that is too large for a segment would take what is in its frame along."""
    monkeypatch.setattr("service.engine.worker.CHECKPOINT_NS", 0)
    monkeypatch.setattr(rig.worker, "_next_checkpoint_ns", 0)
    monkeypatch.setattr(rig.worker, "_tick_ns", 0)
    rig.submit("a", output=20)
    rig.settle()
    with_states = [records for records, _ in rig.journal.writes if SchedulerCheckpoint in map(type, records)]
    assert len(with_states) > 10
    kinds = {type(record) for records in with_states[1:] for record in records}  # the first begins the run
    assert kinds <= {SchedulerCheckpoint, SchedulerCalls}


def test_a_malformed_message_is_counted(rig):
    rig.transport.malformed = 3
    assert rig.metric("flare_ipc_malformed_messages_total") == 3
    assert rig.metric("flare_ipc_malformed_messages_total") == 3


def test_counters_move_with_every_plan_and_gauges_fall_to_zero_when_idle(rig):
    rig.device.automatic = False
    rig.submit("a", output=20)
    rig.step()
    seen = []
    for _ in range(15):
        rig.device.finish(10 * MS)
        rig.step()
        seen.append(rig.metric("flare_output_tokens_total"))
    assert seen == sorted(set(seen))
    assert rig.metric("flare_requests_running") == 1
    assert rig.metric("flare_device_busy_ratio") > 0
    rig.device.automatic = True
    rig.settle()
    for _ in range(240):
        rig.clock.advance(500 * MS)
        rig.step()
    for name in (
        "flare_requests_running",
        "flare_requests_waiting",
        "flare_oldest_wait_seconds",
        "flare_kv_pages_used",
        "flare_device_busy_ratio",
    ):
        assert rig.metric(name) == 0
    assert rig.metric("flare_kv_pages_total") == 64


def test_each_plan_is_in_the_counters_of_its_class_and_kind(rig):
    run_mixed_load(rig)
    reasons = [plan.reason for plan in rig.plans()]
    for name in ("ordinary", "discovery", "timing_refresh", "acceptance_learning"):
        expected = sum((r if r != "solo_prefill" else "ordinary") == name for r in reasons)
        assert rig.metric("flare_scheduler_executions_total", **{"class": name}) == expected
    for kind in ("prefill", "decode"):
        expected = sum(plan.shape.kind == kind for plan in rig.plans())
        assert rig.metric("flare_graph_duration_seconds_count", kind=kind) == expected
    assert rig.metric("flare_scheduler_plan_seconds_count") == len(reasons)
    fresh = rig.metric("flare_graph_estimates", state="fresh")
    assert fresh + rig.metric("flare_graph_estimates", state="unknown") == len(rig.device.shapes)


def test_plan_records_say_what_the_plan_says(rig):
    rig.submit("a", output=3)
    rig.submit("b", output=3)
    rig.settle()
    for plan in rig.plans():
        if plan.score_kind == "rate":
            parts = plan.parts
            work = parts.token_value + parts.delivery_value + parts.age_relief + parts.terminal_relief
            work += parts.prompt_wait_relief + parts.decode_late_relief
            assert plan.score == pytest.approx(work / parts.horizon_ms - parts.wait_cost)
        assert (plan.queue_depth, plan.frame_slot) == (0, 0)
        assert plan.logical_rows <= plan.shape.target_rows + plan.shape.prefill_capacity
    assert any(plan.alternatives for plan in rig.plans())
    finished = rig.journal.of(RequestFinished)
    assert len(finished) == 2
