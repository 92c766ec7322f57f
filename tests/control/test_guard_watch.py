"""A guarded change is kept, or taken back by itself, when a limit breaks or cannot be decided; time is passed in."""

from __future__ import annotations

import datetime as dt

import pytest
from guard_bench import LIMITS, MINUTES, run
from trace_rows import at

from service.control.errors import InvalidGuard
from service.control.guards import GuardLimits, Limit
from service.store.engines import write_transaction
from service.store.tables import trace_gaps


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
