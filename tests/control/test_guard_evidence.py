"""The measures of a span of the trace equal those of a slow twin, on both databases."""

from __future__ import annotations

import datetime as dt
import itertools

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trace_rows import Trace, at

from service.control import evidence
from service.control.evidence import measure, missing_trace, stored_until
from service.store.engines import read_transaction, write_transaction
from service.store.tables import engine_runs, plan_lanes, plan_minutes, plans, requests, trace_gaps

SINCE, UNTIL = 30_000, 210_000  # ms: half a minute, two whole ones, half a minute


def empty(store):
    with write_transaction(store) as connection:
        for table in (engine_runs, plan_lanes, plan_minutes, plans, requests, trace_gaps):
            connection.execute(table.delete())


def nearest_rank(samples):
    """(value, count): the smallest sample that at least 99 % of them do not exceed."""
    found = next((x for x in sorted(samples) if 100 * sum(y <= x for y in samples) >= 99 * len(samples)), None)
    return found, len(samples)


def twin(story):
    """The three measures from the story itself. A story: (run, arrived, publications, finished, reason) each."""
    waits, gaps = [], []
    for _, arrived, published, finished, reason in story:
        first = published[0] if published else None
        if SINCE <= arrived < UNTIL and (first is not None or reason in (None, "abort")):
            ended = first if first is not None else finished
            waits.append((UNTIL if ended is None else min(ended, UNTIL)) - arrived)
        if arrived < UNTIL and first is not None and first < UNTIL and (finished is None or finished >= SINCE):
            inside = [ms for ms in published if SINCE <= ms < UNTIL]
            gaps += [b - a for a, b in itertools.pairwise(inside)]
            if finished is None or finished >= UNTIL:
                gaps.append(UNTIL - (inside[-1] if inside else SINCE))
    return nearest_rank(waits), nearest_rank(gaps)


@st.composite
def stories(draw):
    requests_told = []
    for _ in range(draw(st.integers(0, 12))):
        arrived = draw(st.integers(-60_000, 240_000))
        steps = draw(st.lists(st.integers(1, 50_000), max_size=6))
        published = list(itertools.accumulate(steps, initial=arrived))[1:]
        over = draw(st.booleans())
        finished = None if not over else (published[-1] if published else arrived) + draw(st.integers(0, 5_000))
        reason = draw(st.sampled_from(["stop", "abort", "error", "length"])) if over else None
        requests_told.append((draw(st.sampled_from(["a", "b"])), arrived, published, finished, reason))
    return requests_told


def write(store, story, skews=(1_000_000, 77.5)):
    trace = Trace()
    for run_id, skew in zip(("a", "b"), skews, strict=True):
        trace.run(run_id, skew_ms=skew)
        trace.plan(run_id, SINCE + 1, SINCE + 2, tokens=0, device_ms=0.0)
    for number, (run_id, arrived, published, finished, reason) in enumerate(story):
        trace.request(run_id, f"r{number}", arrived, published[0] if published else None, finished, reason)
        for ms in published:
            trace.plan(run_id, ms - 0.5, ms, tokens=1, device_ms=2.0, lanes=[(f"r{number}", ms), ("other", None)])
    trace.write(store)


def approximately(found):
    return None if found[0] is None else pytest.approx(found[0], abs=1e-6), found[1]


LEFT = [("a", SINCE + 1, [], SINCE + 70_000, "abort"), ("b", SINCE + 2, [], None, None)]
"""Requests that saw nothing: one that its caller gave up, one that still waits."""


@example(story=LEFT[:1])
@example(story=[*LEFT, ("a", SINCE + 3, [], SINCE + 99_000, "error")])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=stories())
def test_the_measures_are_those_of_the_slow_twin(any_store, story):
    empty(any_store)
    write(any_store, story)
    with read_transaction(any_store) as connection:
        found = measure(connection, at(SINCE), at(UNTIL))
    waits, gaps = twin(story)
    assert (found.first_token_p99.value, found.first_token_p99.samples) == approximately(waits)
    assert (found.inter_token_p99.value, found.inter_token_p99.samples) == approximately(gaps)
    inside = sum(SINCE <= ms < UNTIL for _, _, published, _, _ in story for ms in published)
    assert found.throughput.samples == inside + 2
    assert found.throughput.value == (pytest.approx(500.0) if inside else None)


def test_a_p99_of_two_hundred_samples_is_the_third_from_the_top(any_store):
    story = [("a", SINCE + n, [SINCE + n + 100 + n], SINCE + n + 100 + n, "stop") for n in range(200)]
    write(any_store, story)
    with read_transaction(any_store) as connection:
        found = measure(connection, at(SINCE), at(UNTIL)).first_token_p99
    assert (found.value, found.samples) == (100 + 197, 200)


