"""A guard as the form asks for it, and as the page shows it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.errors import RefusedInput
from dashboard.guard_card import evidence, guard_words, headline, limit_words
from dashboard.pages.policy.guard_form import default_entry, default_samples, read_fields, read_guard, read_limit
from dashboard.pages.policy.trials import trials
from service.control.guards import LIMIT_NAMES, Evidence, Guard, GuardLimits, Limit, LimitCheck

AT = dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.UTC)
ENTRIES = {name: default_entry(name) for name in LIMIT_NAMES}
SAMPLES = {name: default_samples(name) for name in LIMIT_NAMES}
WATCHED = Guard(
    version=5,
    parent=4,
    minutes=15,
    limits=GuardLimits(inter_token_p99=Limit(absolute=80, samples=10), throughput=None),
    actor="<b>olga</b>",
    state="watching",
    opened_at=AT,
    until=AT + dt.timedelta(minutes=15),
    decided_at=None,
    reason="",
    evidence=Evidence(before_since=AT - dt.timedelta(hours=1), before_until=AT),
)
CHECK = LimitCheck("first_token_p99", 880.0, 800.0, 400, 912.0, 120, 100, "broken")


def test_the_form_as_it_opens_asks_for_the_usual_limits() -> None:
    asked = read_guard("15", ENTRIES, SAMPLES)
    assert (asked.minutes, asked.limits, asked.problems) == (15.0, GuardLimits(), {})


@pytest.mark.parametrize(
    ("name", "entry", "limit"),
    [
        ("first_token_p99", "110%", Limit(ratio=1.1, samples=7)),
        ("first_token_p99", "800 ms", Limit(absolute=800, samples=7)),
        ("first_token_p99", "1.5 s", Limit(absolute=1500, samples=7)),
        ("throughput", "300 tokens/s", Limit(absolute=300, samples=7)),
        ("throughput", "", None),
    ],
)
def test_limits_are_shares_of_before_or_values(name: str, entry: str, limit: Limit | None) -> None:
    assert read_limit(name, entry, "7") == limit


@pytest.mark.parametrize(
    ("name", "entry", "samples"),
    [
        ("first_token_p99", "800", "7"),
        ("first_token_p99", "800 tokens/s", "7"),
        ("throughput", "3 s", "7"),
        ("throughput", "0 %", "7"),
        ("throughput", "-5 %", "7"),
        ("throughput", "95 %", "0"),
        ("throughput", "95 %", "many"),
        ("throughput", "95 %", "²"),
    ],
)
def test_what_is_no_limit_says_what_one_looks_like(name: str, entry: str, samples: str) -> None:
    assert isinstance(read_limit(name, entry, samples), str)


def test_a_guard_needs_a_limit_and_a_length() -> None:
    assert "minutes" in read_guard("15", dict.fromkeys(LIMIT_NAMES, ""), SAMPLES).problems
    assert "minutes" in read_guard("0", ENTRIES, SAMPLES).problems
    assert "minutes" in read_guard("99999", ENTRIES, SAMPLES).problems
    assert set(read_guard("x", {**ENTRIES, "throughput": "fast"}, SAMPLES).problems) == {"minutes", "throughput"}


@given(st.text(max_size=20), st.text(max_size=10))
def test_whatever_is_typed_is_a_usable_limit_or_words(entry: str, samples: str) -> None:
    found = read_limit("first_token_p99", entry, samples)
    assert found is None or isinstance(found, str) or (found.absolute or found.ratio or 0) > 0


def test_forged_fields_are_refused() -> None:
    fields = [{"name": name} for name in LIMIT_NAMES]
    assert read_fields(fields, ["a", "b", "c"]) == dict(zip(LIMIT_NAMES, "abc", strict=True))
    for ids, values in ((fields, ["a"]), (fields[:2], ["a", "b"]), ([{"name": "x"}] * 3, list("abc")), (None, None)):
        with pytest.raises(RefusedInput):
            read_fields(ids, values)


def text_of(guard: Guard) -> str:
    parts = [part.to_plotly_json() for part in evidence(guard)]
    return json.dumps(parts, default=lambda component: component.to_plotly_json())


def test_the_card_says_what_was_asked_what_is_found_and_what_will_happen() -> None:
    later = AT + dt.timedelta(minutes=3)
    assert headline(WATCHED) == "Version 5 is on trial"
    assert "12 min left of 15 min" in guard_words(WATCHED, later)
    assert "version 4's values come back" in guard_words(WATCHED, later)
    assert "Nothing was looked at yet" in text_of(WATCHED)
    checked = dataclasses.replace(WATCHED, evidence=dataclasses.replace(WATCHED.evidence, checks=(CHECK,)))
    for words in ("800 ms", "880 ms", "912 ms", "120 of 100", "broken", "at most 80.0 ms", "not judged yet"):
        assert words in text_of(checked)
    assert "Throughput" not in text_of(checked)
    assert limit_words("throughput", Limit(ratio=0.95)) == "at least 95 % of before"


def test_a_decided_trial_keeps_its_reason_and_evidence() -> None:
    decided = dataclasses.replace(WATCHED, state="rolled_back", decided_at=AT, reason="first_token_p99 was broken")
    assert guard_words(decided, AT).endswith("First_token_p99 was broken.")
    assert trials([WATCHED], AT) == []
    heading, trial = trials([WATCHED, decided], AT, opened=5)
    assert (heading.children, trial.open, trial.id) == ("Trials", True, "trial-5")
