"""Numbers, times and shapes as people read them."""

from __future__ import annotations

import datetime as dt

import pytest

from dashboard import formatting


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0 ms"),
        (0.0042, "4.2 µs"),
        (0.083, "83 µs"),
        (4.2149, "4.21 ms"),
        (31.46, "31.5 ms"),
        (318.4, "318 ms"),
        (9999.0, "9,999 ms"),
        (12_400.0, "12.4 s"),
        (-4.2, "-4.20 ms"),
    ],
)
def test_milliseconds(value: float | None, text: str) -> None:
    assert formatting.milliseconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (3.1, "3.10"),
        (31.44, "31.4"),
        (0.421, "0.421"),
        (0.0421, "0.0421"),
        (1240.4, "1,240"),
        (1.2345e15, "1.23e+15"),
        (4.2e-7, "4.2e-07"),
        (-3.1, "-3.10"),
    ],
)
def test_quantity(value: float | None, text: str) -> None:
    assert formatting.quantity(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "never"),
        (210.0, "210 ms"),
        (4200.0, "4.2 s"),
        (420_000.0, "7 min"),
        (12_600_000.0, "3.5 h"),
        (181_440_000.0, "2.1 d"),
    ],
)
def test_age(value: float | None, text: str) -> None:
    assert formatting.age(value) == text


def test_a_graph_without_an_estimate_has_no_predicted_time() -> None:
    assert formatting.predicted(0.0, "unknown") == "never measured"
    assert formatting.predicted(4.0, "stale") == "4.00 ms"
    assert formatting.against_prediction(4.0, 0.0, "unknown") == "–"
    assert formatting.against_prediction(4.0, 4.01, "fresh") == "as predicted"
    assert formatting.against_prediction(3.0, 4.0, "fresh") == "25 % shorter"


def test_times_are_utc_whatever_their_zone() -> None:
    moment = dt.datetime(2026, 3, 1, 13, 0, 5, 123_456, tzinfo=dt.timezone(dt.timedelta(hours=-8)))
    assert formatting.utc(moment) == "2026-03-01 21:00:05 UTC"
    assert formatting.utc_clock(moment) == "21:00:05.123"
    assert formatting.utc(None) == "–"


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ({"kind": "decode", "batch_capacity": 4}, "decode ×4"),
        ({"kind": "prefill", "batch_capacity": 1, "prefill_capacity": 256}, "prefill 256"),
        ({"kind": "speculative", "batch_capacity": 4, "draft_depth": 2}, "speculative ×4 depth 2"),
        ({"kind": "mixed", "batch_capacity": 4, "prefill_capacity": 256}, "mixed ×4 + 256"),
        (
            {"kind": "mixed", "batch_capacity": 8, "prefill_capacity": 256, "prompt_rows": 4},
            "mixed ×8 + 256 for 4 prompts",
        ),
        ({"kind": "terminal_snapshot", "batch_capacity": 1}, "terminal snapshot ×1"),
    ],
)
def test_shapes_in_words(shape: dict[str, object], text: str) -> None:
    assert formatting.shape_words({"draft_depth": 0, "prefill_capacity": 0, "prompt_rows": 1, **shape}) == text


def test_long_lists_of_names_are_cut_and_say_so() -> None:
    assert formatting.some_names(["a", "b"]) == "a, b"
    assert formatting.some_names(list("abcdef")) == "a, b, c, d and 2 more"


def test_a_coefficients_label_leaves_its_unit_to_the_field() -> None:
    assert formatting.coefficient_label("adaptation_ms") == "Adaptation"
    assert formatting.coefficient_label("estimate_ttl_ns") == "Estimate lifetime"
    assert formatting.coefficient_label("terms_msec") == "Terms msec"
