"""What the timeline reads, on both databases: single plans, bins that hide no outlier, and the roll-up's minutes."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from factories import FilledStore, fill_store
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_minutes import KEY, plain_minutes

from dashboard.bins import Bin, Binned, Extreme, at_most, width_for
from dashboard.figures.timeline import timeline_figure
from dashboard.queries import timeline, timeline_bins
from dashboard.queries.timeline import newest_mark, read_picture, run_ranges
from dashboard.timeline_records import Filters, to_us
from service.store.engines import write_transaction
from service.store.tables import plan_lanes, plan_minutes, plans, requests, trace_gaps

SECOND = dt.timedelta(seconds=1)


def whole(filled: FilledStore) -> tuple[dt.datetime, dt.datetime]:
    return filled.first_at, filled.last_at + SECOND


def rows_of(store: sa.Engine) -> list[dict[str, Any]]:
    with store.connect() as connection:
        return [dict(row) for row in connection.execute(sa.select(plans)).mappings()]


def length_ns(row: dict[str, Any]) -> int:
    begun = row["committed_ns"] if row["started_ns"] is None else row["started_ns"]
    return 0 if row["completed_ns"] is None else max(0, row["completed_ns"] - begun)


def twin(rows: Sequence[dict[str, Any]], width_us: int, by: str) -> tuple[list[Bin], list[Extreme], dict[int, int]]:
    """Bins, longest plans and the longest gap of each bin, in plain Python."""
    sums: dict[tuple[int, int, str], list[int]] = defaultdict(lambda: [0, 0])
    longest: dict[tuple[int, int], int] = defaultdict(int)
    gaps: dict[int, int] = {}
    before = {(row["run_id"], row["fence"]): row["completed_ns"] for row in rows}
    fences = sorted(before)
    ahead = dict(zip(fences[1:], fences[:-1], strict=True))
    for row in rows:
        number = to_us(row["committed_at"]) // width_us
        sums[number, row["frame_slot"], row[by]][0] += 1
        sums[number, row["frame_slot"], row[by]][1] += length_ns(row)
        longest[number, row["frame_slot"]] = max(longest[number, row["frame_slot"]], length_ns(row))
        last = ahead.get((row["run_id"], row["fence"]))
        if last is None or last[0] != row["run_id"] or before[last] is None or row["started_ns"] is None:
            continue
        if row["started_ns"] > before[last]:
            gaps[number] = max(gaps.get(number, 0), row["started_ns"] - before[last])
    bins = [Bin(*key, *values) for key, values in sorted(sums.items())]
    return bins, [Extreme(number, slot, "", length, 0) for (number, slot), length in longest.items()], gaps


def check_against_twin(store: sa.Engine, span: tuple[dt.datetime, dt.datetime], by: str) -> Binned:
    with store.connect() as connection:
        ranges = run_ranges(connection, span, None)
        found = timeline_bins.by_plans(connection, ranges, span, Filters(), by)
    rows = [row for row in rows_of(store) if span[0] <= row["committed_at"] < span[1]]
    bins, longest, gaps = twin(rows, found.width_us, by)
    assert sorted(found.bins, key=lambda one: (one.number, one.slot or 0, one.group)) == bins
    lengths = {(mark.number, mark.slot): mark.length_ns for mark in found.longest}
    assert lengths == {(mark.number, mark.slot): mark.length_ns for mark in longest}
    assert {mark.number: mark.length_ns for mark in found.gaps} == gaps
    by_key = {(row["run_id"], row["fence"]): row for row in rows}
    assert all(length_ns(by_key[mark.run_id, mark.fence]) == mark.length_ns for mark in found.longest)  # type: ignore[index]
    return found


@pytest.mark.parametrize("by", ["kind", "reason"])
def test_bins_are_those_of_plain_python_on_both_databases(any_store: sa.Engine, by: str) -> None:
    filled = fill_store(any_store, plans=300, requests=12)
    check_against_twin(any_store, whole(filled), by)


PLAN = st.fixed_dictionaries(
    {
        "wait_us": st.integers(0, 3_000_000),
        "length_ns": st.one_of(st.none(), st.integers(0, 40_000_000), st.integers(0, 9_000_000_000)),
        "slot": st.integers(0, 1),
        "kind": st.sampled_from(["decode", "prefill", "vision"]),
        "run": st.integers(0, 1),
    }
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=st.lists(PLAN, min_size=1, max_size=25))
def test_of_any_plans_the_longest_is_a_mark_and_nothing_is_lost(
    store: sa.Engine, template: dict[str, Any], made: list[dict[str, Any]]
) -> None:
    rows, at = [], dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.UTC)
    for fence, plan in enumerate(made, 1):
        at += dt.timedelta(microseconds=plan["wait_us"])
        committed_ns = to_us(at) * 1000
        completed = None if plan["length_ns"] is None else committed_ns + 5000 + plan["length_ns"]
        times = {"committed_at": at, "committed_ns": committed_ns, "completed_ns": completed}
        names = {"run_id": f"run-{plan['run']}", "fence": fence, "kind": plan["kind"], "frame_slot": plan["slot"]}
        rows.append({**template, **times, **names, "started_ns": committed_ns + 5000})
    with write_transaction(store) as connection:
        connection.execute(plans.delete())
        connection.execute(plans.insert(), rows)
    found = check_against_twin(store, (rows[0]["committed_at"], at + SECOND), "kind")
    assert found.plans == len(rows)
    coarse = at_most(found, 3)
    assert sum(one.plans for one in coarse.bins) == len(rows)
    assert sum(one.busy_ns for one in coarse.bins) == sum(map(length_ns, rows))
    longest = max(map(length_ns, rows))
    assert max(mark.length_ns for mark in coarse.longest) == longest
    if found.gaps:
        assert max(mark.length_ns for mark in coarse.gaps) == max(mark.length_ns for mark in found.gaps)


@pytest.fixture
def template(store: sa.Engine) -> dict[str, Any]:
    fill_store(store, plans=4, requests=2)
    return rows_of(store)[0]


def test_marks_are_never_more_than_asked_for_while_there_are_bins_to_put_together() -> None:
    bins = [Bin(number, slot, "decode", 1, 10) for number in range(1000) for slot in (0, 1)]
    longest = [
        Extreme(number, slot, "decode", number, number, "run", number) for number in range(1000) for slot in (0, 1)
    ]
    found = at_most(Binned(10, bins, longest, []), 600)
    assert found.marks <= 600
    assert found.plans == 2000
    assert max(mark.length_ns for mark in found.longest) == 999


@pytest.mark.parametrize(
    ("span_us", "least_us", "width_us"),
    [(3_600_000_000, 1, 10_000_000), (100, 1, 1), (86_400_000_000, 60_000_000, 300_000_000)],
)
def test_bins_have_round_widths(span_us: int, least_us: int, width_us: int) -> None:
    assert width_for(span_us, 400, least_us) == width_us


@given(st.integers(1, 10**18), st.integers(1, 10**12))
def test_a_span_of_any_length_has_no_more_bins_than_asked_for(span_us: int, least_us: int) -> None:
    width = width_for(span_us, 400, least_us)
    assert width >= least_us
    assert span_us <= 400 * width


def test_the_rolled_up_minutes_hold_every_completed_plan_and_name_the_longest(
    any_store: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = fill_store(any_store, plans=120, requests=8)
    key = filled.plan_keys[60]
    with write_transaction(any_store) as connection:
        connection.execute(
            plans.update().where(plans.c.run_id == key[0], plans.c.fence == key[1]).values(device_ms=5000.0)
        )
    with write_transaction(any_store) as connection:
        connection.execute(
            plan_minutes.insert(), [dict(zip(KEY, k, strict=True)) | s for k, s in plain_minutes(any_store).items()]
        )
    monkeypatch.setattr(timeline, "SCANNED", 100)
    span = (filled.first_at - dt.timedelta(minutes=10), filled.last_at + SECOND)
    picture = read_picture(any_store, span, Filters(), "kind", filled.last_at)
    completed = [row for row in rows_of(any_store) if row["outcome"] == "completed"]
    assert (picture.level, picture.total) == ("minutes", len(completed))
    assert picture.binned is not None
    (longest,) = (mark for mark in picture.binned.longest if mark.length_ns == 5_000_000_000)
    assert (longest.run_id, longest.fence) == key
    assert picture.rows[0]["fence"] == key[1]
    some = read_picture(any_store, span, Filters(policy_version=2), "reason", filled.last_at)
    assert 0 < some.total <= len(completed)
    assert read_picture(any_store, span, Filters(kind="vision"), "kind", filled.last_at).total == 0


def test_idle_minutes_are_gaps_of_the_roll_up(any_store: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = fill_store(any_store, plans=60, requests=6)
    sums = [dict(zip(KEY, k, strict=True)) | s for k, s in plain_minutes(any_store).items()]
    later = [{**row, "minute": row["minute"] + dt.timedelta(minutes=9)} for row in sums]
    with write_transaction(any_store) as connection:
        connection.execute(plan_minutes.insert(), [*sums, *later])
    monkeypatch.setattr(timeline, "SCANNED", 10)
    span = (filled.first_at - dt.timedelta(minutes=1), filled.first_at + dt.timedelta(minutes=20))
    picture = read_picture(any_store, span, Filters(), "kind", filled.last_at)
    assert picture.binned is not None
    assert [mark.length_ns for mark in picture.binned.gaps] == [8 * 60 * 10**9]


def test_the_newest_plans_are_the_newest_first_and_name_their_requests(any_store: sa.Engine) -> None:
    filled = fill_store(any_store, plans=260, requests=8)
    picture = read_picture(any_store, None, Filters(), "kind", filled.last_at)
    assert [(row["run_id"], row["fence"]) for row in picture.rows] == filled.plan_keys[:-201:-1]
    assert picture.level == "plans"
    assert picture.since < picture.rows[-1]["committed_at"]
    names = {name for _, name in filled.request_keys}
    assert all(row["request_ids"] and set(row["request_ids"]) <= names for row in picture.rows)


@pytest.mark.parametrize("rolled_up", [False, True])
@pytest.mark.parametrize(
    "chosen",
    [
        {"kind": "prefill"}, {"reason": "discovery"}, {"outcome": "lost"}, {"policy_version": 2}, {"kind": "vision"},
        {"kind": "decode", "policy_version": 1}, {"outcome": "in_flight"}, {"policy_version": 99},
    ],
)  # fmt: skip
def test_filters_choose_the_same_plans_in_every_way_of_reading(
    any_store: sa.Engine, chosen: dict[str, Any], rolled_up: bool
) -> None:
    filled = fill_store(any_store, plans=150, requests=8)
    if rolled_up:
        sums = [dict(zip(KEY, k, strict=True)) | s for k, s in plain_minutes(any_store).items()]
        with write_transaction(any_store) as connection:
            connection.execute(plan_minutes.insert(), sums)
    wanted = {
        (row["run_id"], row["fence"]) for row in rows_of(any_store) if all(row[n] == v for n, v in chosen.items())
    }
    filters = Filters(**chosen)
    for span in (None, whole(filled)):
        rows = read_picture(any_store, span, filters, "kind", filled.last_at).rows
        assert {(row["run_id"], row["fence"]) for row in rows} == wanted
    with any_store.connect() as connection:
        ranges = run_ranges(connection, whole(filled), None)
        assert timeline_bins.by_plans(connection, ranges, whole(filled), filters, "kind").plans == len(wanted)


def test_a_request_has_its_plans_and_its_life(any_store: sa.Engine) -> None:
    filled = fill_store(any_store, plans=100, requests=8)
    run, name = filled.request_keys[-2]
    with any_store.connect() as connection:
        lanes = connection.execute(sa.select(plan_lanes.c.fence).where(plan_lanes.c.request_id == name)).scalars().all()
    picture = read_picture(any_store, None, Filters(request=name), "kind", filled.last_at)
    assert sorted(row["fence"] for row in picture.rows) == sorted(lanes)
    (life,) = picture.lives.lives
    assert (life.row["run_id"], life.row["request_id"]) == (run, name)
    assert sum(one.plans for one in life.served) == len(lanes)
    assert read_picture(any_store, None, Filters(request="gone"), "kind", filled.last_at).total == 0


def test_of_more_plans_than_are_shown_the_newest_are_and_all_are_counted(
    any_store: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = fill_store(any_store, plans=100, requests=8)
    monkeypatch.setattr(timeline, "SINGLE_PLANS", 2)
    with any_store.connect() as connection:
        names = connection.execute(sa.select(plan_lanes.c.request_id)).scalars().all()
        name = max(set(names), key=names.count)
        served = sa.select(plans.c.fence, plans.c.committed_at).where(plan_lanes.c.request_id == name)
        served = served.where(plans.c.run_id == plan_lanes.c.run_id, plans.c.fence == plan_lanes.c.fence)
        by_time = connection.execute(served.order_by(plans.c.committed_at.desc())).all()
    assert len(by_time) > 6
    before = (filled.first_at, by_time[3].committed_at)
    for span, wanted in ((None, by_time), (before, by_time[4:])):
        picture = read_picture(any_store, span, Filters(request=name), "kind", filled.last_at)
        assert [row["fence"] for row in picture.rows] == [row.fence for row in wanted[:2]]
        assert picture.total == len(wanted)
    with write_transaction(any_store) as connection:
        given_up = plans.update().where(plans.c.fence.between(20, 22)).values(outcome="abandoned")
        number = connection.execute(given_up).rowcount
    picture = read_picture(any_store, whole(filled), Filters(outcome="abandoned"), "kind", filled.last_at)
    assert (len(picture.rows), picture.total) == (2, number)
    assert number > 2


def test_requests_that_waited_longest_are_shown_and_the_rest_counted(any_store: sa.Engine) -> None:
    filled = fill_store(any_store, plans=80, requests=6)
    with write_transaction(any_store) as connection:
        row = dict(connection.execute(sa.select(requests).limit(1)).mappings().one())
        ended = {
            "first_output_at": None,
            "finished_at": None,
            "finish_reason": None,
            "queue_ms": None,
            "prefill_ms": None,
        }
        for number in range(40):
            arrived = filled.last_at - dt.timedelta(milliseconds=number)
            connection.execute(requests.insert(), {**row, **ended, "request_id": f"w-{number}", "arrived_at": arrived})
        old = {"request_id": "of-yesterday", "arrived_at": filled.last_at - dt.timedelta(days=1)}
        connection.execute(requests.insert(), {**row, **ended, **old})
    lives = read_picture(any_store, whole(filled), Filters(), "kind", filled.last_at).lives
    assert lives.found == 47
    assert len(lives.lives) == 30
    assert lives.lives[0].row["request_id"] == "of-yesterday"
    shown = {life.row["request_id"] for life in lives.lives}
    assert "w-39" in shown
    assert "w-0" not in shown


def test_changes_of_policy_starts_and_holes_are_told(any_store: sa.Engine) -> None:
    filled = fill_store(any_store, plans=60, requests=6)
    events = read_picture(any_store, whole(filled), Filters(), "kind", filled.last_at).events
    assert [(change.version, change.at_start) for change in events.changes] == [(1, True), (2, False)]
    with write_transaction(any_store) as connection:
        later = {"run_id": None, "from_fence": None, "to_fence": None, "reason": "of another day"}
        for number in range(200):
            at = filled.last_at + dt.timedelta(days=1, seconds=number)
            connection.execute(trace_gaps.insert(), {**later, "noticed_at": at})
    events = read_picture(any_store, whole(filled), Filters(), "kind", filled.last_at).events
    (hole,) = events.holes
    assert (hole.plans, hole.reason) == (1, "missing tail")
    assert filled.first_at < hole.since <= hole.until


def test_the_newest_mark_changes_with_what_is_new(store: sa.Engine) -> None:
    assert newest_mark(store) == ""
    filled = fill_store(store, plans=20, requests=4)
    before = newest_mark(store)
    assert before == newest_mark(store)
    run, fence = filled.in_flight[0]
    with write_transaction(store) as connection:
        of_plan = (plans.c.run_id == run, plans.c.fence == fence)
        connection.execute(plans.update().where(*of_plan).values(outcome="completed"))
    assert newest_mark(store) != before


def test_a_full_picture_needs_at_most_five_thousand_marks(store: sa.Engine) -> None:
    filled = fill_store(store, plans=1500, requests=40)
    for span in (None, whole(filled)):
        picture = read_picture(store, span, Filters(), "kind", filled.last_at)
        figure = timeline_figure(picture, "kind", filled.last_at.timestamp() * 1e3)
        assert sum(len(trace["ids"]) for trace in figure["data"]) <= 5000
        for trace in figure["data"]:
            assert len(set(trace["ids"])) == len(trace["ids"]), "of marks with equal ids Plotly draws one"
    assert dataclasses.asdict(picture.events)["change_count"] == len(picture.events.changes)
