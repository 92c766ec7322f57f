"""The span of time in a page's address."""

import datetime as dt
import urllib.parse

import pytest

from dashboard.span import Span, last_words, read_span

NOW = dt.datetime(2026, 11, 30, 12, 0, tzinfo=dt.UTC)


def test_a_moving_window_ends_now():
    span = read_span("?last=15m", NOW)
    assert (span.since, span.until, span.last) == (NOW - dt.timedelta(minutes=15), NOW, "15m")
    assert read_span("?" + "&".join(f"{k}={v}" for k, v in span.query.items()), NOW) == span


def test_a_fixed_window_keeps_both_ends_in_any_zone():
    span = read_span("?since=2026-11-30T10:00:00%2B01:00&until=2026-11-30T10:30:00Z", NOW)
    assert span == Span(NOW.replace(hour=9), NOW.replace(hour=10, minute=30))
    assert span.seconds == 5400


@pytest.mark.parametrize(
    "search",
    [
        "",
        "?last=9y",
        "?since=soon",
        "?since=2026-11-30T11:00:00Z&until=2026-11-30T10:00:00Z",
        "?since=0001-01-01T00:00:00%2B23:00",
    ],
)
def test_what_cannot_be_read_is_the_default_and_said(search):
    span = read_span(search, NOW)
    assert span.last == "1h"
    assert (span.unread is not None) == bool(search)


@pytest.mark.parametrize(
    ("last", "minutes", "words"),
    [("1m", 1, "minute"), ("90m", 90, "90 minutes"), ("1d", 1440, "day"), ("2h", 120, "2 hours")],
)
def test_a_window_has_any_length_of_minutes_hours_or_days(last, minutes, words):
    span = read_span(f"?last={last}", NOW)
    assert (span.since, span.until, span.last, span.unread) == (NOW - dt.timedelta(minutes=minutes), NOW, last, None)
    assert last_words(last) == words


@pytest.mark.parametrize("last", ["0m", "5", "m", "1.5h", "-1h", "9999999d", "٣m", "1 h", "1h " * 50])
def test_a_length_that_is_none_is_not_taken_for_one(last):
    span = read_span("?" + urllib.parse.urlencode({"last": last}), NOW)
    assert span.last == "1h"
    assert f"last={last}".startswith(str(span.unread).removesuffix("…"))


@pytest.mark.parametrize(
    "search", ["?since=0001-01-01T00:00:00Z&until=9999-12-31T23:59:59.999999Z", "?since=0001-01-01T00:00:00Z"]
)
def test_the_ends_of_the_calendar_leave_room_to_look_beyond(search):
    span = read_span(search, NOW)
    year = dt.timedelta(days=366)
    assert span.since - year < span.since < span.until < span.until + year
    assert read_span("?until=0001-01-01T00:00:00Z&" + search[1:].split("&")[0], NOW).last == "1h"
