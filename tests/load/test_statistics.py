"""Medians with intervals: the ranks of the binomial table, and the coverage that they promise."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.load.statistics import median_interval, percentile


@pytest.mark.parametrize(("count", "low", "high"), [(6, 1, 6), (9, 2, 8), (20, 6, 15), (24, 7, 18), (50, 18, 33)])
def test_the_interval_has_the_ranks_of_the_binomial_table(count, low, high):
    found = median_interval([float(rank) for rank in range(1, count + 1)])
    assert (found.low, found.high, found.value) == (low, high, (count + 1) / 2)
    assert found.confidence >= 0.95


def test_five_values_say_too_little():
    found = median_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.value, found.low, found.high, found.confidence) == (3.0, None, None, None)


def test_it_covers_the_true_median_as_often_as_it_says():
    """Of a lopsided distribution, whose median is 1; the share must lie within five standard errors."""
    draw = random.Random(7)
    samples = [median_interval([2 * draw.random() ** 3 * 4 for _ in range(20)]) for _ in range(2000)]
    covered = sum(found.low <= 1.0 <= found.high for found in samples) / 2000
    assert samples[0].confidence == pytest.approx(0.9586, abs=1e-4)
    assert covered == pytest.approx(0.9586, abs=0.0225)


@given(st.lists(st.floats(-1e9, 1e9), min_size=6, max_size=60))
def test_the_interval_holds_the_median_and_lies_within_the_values(values):
    found = median_interval(values)
    assert min(values) <= found.low <= found.value <= found.high <= max(values)


@given(st.lists(st.integers(-100, 100), min_size=1), st.floats(0.01, 1.0))
def test_a_percentile_is_the_smallest_value_that_the_share_does_not_exceed(values, share):
    found = percentile(values, share)
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    smaller = [value for value in values if value < found]
    assert len(smaller) < share * len(values)
