"""One request's life: where it waited, who was served instead, and the sentence that says why."""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa
from dash import Dash
from factories import fill_store
from hypothesis import given
from hypothesis import strategies as st
from life_cases import RUN, START_NS, Case, at, ns

from dashboard.figures.requests import gaps_figure, life_figure
from dashboard.pages.requests.life import life_page, plan_rows
from dashboard.queries.life import Life, read_life
from dashboard.stalls import output_gaps, stall_sentence
from dashboard.waits import FIRST, MOST_WAITS, OPEN, RESUMED, ROUND, Clock, all_waits, find_waits

LATER = at(60_000)


def life(store: sa.Engine, case: Case, name: str = "slow") -> Life:
    case.write(store)
    found = read_life(store, RUN, name, LATER)
    assert found is not None
    return found


def stalled() -> Case:
    """`slow` waits 1.1 s while another prompt is read, whose decision names it among the runner-ups."""
    case = Case()
    case.request("req-7", 0, admitted_at=at(0))
    case.request("slow", 5, first_output_at=at(1240), finished_at=at(1250), finish_reason="stop", output_tokens=2)
    case.plan(0, 4, {"other": {}})
    fence = case.plan(10, 1110, {"req-7": {"prompt_tokens": 640}}, "prefill", prompt_tokens=640)
    case.rival(fence, ["slow", "x"], value_rate=1.5)
    case.rival(fence, ["x"], value_rate=2.5)
    case.plan(1120, 1230, {"slow": {"committed_tokens": 1}}, "prefill")
    case.plan(1231, 1240, {"slow": {}, "other": {}})
    return case


def test_a_stall_is_told_in_one_sentence(any_store: sa.Engine) -> None:
    found = life(any_store, stalled())
    assert stall_sentence(found) == (
        "Waited 1,115 ms of the 1,235 ms to its first token: 1,100 ms of prefill for req-7 (640 tokens) was worth more "
        "per ms (3.00 against 1.50); policy version 1."
    )


def test_what_ran_meanwhile_is_counted_by_kind_and_by_request(any_store: sa.Engine) -> None:
    (meanwhile,) = life(any_store, stalled()).waits
    assert (meanwhile.wait.kind, meanwhile.wait.after, meanwhile.wait.before) == (FIRST, None, 3)
    (group,) = meanwhile.groups
    assert (group["kind"], group["plans"], group["prompt_tokens"], group["requests"]) == ("prefill", 1, 640, 1)
    assert group["ms"] == 1100
    assert [(row["request_id"], row["plans"], row["ms"]) for row in meanwhile.served] == [("req-7", 1, 1100)]
    assert meanwhile.others == 0


def test_time_in_which_no_plan_ran_is_counted_and_named(any_store: sa.Engine) -> None:
    found = life(any_store, stalled())
    (meanwhile,) = found.waits
    assert meanwhile.idle_ms == 15
    rows = [row for row in life_page(found)._traverse() if getattr(row, "className", None) == "wait-idle"]
    assert ["no plan" in str(row) and "15.0 ms" in str(row) for row in rows] == [True]


def test_only_the_part_of_a_plan_inside_the_wait_counts(any_store: sa.Engine) -> None:
    case = Case()
    case.request("slow", 100, first_output_at=at(500), finished_at=at(510), finish_reason="stop")
    case.plan(0, 400, {"a": {}}, "prefill")
    case.plan(450, 500, {"slow": {"committed_tokens": 1}}, "prefill")
    (meanwhile,) = life(any_store, case).waits
    assert meanwhile.groups[0]["ms"] == 300
    assert meanwhile.wait.ms == 350


def test_the_longest_gap_is_told_where_it_was_longer_than_the_start(any_store: sa.Engine) -> None:
    case = Case()
    case.request("slow", 0, first_output_at=at(20), finished_at=at(900), finish_reason="stop")
    case.plan(1, 20, {"slow": {"committed_tokens": 1}}, "prefill")
    fences = [case.plan(30 + 100 * i, 125 + 100 * i, {"a": {}, "b": {}}, "decode") for i in range(7)]
    case.rival(fences[0], ["slow"], barred_by="pages")
    case.plan(740, 760, {"slow": {}})
    assert stall_sentence(life(any_store, case)) == (
        "Waited 720 ms between two rounds of its answer, its longest gap: 665 ms of decode in 7 plans, for 2 other "
        "requests, ran, since serving this request was barred: not enough free pages; policy version 1."
    )


def test_a_request_that_was_not_let_in_says_so(any_store: sa.Engine) -> None:
    case = Case()
    case.request("slow", 0, admitted_at=at(900), first_output_at=at(990), finished_at=at(1000), finish_reason="stop")
    case.plan(0, 890, {"a": {}}, "prefill")
    case.plan(905, 990, {"slow": {"committed_tokens": 1}}, "prefill")
    assert "this request had not been let in: no slot or not enough memory was free" in stall_sentence(
        life(any_store, case)
    )


def test_a_request_that_was_set_aside_says_so(any_store: sa.Engine) -> None:
    case = Case()
    case.request("slow", 0, first_output_at=at(20), preemptions=1, finished_at=at(600), finish_reason="stop")
    case.plan(1, 20, {"slow": {"committed_tokens": 1}}, "prefill")
    case.plan(21, 500, {"a": {}}, "prefill")
    case.plan(501, 520, {"slow": {"committed_tokens": 1}}, "prefill")
    found = life(any_store, case)
    assert found.waits[0].wait.kind == RESUMED
    assert stall_sentence(found).startswith("Stood aside for 481 ms in the middle of its answer")
    assert "It was set aside once" in str(life_page(found))