def test_of_very_many_gaps_some_requests_stand_for_the_others_whichever_take_turns(any_store):
    story = [
        ("a", SINCE + n, [SINCE + n + (1 + n % 2) * 10 * k for k in range(1, 6)], SINCE + n + 101, "stop")
        for n in range(200)
    ]
    write(any_store, story)
    with read_transaction(any_store) as connection:
        found = measure(connection, at(SINCE), at(UNTIL), most_gaps=600).inter_token_p99
    chosen = [place for place in range(1, 201) if place * 40503 % 65521 % 2 == 0]  # 1,000 tokens: about each second
    assert found.samples == 4 * len(chosen)
    assert 80 < len(chosen) < 120
    assert found.value == pytest.approx(20), "of the slow half too"


def test_what_a_run_left_behind_that_died_before_the_span_is_no_evidence(any_store):
    trace = Trace()
    trace.run("dead")
    trace.plan("dead", SINCE - 1_000, SINCE - 999)
    trace.request("dead", "stalled", SINCE - 5_000, first=SINCE - 4_000)
    trace.request("dead", "waits", SINCE + 1)
    trace.write(any_store)
    with read_transaction(any_store) as connection:
        found = measure(connection, at(SINCE), at(UNTIL))
    assert (found.first_token_p99.samples, found.inter_token_p99.samples) == (0, 0)


def test_gaps_of_the_trace_and_plans_without_an_end_are_named(any_store):
    trace = Trace()
    trace.run("a")
    trace.plan("a", SINCE - 1, None)  # of before
    trace.plan("a", UNTIL - 1_000, None)  # may still end
    trace.write(any_store)
    with write_transaction(any_store) as connection:
        for reason, when in (("7 spans were not sent: full", 1), ("disk full", -1)):
            connection.execute(trace_gaps.insert().values(noticed_at=at(SINCE + when), reason=reason))
    with read_transaction(any_store) as connection:
        assert missing_trace(connection, at(SINCE), at(UNTIL)) == ()
    with write_transaction(any_store) as connection:
        connection.execute(trace_gaps.insert().values(noticed_at=at(SINCE + 1), reason="disk full (9 records)"))
    trace.plan("a", SINCE + 1, None)
    trace.write(any_store)
    with read_transaction(any_store) as connection:
        gap, plan = missing_trace(connection, at(SINCE), at(UNTIL))
    assert gap.startswith("the trace has 1 gap ")
    assert plan.startswith("the end of 1 plan is missing")


def of_two_runs(store, newest, *, elsewhere_waits=True):
    """Two runs on the database, `here` and `elsewhere`, with their newest plans."""
    trace = Trace()
    for run_id, ms in newest.items():
        trace.run(run_id)
        trace.plan(run_id, ms)
    trace.request("here", "r", SINCE)
    if elsewhere_waits:
        trace.request("elsewhere", "r", SINCE)
    trace.write(store)


def stored(store, lag_s, now=UNTIL):
    with read_transaction(store) as connection:
        return (stored_until(connection, at(SINCE), at(now), "here", lag_s) - at(0)) / dt.timedelta(milliseconds=1)


def test_what_is_stored_ends_with_the_slowest_runs_newest_plan(any_store):
    of_two_runs(any_store, {"here": UNTIL - 100, "elsewhere": UNTIL - 300})
    later = evidence.PUBLISHED_LATER / dt.timedelta(milliseconds=1)
    assert stored(any_store, 0.0) == UNTIL - 300 - later
    assert stored(any_store, None) == UNTIL - 300 - later


def test_an_engine_here_without_plans_is_idle_and_one_elsewhere_with_requests_is_not(any_store):
    of_two_runs(any_store, {"here": SINCE + 1_000, "elsewhere": UNTIL})
    assert stored(any_store, 2.0) == UNTIL - 7_000
    of_two_runs_later = UNTIL + 60_000
    assert stored(any_store, 0.0, now=of_two_runs_later) == UNTIL - 20  # it waits there, and nobody knows why


def test_an_engine_elsewhere_without_plans_and_requests_holds_nothing_up(any_store):
    of_two_runs(any_store, {"here": UNTIL, "elsewhere": SINCE + 1_000}, elsewhere_waits=False)
    assert stored(any_store, 0.0) == UNTIL - 5_000


def test_without_a_word_from_the_recorder_an_idle_engine_proves_nothing(any_store):
    of_two_runs(any_store, {"here": SINCE + 1_000})
    assert stored(any_store, None) == SINCE + 980
