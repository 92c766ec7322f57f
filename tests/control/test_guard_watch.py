"""A guarded change is kept, or taken back by itself, whoever watches and whatever dies; time is passed in."""

from __future__ import annotations

import asyncio
import datetime as dt

import pytest
import sqlalchemy as sa
from trace_rows import Trace, at

from service.control import guard_watch
from service.control.errors import GuardWatches, InvalidGuard, NoGuard, StalePolicy
from service.control.guard_watch import GuardWatch
from service.control.guards import GuardControl, GuardLimits, Limit
from service.control.policy import PolicyControl, resolve_initial_policy
from service.ipc.errors import EngineUnavailable
from service.settings import Settings
from service.store.engines import read_transaction, write_transaction
from service.store.tables import policy_attempts, trace_gaps

MINUTES = 2.0
LIMITS = GuardLimits(Limit(ratio=1.10, samples=8), Limit(ratio=1.10, samples=8), Limit(ratio=0.95, samples=8))


class Bench:
    """A store, an engine, a clock that both stand on, and the traffic of a trial. `ms` is the time after T0."""

    def __init__(self, store, engine):
        self.store, self.engine = store, engine
        self.ms, self.step_ms = 0.0, 0.0
        self.run_id = "here"
        self.lag_s = 0.0
        self.decided = []
        self.control = self.new_control()
        self.guards = GuardControl(self.control)
        self.watch = self.new_watch("one")
        self.served = 0
        self.trace = Trace()
        self.trace.run("here")

    def new_control(self):
        return PolicyControl(self.store, self.engine.apply, mark_pause_s=0.0, now=lambda: at(self.ms + self.step_ms))

    def new_watch(self, name, control=None):
        return GuardWatch(
            control or self.control,
            watcher=name,
            engine_run=lambda: self.run_id,
            lag_s=lambda: self.lag_s,
            decided=self.decided.append,
            steady_s=lambda: self.ms / 1000,
        )

    def traffic(self, requests=8, first_ms=100.0, gap_ms=10.0, device_ms=5.0):
        """Requests of three tokens that end now; a plan for each token."""
        for number in range(requests):
            self.served += 1
            name, first = f"r{self.served}", self.ms - 3 * gap_ms - requests + number
            published = [first + n * gap_ms for n in range(3)]
            self.trace.request("here", name, first - first_ms, first, published[-1] + 0.1)
            for ms in published:
                self.trace.plan("here", ms - 1, ms, tokens=1, device_ms=device_ms, lanes=[(name, ms)])
        self.trace.plan("here", self.ms, self.ms, device_ms=0.0)
        self.trace.write(self.store)

    async def opened(self, **given):
        self.traffic()
        self.ms += 61_000
        guard = await self.guards.open(
            expected_version=1, coefficients={"token_fairness": 20}, actor="kim", minutes=MINUTES,
            limits=given.pop("limits", LIMITS), **given,
        )  # fmt: skip
        await self.watch.step()
        return guard

    async def trial(self, seconds, watch=None, **traffic):
        """So much of the trial: traffic and a look every ten seconds, by each of the watchers."""
        for _ in range(int(seconds / 10)):
            self.ms += 10_000
            if traffic.get("requests", 1):
                self.traffic(**traffic)
            for watcher in watch or [self.watch]:
                await watcher.step()

    async def guard(self):
        (newest, *_) = await self.guards.history(1)
        return newest

    def attempts(self):
        with read_transaction(self.store) as connection:
            rows = connection.execute(sa.select(policy_attempts).order_by(policy_attempts.c.id)).mappings()
            return [(row["outcome"], row["actor"]) for row in rows]


@pytest.fixture
def bench(store, fake_engine, no_flags):
    """On SQLite; what differs between the databases is tested on both."""
    resolve_initial_policy(store, no_flags)
    return Bench(store, fake_engine)


@pytest.fixture
def any_bench(started_store, fake_engine):
    return Bench(started_store, fake_engine)


def run(story):
    return asyncio.run(story)


