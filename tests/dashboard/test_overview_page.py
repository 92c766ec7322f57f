"""The overview's words, tiles and charts, without a browser."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from dash import dcc

from dashboard.figures.trend import busy_figure, first_token_figure, tokens_figure
from dashboard.pages.overview.details import chart_words, details, span_words
from dashboard.pages.overview.tiles import Tile, remarks, tiles
from dashboard.queries.latencies import Percentiles
from dashboard.queries.overview import Now, Waiting
from dashboard.queries.trends import Bucket, Share, Trends
from dashboard.span import Span, last_span

AT = dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)
RUN = {"run_id": "run-1", "model": "m", "device": "cpu", "started_at": AT - 60 * MINUTE, "ended_at": None}
HOSTILE = "<img src=x onerror=alert(1)>"


def now(**changes: Any) -> Now:
    values: dict[str, Any] = {
        "at": AT,
        "run": RUN,
        "policy": {"version": 7, "actor": "anna", "note": "shorter gaps", "applied_at": AT},
        "running": 4,
        "waiting": Waiting(),
        "plans": 600,
        "tokens": 1800,
        "busy_ms": {"decode": 24_000.0, "prefill": 6_000.0},
        "first_token": Percentiles(20, 120.0, 900.0),
        "between": Percentiles(20, 30.0, 60.0),
        "gaps": 0,
        "newest_gap": None,
        "last_plan_at": AT,
    }
    return Now(**{**values, **changes})


def trends(**changes: Any) -> Trends:
    buckets = [
        Bucket(AT - 2 * MINUTE, 60.0, 600, 100, {"decode": 30_000.0}, Percentiles(3, 100.0, 200.0), Percentiles()),
        Bucket(AT - MINUTE, 60.0, 0, 0, {}, Percentiles(), Percentiles()),
        Bucket(AT, 2.0, 60, 3, {"decode": 100.0}, Percentiles(), Percentiles()),
    ]
    values: dict[str, Any] = {
        "span": last_span("5m", AT + dt.timedelta(seconds=2)),
        "width": MINUTE,
        "buckets": buckets,
        "kinds": [Share("decode", 103, 30_100.0, 5000.0, 660)],
        "reasons": [Share("ordinary", 103, 30_100.0, 5000.0, 660)],
        "first_token": Percentiles(3, 100.0, 200.0),
        "between": Percentiles(),
        "finishes": {"stop": 2, "error": 1, None: 1},
        "slowest": [],
        "changes": [{"version": 7, "applied_at": AT}],
        "gaps": 0,
        "capped": False,
    }
    return Trends(**{**values, **changes})


def by_heading(found: Now) -> dict[str, Tile]:
    return {tile.heading: tile for tile in tiles(found)}


def test_the_tiles_say_what_an_operator_asks_first() -> None:
    found = by_heading(now())
    assert (found["Running"].value, found["Waiting"].value) == ("4", "0")
    assert found["First token, p50"].value == "120 ms"
    assert "p99 900 ms" in found["First token, p50"].detail
    assert found["Output tokens"].value == "30.0/s"
    assert (found["Device busy"].value, found["Device busy"].detail) == ("50 %", "decode 40 %, prefill 10 %")
    assert found["Policy"].value == "version 7"
    assert found["Trace"].value == "whole"
    assert not any(tile.bad for tile in found.values())
    assert remarks(now()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": None}, "No engine has run"),
        ({"run": {**RUN, "ended_at": AT - MINUTE, "end_reason": "failed: killed"}}, "does not run"),
        ({"waiting": Waiting(2, AT - dt.timedelta(seconds=30), "r/1")}, "2 requests wait for a first graph"),
        ({"gaps": 1, "newest_gap": {"noticed_at": AT - MINUTE, "reason": "missing tail"}}, "missing tail"),
    ],
)
def test_what_is_wrong_is_said_in_words(changes: dict[str, Any], words: str) -> None:
    assert [remark for remark in remarks(now(**changes)) if words in remark.text]


def test_a_short_wait_and_an_old_gap_are_no_alarm() -> None:
    found = now(
        waiting=Waiting(1, AT - dt.timedelta(seconds=2), "r"),
        gaps=1,
        newest_gap={"noticed_at": AT - 300 * MINUTE, "reason": "missing tail"},
    )
    assert remarks(found) == []
    assert by_heading(found)["Waiting"].detail == "oldest for 2.0 s"
    assert by_heading(found)["Trace"].value == "1 gap"


def test_the_oldest_waiting_request_is_linked_by_a_safe_address() -> None:
    (remark,) = remarks(now(waiting=Waiting(1, AT - MINUTE, "a/b?c")))
    assert remark.link == ("Why?", "/dashboard/requests/run-1/a%2Fb%3Fc")


def test_rates_are_per_second_of_each_piece_and_a_tiny_piece_is_left_out() -> None:
    (trace,) = tokens_figure(trends())["data"]
    assert trace["y"] == [10.0, 0.0]
    (busy,) = busy_figure(trends())["data"]
    assert busy["y"] == [50.0, 0.0]


def test_a_stretch_without_requests_is_a_hole_and_not_a_zero() -> None:
    for trace in first_token_figure(trends())["data"]:
        assert trace["y"][1:] == [None, None]
        assert trace["connectgaps"] is False


def test_figures_are_plain_and_mark_policy_changes() -> None:
    figure = tokens_figure(trends())
    assert json.loads(json.dumps(figure)) == figure
    assert [mark["text"] for mark in figure["layout"]["annotations"]] == ["policy 7"]


def test_labels_of_policy_changes_lie_beside_each_other_and_inside_the_chart() -> None:
    span = last_span("5m", AT)
    seconds = (2, 20, 80, 90, 299)
    changes = [{"version": 9 - at, "applied_at": AT - dt.timedelta(seconds=s)} for at, s in enumerate(seconds)]
    layout = tokens_figure(trends(span=span, changes=changes))["layout"]
    assert len(layout["shapes"]) == len(changes)
    assert [(mark["text"], mark["xanchor"]) for mark in layout["annotations"]] == [
        ("policy 9", "right"),
        ("policy 7", "left"),
        ("policy 5", "left"),
    ]


def test_a_kind_from_outside_is_no_markup_in_a_chart() -> None:
    bucket = Bucket(AT, 60.0, 0, 1, {HOSTILE: 5.0}, Percentiles(), Percentiles())
    found = trends(buckets=[bucket], kinds=[Share(HOSTILE, 1, 5.0, 5.0, 0)])
    assert "<img" not in json.dumps(busy_figure(found))


def test_the_words_above_the_charts_say_their_numbers() -> None:
    said = chart_words(trends())
    assert said["tokens"] == "660 tokens, 5.41 a second"
    assert said["first_token"] == "half within 100 ms, 99 % within 200 ms, of 3 requests"
    assert said["between"] == "no requests"
    assert chart_words(trends(capped=True))["first_token"].endswith("of the newest 50,000 requests")
    assert span_words(trends()).startswith("103 plans; a point is 1 minute.")


def test_everything_leads_on_with_the_span_that_is_shown() -> None:
    span = Span(AT - MINUTE, AT)
    slow = {"run_id": "r", "request_id": "q 1", "arrived_at": AT, "start_ms": 5.0, "queue_ms": None, "prompt_tokens": 1}
    hrefs = [
        node.href
        for card in details(trends(span=span, slowest=[slow]))
        for node in card._traverse()
        if isinstance(node, dcc.Link)
    ]
    fixed = "since=2026-03-01T11%3A59%3A00%2B00%3A00&until=2026-03-01T12%3A00%3A00%2B00%3A00"
    assert f"/dashboard/timeline?kind=decode&{fixed}" in hrefs
    assert f"/dashboard/timeline?reason=ordinary&{fixed}" in hrefs
    assert f"/dashboard/requests?finish=error&{fixed}" in hrefs
    assert f"/dashboard/requests?finish=running&{fixed}" in hrefs
    assert "/dashboard/requests/r/q%201" in hrefs