def test_one_that_still_waits_and_one_that_never_was_served(any_store: sa.Engine) -> None:
    case = Case()
    case.request("slow", 0, admitted_at=None)
    case.request("gone", 0, admitted_at=None, finished_at=at(300), finish_reason="abort")
    case.plan(1, 200, {"a": {}}, "prefill")
    found = life(any_store, case)
    assert found.waits[0].wait.kind == OPEN
    assert stall_sentence(found).startswith("Has waited 60.0 s so far: this request had not been let in")
    gone = read_life(any_store, RUN, "gone", LATER)
    assert gone is not None
    assert stall_sentence(gone).startswith("Waited 300 ms and ended without having been served")


def test_a_calm_request_says_that_it_never_waited(any_store: sa.Engine) -> None:
    case = Case()
    case.request("slow", 0, first_output_at=at(20), finished_at=at(60), finish_reason="stop")
    for start in (1, 21, 41):
        case.plan(start, start + 19, {"slow": {"committed_tokens": 1}})
    assert stall_sentence(life(any_store, case)) == (
        "It never waited longer than one of its plans takes: its first token came after 20.0 ms, and the longest gap "
        "between outputs was 20.0 ms."
    )


def test_every_request_of_a_filled_store_has_a_page(any_store: sa.Engine) -> None:
    filled = fill_store(any_store, plans=80, requests=8)
    for run, name in filled.request_keys:
        found = read_life(any_store, run, name, filled.last_at + dt.timedelta(seconds=1))
        assert found is not None
        page = str(life_page(found))
        assert name in page
        assert len(plan_rows(found)) == len(found.lanes)
    assert read_life(any_store, filled.run_ids[0], "nobody", LATER) is None


@st.composite
def lives(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A request that arrives at 0 ms, and up to 30 plans of its own, some of which overlap."""
    begins = sorted(draw(st.lists(st.integers(1, 5000), max_size=30)))
    lanes = [
        {
            "fence": 2 * number + 2,
            "lane": 0,
            "role": draw(st.sampled_from(["prefill", "decode"])),
            "committed_at": at(begin),
            "committed_ns": ns(begin),
            "started_ns": ns(begin),
            "completed_ns": ns(begin + draw(st.integers(1, 200))),
            "committed_tokens": draw(st.integers(0, 2)),
            "device_ms": 1.0,
            "outcome": "completed",
        }
        for number, begin in enumerate(begins)
    ]
    request = {"arrived_at": at(0), "tokenize_ms": None, "finished_at": at(6000)}
    return request, lanes


def plain_waits(lanes: list[dict[str, Any]]) -> set[int]:
    """The slow twin: the ms since arrival, up to its last plan, in which none of its plans ran."""
    last = max((lane["started_ns"] - START_NS) // 1_000_000 for lane in lanes) if lanes else 6000
    busy: set[int] = set()
    for lane in lanes:
        busy |= set(range((lane["started_ns"] - START_NS) // 10**6, (lane["completed_ns"] - START_NS) // 10**6))
    return set(range(last)) - busy


@given(lives())
def test_waits_are_the_time_without_a_plan_of_its_own(drawn: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    request, lanes = drawn
    clock = Clock(at(0), ns(0))
    waits = all_waits(request, lanes, clock, LATER)
    covered = [
        ms for wait in waits for ms in range((wait.start_ns - START_NS) // 10**6, (wait.end_ns - START_NS) // 10**6)
    ]
    assert len(covered) == len(set(covered))
    assert set(covered) == plain_waits(lanes)
    shown, count = find_waits(request, lanes, clock, LATER)
    assert len(shown) == min(count, MOST_WAITS)
    assert [wait.start_ns for wait in shown] == sorted(wait.start_ns for wait in shown)
    if shown:
        assert max(wait.ms for wait in shown) == max(wait.ms for wait in waits)
    assert {wait.kind for wait in waits if wait.after is not None} <= {"prompt", ROUND, RESUMED}


def test_names_are_inert_in_the_pictures_and_on_the_page(any_store: sa.Engine) -> None:
    case = Case()
    name = "<img src=x onerror=alert(1)>"
    case.request(
        name, 0, first_output_at=at(900), finished_at=at(910), finish_reason="stop", error="=cmd|' /C calc'!A0"
    )
    case.plan(1, 800, {"<b>other</b>": {}}, "prefill")
    case.plan(810, 900, {name: {"committed_tokens": 1}}, "prefill")
    found = life(any_store, case, name)
    figure = life_figure(found.request, found.lanes, [(0.0, 5.0, name)], found.arrived_ns)
    assert "<img" not in str(figure)
    app = Dash("inert")
    app.layout = life_page(found)  # only plain components, no markdown and no raw HTML
    assert "Markdown" not in str(app.layout)
    assert "dangerously" not in str(app.layout)


def test_the_worst_gap_is_marked_whatever_is_left_out() -> None:
    gaps = [(float(i), 1.0 + i % 7, i) for i in range(9000)]
    gaps[4321] = (4321.0, 500.0, 4321)
    figure = gaps_figure(gaps)
    assert len(figure["data"][0]["x"]) <= 4000
    assert (figure["data"][1]["x"], figure["data"][1]["y"]) == ([4321.0], [500.0])
    assert figure["data"][0]["x"] == sorted(figure["data"][0]["x"])


def test_gaps_are_between_outputs_alone() -> None:
    lanes = [{"published_ns": value} for value in (None, 1_000_000, None, 4_000_000, 4_500_000)]
    assert [gap for _, gap in output_gaps(lanes)] == [3.0, 0.5]