def test_a_change_whose_limits_hold_to_the_end_is_kept(any_bench):
    async def story():
        opened = await any_bench.opened()
        assert (opened.state, opened.version, opened.parent, opened.actor) == ("watching", 2, 1, "kim")
        assert opened.until - opened.opened_at == dt.timedelta(minutes=MINUTES)
        assert [check.before_samples for check in opened.evidence.checks] == [8, 16, 25]
        await any_bench.trial(110)
        watching = await any_bench.guards.current()
        assert (watching.state, watching.reason) == ("watching", "")
        await any_bench.trial(20)
        return await any_bench.guard()

    guard = run(story())
    assert (guard.state, guard.reason) == ("held", "every limit held to the end")
    assert any_bench.decided == ["held"]
    assert any_bench.engine.in_force[0] == 2
    assert {check.name: check.verdict for check in guard.evidence.checks} == dict.fromkeys(
        ("first_token_p99", "inter_token_p99", "throughput"), "holds"
    )
    assert guard.evidence.read_until == guard.until
    assert guard.evidence.watched_s == pytest.approx(130)
    assert any_bench.attempts() == [("applied", "kim"), ("held", "guard")]


@pytest.mark.parametrize(
    ("traffic", "name"),
    [
        ({"first_ms": 150.0}, "first_token_p99"),
        ({"gap_ms": 12.0}, "inter_token_p99"),
        ({"device_ms": 6.0}, "throughput"),
    ],
)
def test_a_broken_limit_takes_the_change_back_at_once_with_its_evidence(bench, traffic, name):
    async def story():
        await bench.opened()
        await bench.trial(10, **traffic)
        return await bench.guard(), await bench.control.current()

    guard, current = run(story())
    assert guard.state == "rolled_back"
    (broken,) = [check for check in guard.evidence.checks if check.verdict == "broken"]
    assert broken.name == name
    assert broken.sentence() in guard.reason
    assert guard.decided_at < guard.until
    assert (current.version, current.actor, current.parent_version) == (3, "guard", 2)
    assert current.note.startswith("rollback to 1: guard of version 2: ")
    assert bench.engine.in_force == (3, current.config.as_dict())
    assert current.config.token_fairness == 16
    assert bench.decided == ["rolled_back"]
    assert bench.attempts() == [("applied", "kim"), ("applied", "guard")]


def test_a_limit_with_too_few_samples_does_not_break_and_cannot_be_decided(bench):
    async def story():
        await bench.opened()
        await bench.trial(30, requests=1, first_ms=9_000.0)
        await bench.trial(100, requests=0)
        bench.traffic(0)
        await bench.watch.step()
        return await bench.guard()

    guard = run(story())
    assert guard.state == "rolled_back"
    assert guard.reason == (
        "it could not be decided: the p99 of first-token times rests on 3 samples, and 8 are needed"
    )
    assert bench.engine.in_force[0] == 3


def test_requests_that_wait_for_their_first_token_break_the_limit_too(bench):
    async def story():
        await bench.opened()
        for number in range(25):
            bench.trace.request("here", f"w{number}", bench.ms + 1)
        await bench.trial(10)
        return await bench.guard()

    assert run(story()).state == "rolled_back"


def test_absolute_limits_need_no_hour_before_and_left_out_ones_are_not_judged(bench):
    async def story():
        guard = await bench.guards.open(
            expected_version=1, coefficients={"token_fairness": 20}, actor="kim", minutes=MINUTES,
            limits=GuardLimits(Limit(absolute=120.0, samples=5), None, None),
        )  # fmt: skip
        await bench.watch.step()
        await bench.trial(10, gap_ms=500.0)
        assert (await bench.guard()).state == "watching"
        await bench.trial(10, first_ms=121.0)
        return guard, await bench.guard()

    opened, guard = run(story())
    assert [check.name for check in opened.evidence.checks] == ["first_token_p99"]
    assert guard.state == "rolled_back"


