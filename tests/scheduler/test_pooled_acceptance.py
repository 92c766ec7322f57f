"""acceptance_model "pooled": what verification found in all requests is where a new request starts (S3)."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_arrays import KernelArrays, generation_graph, same_bits

from scheduler import layout
from scheduler.reference.estimates import Pool

DEPTH = 7
LIKELY = (0.7617, 0.6158, 0.5125, 0.4243, 0.364, 0.3094, 0.2722)
"""A recorded curve: eight native draft heads on GSM8K, depths 1 to 7."""
SOURCES = {layout.LEARNED: "learned", layout.COPY: "copy"}


def new_arrays(pooled=1, allocation=layout.ALLOCATE_NONE, slots=1):
    graph = generation_graph(10_000_000, batch=slots, depth=DEPTH, width=DEPTH + 1) | {"allocation": allocation}
    arrays = KernelArrays(slots, DEPTH, [graph])
    arrays.policy["pooled"] = pooled
    arrays.admit(0)
    return arrays


def verify(arrays, accepted, offered, emitted=None, source=layout.LEARNED):
    arrays.commit([{"slot": 0, "source": source, "ceiling": offered + 1}])
    arrays.complete([(accepted + 1 if emitted is None else emitted, accepted, offered, layout.GOES_ON)])


def start(arrays, source=layout.LEARNED, estimator=layout.ACCEPTANCE):
    """Means and weights that a request begins with now."""
    arrays.admit(0, generation=2)
    return arrays.acceptance.estimates[0, source, estimator].T.tolist()


@st.composite
def rounds(draw):
    offered = draw(st.integers(0, DEPTH))
    accepted = draw(st.integers(0, offered))
    emitted = max(1, accepted + draw(st.integers(0, 1)))
    return accepted, offered, emitted, draw(st.sampled_from(list(SOURCES)))


@given(st.lists(rounds(), max_size=60))
def test_the_pool_and_the_curve_are_the_plain_twins_bit_for_bit(history):
    arrays, twin = new_arrays(), Pool()
    for accepted, offered, emitted, source in history:
        verify(arrays, accepted, offered, emitted, source)
        rejected = emitted == accepted + 1 and accepted < offered
        twin.observe(SOURCES[source], [True] * accepted + [False] * rejected)
    for source, name in SOURCES.items():
        assert same_bits(arrays.acceptance.pool[source], list(twin.chances[name].values()))
        assert same_bits(start(arrays, source)[layout.MEAN], twin.curve(name, DEPTH))


@given(st.lists(rounds(), max_size=60))
def test_both_chances_stay_in_their_bounds_and_the_curve_falls(history):
    arrays = new_arrays()
    for accepted, offered, emitted, source in history:
        verify(arrays, accepted, offered, emitted, source)
    pool = arrays.acceptance.pool
    assert ((pool[..., layout.MEAN] >= 0) & (pool[..., layout.MEAN] <= 1)).all()
    assert ((pool[..., layout.WEIGHT] >= 2) & (pool[..., layout.WEIGHT] <= 256)).all()
    for source in SOURCES:
        curve = start(arrays, source)[layout.MEAN]
        assert all(0 <= deeper <= before for before, deeper in zip([1.0, *curve], curve, strict=False))


def test_without_a_round_it_is_the_specifications_prior():
    means, weights = start(new_arrays())
    assert means == [0.5**d for d in range(1, DEPTH + 1)]
    assert weights == [8.0] * DEPTH
    assert start(new_arrays(pooled=0)) == [means, [2.0] * DEPTH]


def test_after_likely_drafts_a_new_request_starts_near_the_truth_also_at_depths_never_offered():
    arrays, luck = new_arrays(), random.Random(1)
    for _ in range(400):
        draw = luck.random()
        verify(arrays, sum(draw < chance for chance in LIKELY[:3]), 3)
    means, _ = start(arrays)
    assert means == pytest.approx(LIKELY, abs=0.08)
    assert means[-1] > 20 * 0.5**DEPTH  # where a request would start without the pool


def test_requests_start_alike_under_prefix_whatever_was_verified():
    arrays = new_arrays(pooled=0)
    for _ in range(50):
        verify(arrays, 3, 3)
    assert start(arrays) == [[0.5**d for d in range(1, DEPTH + 1)], [2.0] * DEPTH]
    arrays.policy["pooled"] = 1  # the pool has learned meanwhile: a policy on trial begins with it
    assert start(arrays)[layout.MEAN][-1] > 0.5


def test_what_lies_behind_a_rejection_or_an_end_counts_nothing():
    rejected, ended = new_arrays(), new_arrays()
    verify(rejected, 2, 6)
    verify(ended, 2, 6, emitted=2)
    assert rejected.acceptance.pool[layout.LEARNED, :, layout.WEIGHT].tolist() == [3.0, 4.0]  # one first, two later
    assert ended.acceptance.pool[layout.LEARNED, :, layout.WEIGHT].tolist() == [3.0, 3.0]
    assert rejected.acceptance.pool[layout.LEARNED, layout.LATER, layout.MEAN] == 0.5
    assert ended.acceptance.pool[layout.LEARNED, layout.LATER, layout.MEAN] > 0.5
    assert same_bits(rejected.acceptance.pool[layout.COPY], [[0.5, 2.0], [0.5, 2.0]])


def test_rounds_whose_drafts_the_device_chose_teach_nothing():
    arrays = new_arrays(allocation=layout.ALLOCATE_DEVICE)
    verify(arrays, 3, 3)
    assert same_bits(arrays.acceptance.pool, np.array([[[0.5, 2.0]] * 2] * 2))


def test_forecasts_start_where_the_specification_says():
    arrays = new_arrays()
    for _ in range(50):
        verify(arrays, 3, 3)
    assert start(arrays, estimator=layout.FORECAST) == [[0.5**d for d in range(1, DEPTH + 1)], [2.0] * DEPTH]


def test_the_last_256_observations_outweigh_any_number_before_them():
    arrays = new_arrays()
    for _ in range(1000):
        verify(arrays, 1, 1)
    for _ in range(512):
        verify(arrays, 0, 1)
    assert arrays.acceptance.pool[layout.LEARNED, layout.FIRST, layout.MEAN] == pytest.approx(np.exp(-2), abs=0.01)
