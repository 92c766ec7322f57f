"""The control that chooses a page's span of time."""

from __future__ import annotations

import datetime as dt
import urllib.parse

import pytest
from dash import html
from hypothesis import given
from hypothesis import strategies as st

from dashboard.routing import COSTS_PATH
from dashboard.span import LAST, Span, last_span, read_span
from dashboard.span_picker import other_values, span_picker

NOW = dt.datetime(2026, 11, 30, 12, 0, tzinfo=dt.UTC)
FIXED = Span(NOW - dt.timedelta(hours=3), NOW - dt.timedelta(hours=2))


def links(span: Span, search: str = "", **options: object) -> dict[str, dict[str, str]]:
    """The links' words, and what each one's address means."""
    found: dict[str, dict[str, str]] = {}
    for node in span_picker(span, COSTS_PATH, search, **options)._traverse():
        if isinstance(node, html.A):
            path, _, query = node.href.partition("?")
            assert path == COSTS_PATH
            found[node.children] = dict(urllib.parse.parse_qsl(query, strict_parsing=True))
    return found


@pytest.mark.parametrize("last", LAST)
def test_a_moving_span_offers_every_other_and_can_be_held(last: str) -> None:
    offered = links(last_span(last, NOW))
    assert [query.get("last") for query in offered.values()] == [*LAST, None]
    held = read_span(urllib.parse.urlencode(offered["Hold"]), NOW + dt.timedelta(days=1))
    assert (held.since, held.until, held.last) == (NOW - LAST[last], NOW, None)


def test_a_length_of_its_own_is_offered_among_the_others() -> None:
    assert [query.get("last") for query in links(last_span("90m", NOW)).values()][2:5] == ["1h", "90m", "6h"]


def test_an_address_that_cannot_be_read_is_quoted_beside_what_is_shown() -> None:
    text = str(span_picker(read_span("?last=soon", NOW), COSTS_PATH, "?last=soon"))
    assert "“last=soon” is no span of time" in text
    assert "this is the last hour" in text
    assert "is no span" not in str(span_picker(read_span("?last=5m", NOW), COSTS_PATH, ""))


def test_a_fixed_span_is_left_by_showing_the_last_hour() -> None:
    offered = links(FIXED)
    assert offered["Show the last hour"] == {"last": "1h"}
    assert "Hold" not in offered


@given(st.dictionaries(st.sampled_from(["kind", "policy", "q"]), st.text(min_size=1, max_size=20), max_size=3))
def test_all_else_in_the_address_stays_but_what_a_span_makes_meaningless(others: dict[str, str]) -> None:
    search = "?" + urllib.parse.urlencode({**others, **FIXED.query, "after": "7"})
    for query in links(FIXED, search, drop=("after",)).values():
        assert {name: value for name, value in query.items() if name != "last"} == others


def test_a_query_of_too_many_values_is_not_kept() -> None:
    assert other_values("?" + "&".join(f"a{n}=1" for n in range(100)), ()) == {}