def test_a_ratio_to_an_hour_without_traffic_is_refused_before_anything_changes(bench):
    async def story():
        with pytest.raises(InvalidGuard, match="which has 0 samples, and 100 are needed"):
            await bench.guards.open(expected_version=1, coefficients={"token_fairness": 20}, actor="kim")
        return await bench.guards.history()

    assert run(story()) == []
    assert bench.attempts() == [("invalid", "kim")]
    assert bench.engine.taken == []


def test_a_change_that_changes_nothing_has_nothing_to_guard(bench):
    bench.traffic()
    with pytest.raises(InvalidGuard, match="nothing to guard"):
        run(bench.guards.open(expected_version=1, preset="balanced", actor="kim", limits=LIMITS))


@pytest.mark.parametrize(
    ("minutes", "limits", "name"),
    [(0, LIMITS, "minutes"), (float("nan"), LIMITS, "minutes"), (True, LIMITS, "minutes"), (1e9, LIMITS, "minutes"),
     (1, GuardLimits(None, None, None), "limits"), (1, GuardLimits(Limit(1.0, 2.0)), "limits.first_token_p99"),
     (1, GuardLimits(throughput=Limit(ratio=-1.0)), "limits.throughput"),
     (1, GuardLimits(throughput=Limit(ratio=1.0, samples=0)), "limits.throughput"),
     (1, GuardLimits(inter_token_p99=Limit(absolute=float("inf"))), "limits.inter_token_p99")],
)  # fmt: skip
def test_terms_that_cannot_be_used_are_refused_by_name_and_in_the_audit(bench, minutes, limits, name):
    with pytest.raises(InvalidGuard) as refused:
        run(
            bench.guards.open(
                expected_version=1, coefficients={"token_fairness": 2}, actor="k", minutes=minutes, limits=limits
            )
        )
    assert refused.value.name == name
    assert bench.attempts() == [("invalid", "k")]
    assert bench.engine.taken == []


def test_a_gap_in_the_trace_cannot_be_decided(bench):
    async def story():
        await bench.opened()
        with write_transaction(bench.store) as connection:
            connection.execute(trace_gaps.insert().values(noticed_at=at(bench.ms + 5), reason="disk full"))
        await bench.trial(130)
        return await bench.guard()

    guard = run(story())
    assert (guard.state, guard.reason) == (
        "rolled_back",
        "it could not be decided: the trace has 1 gap (see trace_gaps)",
    )
    assert guard.evidence.problems == ("the trace has 1 gap (see trace_gaps)",)


def test_a_trial_that_nobody_watched_for_most_of_it_cannot_be_decided(bench):
    """The service was dead, or the store away; another process goes on with what is stored."""

    async def story():
        await bench.opened()
        await bench.trial(30)
        for _ in range(8):
            bench.ms += 10_000
            bench.traffic()
        await bench.trial(20, [bench.new_watch("another")])
        return await bench.guard()

    guard = run(story())
    assert guard.state == "rolled_back"
    assert "only 40 of 120 s were watched" in guard.reason


def test_nobody_else_looks_while_one_has_the_lease_and_another_does_when_it_has_ended(any_bench):
    async def looked_at(watch):
        before = (await any_bench.guard()).evidence.checked_at
        await watch.step()
        return (await any_bench.guard()).evidence.checked_at != before

    async def story():
        await any_bench.opened(limits=GuardLimits(Limit(absolute=1e6), None, None))
        other = any_bench.new_watch("two")
        any_bench.ms += 59_000
        assert not await looked_at(other)
        assert await looked_at(any_bench.watch)
        any_bench.ms += 59_000
        assert not await looked_at(other)
        any_bench.ms += 1_001
        assert await looked_at(other)
        assert not await looked_at(any_bench.watch)
        any_bench.ms -= 3_000_000  # a lease beyond the longest is of a clock that was ahead
        assert await looked_at(any_bench.watch)

    run(story())


