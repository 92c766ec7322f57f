"""Who watches, who decides, and what people do meanwhile: a guard is decided once, and a change wins or loses whole."""

from __future__ import annotations

import asyncio

import pytest
from guard_bench import LIMITS, run

from service.control import guard_watch
from service.control.errors import ChangeInProgress, GuardWatches, NoGuard, StalePolicy
from service.control.guard_rows import close_guard, keep_evidence
from service.control.guards import GuardLimits, Limit
from service.control.policy import resolve_initial_policy
from service.ipc.errors import EngineUnavailable
from service.settings import Settings
from service.store.engines import write_transaction
from service.store.tables import policy_versions


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


def test_ending_by_hand_while_the_guards_rollback_waits_for_the_engine_is_refused(any_bench):
    async def end(_version):
        with pytest.raises(ChangeInProgress, match="version 3 by guard waits for the engine"):
            await any_bench.guards.end(expected_version=2, actor="lee")

    async def story():
        await any_bench.opened()
        any_bench.engine.before = end
        await any_bench.trial(10, first_ms=400.0)
        return await any_bench.guard()

    assert run(story()).state == "rolled_back"
    assert any_bench.attempts()[-2:] == [("pending", "lee"), ("applied", "guard")]


def test_a_guard_that_was_ended_by_hand_carries_nothing_out(any_bench):
    async def story():
        await any_bench.opened()
        carry_out = any_bench.control.carry_out

        async def late(proposal):
            await any_bench.guards.end(expected_version=2, actor="lee")
            return await carry_out(proposal)

        any_bench.control.carry_out = late
        await any_bench.trial(10, first_ms=400.0)
        return await any_bench.guard(), await any_bench.control.current()

    guard, current = run(story())
    assert (guard.state, guard.reason) == ("ended", "ended by lee, who kept the version")
    assert (current.version, any_bench.engine.taken, any_bench.decided) == (2, [2], [])


def test_a_guard_that_is_decided_against_cannot_hold(any_bench):
    async def story():
        await any_bench.opened()
        guard = await any_bench.guard()
        with write_transaction(any_bench.store) as connection:
            assert keep_evidence(connection, 2, "one", guard.evidence, "too slow")
            assert not close_guard(connection, 2, "held", "every limit held", any_bench.control.now(), guard.evidence)
        return await any_bench.guard()

    assert run(story()).reason == "too slow"


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


def test_a_look_that_takes_long_is_no_clock_that_was_set_anew(bench):
    async def story():
        await bench.opened()
        for look_ms in (0.0, 5_000.0, 0.0, 8_000.0) * 3:
            bench.look_ms = look_ms
            await bench.trial(10)
        return await bench.guard()

    guard = run(story())
    assert (guard.state, guard.reason) == ("held", "every limit held to the end")


def test_a_guard_whose_version_before_cannot_be_used_ends_once_and_says_so(bench, caplog):
    async def story():
        await bench.opened()
        with write_transaction(bench.store) as connection:
            damaged = policy_versions.update().where(policy_versions.c.version == 1)
            connection.execute(damaged.values(newcomer_memory="elephant"))
        await bench.trial(20, first_ms=150.0)
        return await bench.guard(), bench.attempts()

    guard, attempts = run(story())
    assert guard.state == "ended"
    assert "it could not be taken back" in guard.reason
    assert "newcomer_memory" in guard.reason
    assert bench.decided == []
    assert len(attempts) == 2  # the change, and one try to take it back
    assert "the version stays" in caplog.text
