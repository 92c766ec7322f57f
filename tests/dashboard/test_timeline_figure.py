"""Timeline figures: pictures in, plain dict out."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dashboard.bins import Bin, Binned, Extreme
from dashboard.figures.timeline import MAX_MARKS, gap_rows, length_ms, start_ms, timeline_figure
from dashboard.timeline_records import Change, Events, Hole, Life, Lives, Picture, Served

Rows = Callable[..., dict[str, Any]]
NOW = dt.datetime(2026, 3, 1, 12, 1, tzinfo=dt.UTC)
NOW_MS = NOW.timestamp() * 1e3
SINCE = NOW - dt.timedelta(minutes=1)
NOTHING = Events((), 0, ())


def picture(
    rows: Sequence[dict[str, Any]] = (),
    *,
    binned: Binned | None = None,
    lives: Sequence[Life] = (),
    events: Events = NOTHING,
) -> Picture:
    level = "plans" if binned is None else "bins"
    return Picture(level, SINCE, NOW, len(rows), rows, binned, Lives(lives, len(lives)), events)


def figure(rows: Sequence[dict[str, Any]], by: str = "kind") -> dict[str, Any]:
    return timeline_figure(picture(rows), by, NOW_MS)


def trace(made: dict[str, Any], uid: str) -> dict[str, Any]:
    (found,) = (one for one in made["data"] if one["uid"].startswith(uid))
    return found


def test_a_bar_reaches_from_the_start_on_the_device_to_the_end_in_the_row_of_its_slot(plan_row: Rows) -> None:
    row = plan_row(fence=3, frame_slot=1)
    bars = trace(figure([row]), "plans")
    assert bars["base"] == [row["committed_at"].timestamp() * 1e3 + 1.0]
    assert (bars["x"], bars["y"], bars["ids"]) == ([10.0], [-1], ["run-1/3"])


def test_kinds_or_reasons_have_colours_of_their_own(plan_row: Rows) -> None:
    rows = [plan_row(1), plan_row(2, kind="prefill", reason="discovery"), plan_row(3, kind="new_kind", reason="new")]
    for by in ("kind", "reason"):
        assert len({one["marker"]["color"] for one in figure(rows, by)["data"] if one["name"] == "plans"}) == 3


@pytest.mark.parametrize(
    ("outcome", "shape", "opacity"),
    [("completed", "", 1.0), ("in_flight", "", 0.4), ("lost", "/", 1.0), ("abandoned", "/", 1.0), ("failed", "/", 1.0)],
)
def test_open_bars_are_faint_and_bars_without_an_end_are_hatched(
    plan_row: Rows, outcome: str, shape: str, opacity: float
) -> None:
    bars = trace(figure([plan_row(outcome=outcome)]), "plans")
    assert bars["marker"].get("pattern", {}).get("shape", "") == shape
    assert bars["marker"]["opacity"] == opacity


def test_a_running_plan_grows_until_now_but_never_squeezes_the_others(plan_row: Rows) -> None:
    row = plan_row(outcome="in_flight", started_ns=None, completed_ns=None, device_ms=None)
    assert length_ms(row, start_ms(row) + 300) == pytest.approx(300)
    assert length_ms(row, start_ms(row) + 60_000) == 1000.0
    assert length_ms(row, start_ms(row) - 5) == 0.0
    assert length_ms({**row, "selected_cost_ms": 900.0}, start_ms(row) + 60_000) == 3600.0


def test_a_lost_plan_is_as_long_as_it_was_predicted(plan_row: Rows) -> None:
    assert length_ms(plan_row(outcome="lost", completed_ns=None), NOW_MS) == 9.0


def test_gaps_are_between_plans_that_follow_each_other(plan_row: Rows) -> None:
    rows = [plan_row(1), plan_row(2), plan_row(4), plan_row(5, run_id="run-2")]
    (gap,) = gap_rows(rows)
    assert gap["length"] == pytest.approx(10.0)
    made = figure(rows)
    assert trace(made, "gaps")["base"] == [pytest.approx(start_ms(rows[1]) - 10)]
    assert made["layout"]["yaxis"]["ticktext"] == ["slot 0", "idle"]
    overlapping = plan_row(2, started_ns=plan_row(1)["completed_ns"] - 5)
    assert gap_rows([plan_row(1), overlapping]) == []


def test_the_hover_says_shape_reason_cost_score_and_requests(plan_row: Rows) -> None:
    (fields,) = trace(figure([plan_row()]), "plans")["customdata"]
    text = " | ".join(fields)
    for words in ("decode ×4", "plan 1 · completed", "9.00 ms", "10.0 ms (11 % longer)", "3.10 per ms", "ordinary"):
        assert words in text
    assert "a, b" in text
    unknown = plan_row(cost_state="unknown", selected_cost_ms=0.0)
    assert "never measured" in trace(figure([unknown]), "plans")["customdata"][0]


def texts(value: object) -> list[str]:
    if isinstance(value, dict):
        return [
            text for key, child in value.items() if key not in ("hovertemplate", "ids", "uid") for text in texts(child)
        ]
    if isinstance(value, list | tuple):
        return [text for child in value for text in texts(child)]
    return [value] if isinstance(value, str) else []


def life(name: str = "req-1", **changes: object) -> Life:
    row = {
        "run_id": "run-1",
        "request_id": name,
        "arrived_at": SINCE,
        "first_output_at": SINCE + dt.timedelta(seconds=20),
        "finished_at": SINCE + dt.timedelta(seconds=30),
        "finish_reason": "stop",
        "prompt_tokens": 12,
        "output_tokens": 3,
        **changes,
    }
    return Life(row, SINCE + dt.timedelta(seconds=5), [Served(0, 10_000, "decode", "ordinary", 2)])


def test_a_request_waits_reads_and_answers(plan_row: Rows) -> None:
    made = timeline_figure(picture([plan_row()], lives=[life()]), "kind", NOW_MS)
    phases = trace(made, "phases")
    assert [fields[1] for fields in phases["customdata"]] == ["waiting", "prompt", "answer"]
    assert phases["x"] == [5000.0, 15_000.0, 10_000.0]
    assert "2 decode plans" in trace(made, "served")["customdata"][0][1]
    waits = Life({**life().row, "first_output_at": None, "finished_at": None}, None, ())
    (waiting,) = trace(timeline_figure(picture([plan_row()], lives=[waits]), "kind", NOW_MS), "phases")["customdata"]
    assert waiting[1:3] == ["waiting", "60.0 s"]


def test_names_from_outside_are_escaped(plan_row: Rows) -> None:
    row = plan_row(request_ids=["<a href='x'>b</a>"], reason="<b>x</b>", outcome="<i>y</i>", kind="<u>")
    bins = [Bin(1, 0, "<u>", 1, 10)]
    longest = [Extreme(1, 0, "<u>", 10, 10, "<u>", 1)]
    for made in (
        timeline_figure(picture([row], lives=[life("<b>r</b>", finish_reason="<i>")]), "kind", NOW_MS),
        timeline_figure(picture(binned=Binned(10, bins, longest, longest)), "kind", NOW_MS),
    ):
        assert not [text for text in texts(made) if "<" in text.replace("<br>", "")]


def test_bins_stack_shares_and_keep_the_longest(plan_row: Rows) -> None:
    width_us, number = 1_000_000, int(SINCE.timestamp())
    bins = [Bin(number, 0, "decode", 3, 500_000_000), Bin(number, 0, "prefill", 1, 250_000_000)]
    bins += [Bin(number + 1, 1, "decode", 1, 5_000_000_000)]
    longest = [Extreme(number + 1, 1, "decode", 5_000_000_000, number * 1_000_000, "run-1", 9)]
    made = timeline_figure(picture(binned=Binned(width_us, bins, longest, [])), "kind", NOW_MS)
    decode, prefill = trace(made, "bins-decode"), trace(made, "bins-prefill")
    assert decode["y"] == [0.42, 0.84], "half of the row, and never more than all of it"
    assert prefill["base"] == [pytest.approx(decode["base"][0] + 0.42)]
    assert decode["customdata"][1][1] == "500 %, 5,000 ms"
    dots = trace(made, "longest")
    assert (dots["ids"], dots["y"]) == (["run-1/9"], [5000.0])
    low, high = made["layout"]["yaxis2"]["range"]
    assert low < 3.7 < high
    assert made["layout"]["yaxis"]["ticktext"] == ["slot 0", "slot 1"]


def test_policy_changes_are_lines_and_holes_are_bands(plan_row: Rows) -> None:
    changes = [Change(SINCE, 1, "run-1", True, None), Change(NOW - dt.timedelta(seconds=20), 2, "run-1", False, "anna")]
    hole = Hole(SINCE, SINCE + dt.timedelta(seconds=3), 4, "disk full")
    made = timeline_figure(picture([plan_row()], events=Events(changes, 2, [hole])), "kind", NOW_MS)
    shapes = made["layout"]["shapes"]
    assert [shape["type"] for shape in shapes] == ["line", "line", "rect"]
    assert [note["text"] for note in made["layout"]["annotations"]] == ["start, policy 1", "policy 2", "trace gap"]


def test_a_change_near_the_end_has_its_label_before_its_line(plan_row: Rows) -> None:
    changes = [Change(SINCE, 1, "run-1", True, None), Change(NOW - dt.timedelta(seconds=1), 2, "run-1", False, "anna")]
    made = timeline_figure(picture([plan_row()], events=Events(changes, 2, [])), "kind", NOW_MS)
    assert [note["xanchor"] for note in made["layout"]["annotations"]] == ["left", "right"]


def test_there_are_at_most_five_thousand_marks(plan_row: Rows) -> None:
    rows = [plan_row(fence) for fence in range(1, 1501)]
    served = [Served(n * 1000, n * 1000 + 500, "decode", "ordinary", 1) for n in range(600)]
    lives = [Life(life(f"r-{n}").row, None, served) for n in range(30)]
    made = timeline_figure(picture(rows, lives=lives), "kind", NOW_MS)
    assert 4900 < sum(len(one["ids"]) for one in made["data"]) <= MAX_MARKS


def test_a_figure_is_plain_json(plan_row: Rows) -> None:
    for rows in ([], [plan_row()]):
        made = figure(rows)
        assert json.loads(json.dumps(made, allow_nan=False)) == made