def test_a_service_that_is_started_again_goes_on_where_the_one_before_it_was_killed(bench):
    async def story():
        await bench.opened()
        await bench.trial(60)
        again = bench.new_watch("one", bench.new_control())
        await bench.trial(70, [again])
        return await bench.guard()

    guard = run(story())
    assert guard.state == "held"
    assert guard.evidence.watched_s == pytest.approx(120), "the step to the first look of the new one is not watched"


def test_a_decision_that_a_process_did_not_live_to_carry_out_is_carried_out_by_the_next(any_bench):
    async def story():
        await any_bench.opened()

        async def killed(_proposal):
            raise asyncio.CancelledError

        carry_out, any_bench.control.carry_out = any_bench.control.carry_out, killed
        with pytest.raises(asyncio.CancelledError):
            await any_bench.trial(10, first_ms=200.0)
        any_bench.control.carry_out = carry_out
        left = await any_bench.guards.current()
        assert (left.state, any_bench.engine.in_force[0]) == ("watching", 2)
        assert left.reason.startswith("the p99 of first-token times is ")
        any_bench.ms += 61_000
        any_bench.traffic()  # as fast as before: the decision stands
        await any_bench.new_watch("another").step()
        return await any_bench.guard(), left

    guard, left = run(story())
    assert (guard.state, guard.reason, guard.evidence) == ("rolled_back", left.reason, left.evidence)
    assert any_bench.decided == ["rolled_back"]


def test_an_engine_that_is_down_at_the_end_is_waited_for_and_then_the_values_come_back_without_it(bench):
    async def story():
        await bench.opened()
        await bench.trial(110)
        bench.run_id = None
        await bench.trial(30, requests=0)
        assert (await bench.guard()).state == "watching"
        await bench.trial(40, requests=0)
        assert bench.control.owes_engine
        assert bench.engine.in_force[0] == 2
        await bench.control.reconcile(2)
        return await bench.guard()

    guard = run(story())
    assert (guard.state, guard.reason) == (
        "rolled_back", "it could not be decided: the engine was down at the end of the trial"
    )  # fmt: skip
    assert bench.engine.in_force[0] == 3
    assert bench.engine.core.policy.token_fairness == 16
    assert bench.attempts()[-1] == ("applied", "guard")


def test_an_engine_that_does_not_take_the_old_values_gets_them_when_it_answers(bench):
    async def story():
        await bench.opened()
        bench.engine.failures = [EngineUnavailable("gone"), EngineUnavailable("gone")]
        await bench.trial(10, first_ms=300.0)
        current = await bench.control.current()
        assert bench.control.owes_engine
        await bench.control.reconcile(2)
        return current, await bench.guard()

    current, guard = run(story())
    assert guard.state == "rolled_back"
    assert bench.engine.in_force == (current.version, current.config.as_dict())
    assert current.config.token_fairness == 16


def test_a_recorder_that_is_late_is_waited_for_and_then_nothing_can_be_decided(bench):
    async def story():
        await bench.opened()
        await bench.trial(60)
        bench.lag_s = 90.0
        await bench.trial(80, requests=0)
        assert (await bench.guard()).state == "watching"
        await bench.trial(20, requests=0)
        return await bench.guard()

    guard = run(story())
    assert guard.state == "rolled_back"
    assert guard.reason == "it could not be decided: the recorder had not stored the whole trial"


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_a_wall_clock_that_is_set_anew_ends_the_trial_undecided(bench, step_ms):
    async def story():
        await bench.opened()
        await bench.trial(50)
        bench.step_ms = step_ms
        await bench.trial(120)
        return await bench.guard()

    guard = run(story())
    assert guard.state == "rolled_back"
    assert guard.reason.endswith(guard_watch.CLOCK_STEPPED)


def test_a_change_while_a_guard_watches_is_refused_unless_it_says_that_it_ends_it(bench):
    async def story():
        await bench.opened()
        with pytest.raises(GuardWatches, match="a guard watches version 2 by kim until"):
            await bench.control.change(expected_version=2, coefficients={"terminal_value": 1}, actor="lee")
        same = await bench.control.change(expected_version=2, coefficients={"token_fairness": 20}, actor="lee")
        assert same.version == 2
        made = await bench.control.change(
            expected_version=2, coefficients={"terminal_value": 1}, actor="lee", end_guard=True
        )
        await bench.trial(20, first_ms=500.0)
        return made, await bench.guard()

    made, guard = run(story())
    assert made.version == 3
    assert (guard.state, guard.reason) == ("ended", "version 3 by lee replaced it")
    assert bench.engine.in_force[0] == 3
    assert bench.decided == []
    assert [outcome for outcome, _ in bench.attempts()] == ["applied", "guarded", "unchanged", "applied"]


def test_a_rollback_by_hand_ends_the_guard(bench):
    async def story():
        await bench.opened()
        await bench.control.rollback(expected_version=2, actor="lee")
        await bench.trial(20, first_ms=500.0)
        return await bench.guard()

    assert run(story()).reason == "version 3 by lee replaced it"
    assert bench.decided == []


def test_ending_by_hand_keeps_the_version_or_takes_it_back(bench):
    async def story():
        await bench.opened()
        with pytest.raises(NoGuard):
            await bench.guards.end(expected_version=1, actor="lee")
        kept = await bench.guards.end(expected_version=2, actor="lee", note="good enough")
        assert (kept.state, kept.reason) == ("ended", "ended by lee, who kept the version: good enough")
        assert await bench.guards.current() is None
        bench.ms += 61_000
        await bench.guards.open(
            expected_version=2, coefficients={"token_fairness": 30}, actor="kim", limits=LIMITS, minutes=1
        )
        back = await bench.guards.end(expected_version=3, rollback=True, actor="lee")
        with pytest.raises(NoGuard):
            await bench.guards.end(expected_version=3, rollback=True, actor="lee")
        return back

    back = run(story())
    assert (back.version, back.state, back.reason) == (3, "ended", "version 4 by lee replaced it")
    assert bench.engine.core.policy.token_fairness == 20
    assert [outcome for outcome, _ in bench.attempts()] == [
        "applied",
        "invalid",
        "ended",
        "applied",
        "applied",
        "invalid",
    ]


def test_a_change_that_races_the_guards_decision_wins_or_loses_whole(any_bench):
    async def story():
        await any_bench.opened()
        any_bench.ms += 10_000
        any_bench.traffic(first_ms=400.0)
        change = any_bench.control.change(
            expected_version=2, coefficients={"terminal_value": 1}, actor="lee", end_guard=True
        )
        results = await asyncio.gather(any_bench.watch.step(), change, return_exceptions=True)
        return results[1], await any_bench.guard(), await any_bench.control.current()

    change, guard, current = run(story())
    if isinstance(change, Exception):
        assert isinstance(change, StalePolicy)
        assert (guard.state, current.actor, any_bench.decided) == ("rolled_back", "guard", ["rolled_back"])
    else:
        assert (guard.state, current.version, any_bench.decided) == ("ended", change.version, [])
    assert any_bench.engine.in_force[0] == current.version == 3


def test_of_two_watchers_one_looks_and_one_decides(any_bench):
    async def story():
        await any_bench.opened()
        other = any_bench.new_watch("two", any_bench.new_control())
        any_bench.ms += 10_000
        any_bench.traffic(first_ms=400.0)
        await asyncio.gather(any_bench.watch.step(), other.step())
        await asyncio.gather(any_bench.watch.step(), other.step())
        return await any_bench.guard()

    assert run(story()).state == "rolled_back"
    assert any_bench.decided == ["rolled_back"]
    assert any_bench.engine.taken == [2, 3]


def test_a_flag_of_the_command_line_that_makes_a_version_ends_the_guard(bench):
    async def story():
        await bench.opened()
        flags = Settings(data_dir="/nowhere", database="", threads=1, scheduler_policy="throughput")
        resolve_initial_policy(bench.store, flags)
        await bench.trial(10, first_ms=500.0)
        return await bench.guard()

    assert run(story()).reason == "version 3 by command line replaced it"
    assert bench.decided == []
