"""Acceptance estimates (S3) against a slow twin, and their bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_arrays import KernelArrays, generation_graph, same_bits

from scheduler import layout
from scheduler.acceptance import decay_table

DEPTH = 3
SLOTS = 2


class Twin:
    """The rules of S3 in lists: (mean, weight) by slot, source, estimator and depth."""

    def __init__(self, alpha):
        self.alpha = alpha
        self.prior = [[0.5, 0.25, 0.125], [0.5, 0.25, 0.125]]
        self.estimates = [
            [[[[m, 2.0] for m in self.prior[source]] for _ in range(2)] for source in range(2)] for _ in range(SLOTS)
        ]

    def add(self, cell, value):
        cell[1] = min(128.0, cell[1] + 1.0)
        cell[0] = cell[0] + (value - cell[0]) / cell[1]

    def complete(self, lane, survival, confidence):
        mine = self.estimates[lane["slot"]]
        for cell in (c for source in mine for estimator in source for c in estimator):
            cell[1] = max(cell[1] * 2.0 ** (-lane["emitted"] / 128), 2.0**-20)
        for d in range(1, lane["offered"] + 1):
            value = None
            if d <= lane["accepted"]:
                value = 1.0
            elif lane["emitted"] == lane["accepted"] + 1:
                value = 0.0
            if survival is not None and not math.isnan(survival[lane["slot"]][d - 1]):
                value = float(survival[lane["slot"]][d - 1])
            if value is not None:
                self.add(mine[lane["source"]][0][d - 1], value)
        if confidence is not None and lane["source"] == layout.LEARNED:
            for d in range(1, min(DEPTH, lane["ceiling"] - 1) + 1):
                value = float(confidence[lane["slot"]][d - 1])
                self.add(mine[0][1][d - 1], value)
                self.prior[0][d - 1] += (value - self.prior[0][d - 1]) / 64

    def survival(self, cells):
        return [min(cell[0] for cell in cells[: d + 1]) for d in range(len(cells))]

    def optimistic(self, cells):
        bound = [min(1.0, m + math.sqrt(math.log(20.0) / (2.0 * w))) for m, w in cells]
        return [min(bound[: d + 1]) for d in range(len(bound))]

    def expected(self, survival, rows, alpha):
        total = 0.0
        for s in survival[: rows - 1]:
            total += s if alpha == 1.0 else s**alpha
        return 1.0 + total


def check(arrays, twin):
    a = arrays.acceptance
    assert same_bits(a.estimates, twin.estimates)
    assert same_bits(a.prior, twin.prior)
    for slot in range(SLOTS):
        source = max(int(arrays.slots[slot]["source"]), 0)
        for estimator in range(2):
            cells = twin.estimates[slot][source][estimator]
            survival, bold = twin.survival(cells), twin.optimistic(cells)
            assert same_bits(a.survival[slot, estimator], survival)
            for rows in range(1, DEPTH + 2):
                found = a.yields[slot, estimator, :, rows]
                wanted = [
                    twin.expected(survival, rows, 1.0),
                    twin.expected(survival, rows, twin.alpha),
                    twin.expected(bold, rows, twin.alpha),
                ]
                assert same_bits(found, wanted)


def new_arrays(alpha=1.0, source=layout.LEARNED):
    arrays = KernelArrays(SLOTS, DEPTH, [generation_graph(10_000_000)], alpha=alpha)
    for slot in range(SLOTS):
        arrays.admit(slot, source=source)
    return arrays


def one_round(arrays, lanes, survival=None, confidence=None):
    arrays.commit([{"slot": x["slot"], "source": x["source"], "ceiling": x["ceiling"]} for x in lanes])
    did = [(x["emitted"], x["accepted"], x["offered"], layout.GOES_ON) for x in lanes]
    arrays.complete(did, survival=survival, confidence=confidence)


def lane(slot=0, source=layout.LEARNED, ceiling=4, offered=3, accepted=0, emitted=None):
    return {
        "slot": slot,
        "source": source,
        "ceiling": ceiling,
        "offered": offered,
        "accepted": accepted,
        "emitted": accepted + 1 if emitted is None else emitted,
    }


@st.composite
def lanes_of_a_round(draw):
    lanes = []
    for slot in draw(st.sampled_from([(0,), (1,), (0, 1), (1, 0)])):
        ceiling = draw(st.integers(1, DEPTH + 1))
        offered = draw(st.integers(0, ceiling - 1))
        accepted = draw(st.integers(0, offered))
        emitted = max(1, accepted + draw(st.integers(0, 1)))
        source = draw(st.sampled_from([layout.LEARNED, layout.COPY])) if ceiling > 1 else layout.NO_SOURCE
        lanes.append(lane(slot, source, ceiling, offered, accepted, emitted))
    return lanes


probability = st.floats(0, 1, width=32)
table = st.none() | st.lists(st.lists(probability, min_size=DEPTH, max_size=DEPTH), min_size=SLOTS, max_size=SLOTS)
survival_table = st.none() | st.lists(
    st.lists(probability | st.just(math.nan), min_size=DEPTH, max_size=DEPTH), min_size=SLOTS, max_size=SLOTS
)


@given(
    rounds=st.lists(st.tuples(lanes_of_a_round(), survival_table, table), max_size=6),
    alpha=st.sampled_from([1.0, 0.6, 2.0]),
    source=st.sampled_from([layout.NO_SOURCE, layout.LEARNED, layout.COPY]),
)
def test_estimates_and_tables_are_the_plain_twins_bit_for_bit(rounds, alpha, source):
    arrays, twin = new_arrays(alpha, source), Twin(alpha)
    for lanes, survival, confidence in rounds:
        rows = None if survival is None else np.array(survival)
        joint = None if confidence is None else np.array(confidence, np.float32)
        one_round(arrays, lanes, rows, joint)
        for each in lanes:
            twin.complete(each, survival, joint)
        arrays.kernels.rebuild_acceptance(0, SLOTS, *tables_of(arrays))
    check(arrays, twin)


def tables_of(arrays):
    a = arrays.acceptance
    return arrays.slots, arrays.policy, a.estimates, a.survival, a.yields


@given(rounds=st.lists(st.tuples(lanes_of_a_round(), table), min_size=1, max_size=6))
def test_tables_after_a_completion_are_those_of_a_full_rebuild(rounds):
    arrays = new_arrays(0.6)
    for lanes, confidence in rounds:
        one_round(arrays, lanes, confidence=None if confidence is None else np.array(confidence, np.float32))
    a = arrays.acceptance
    survival, yields = a.survival.copy(), a.yields.copy()
    arrays.kernels.rebuild_acceptance(0, SLOTS, *tables_of(arrays))
    assert same_bits(survival, a.survival)
    assert same_bits(yields, a.yields)


@given(rounds=st.lists(st.tuples(lanes_of_a_round(), survival_table, table), min_size=1, max_size=8))
def test_survival_falls_and_yields_rise_within_their_bounds(rounds):
    arrays = new_arrays()
    for lanes, survival, confidence in rounds:
        rows = None if survival is None else np.array(survival)
        one_round(arrays, lanes, rows, None if confidence is None else np.array(confidence, np.float32))
    a = arrays.acceptance
    weights = a.estimates[..., layout.WEIGHT]
    assert ((weights >= 2.0**-20) & (weights <= 128)).all()
    assert ((a.survival >= 0) & (a.survival <= 1)).all()
    assert (np.diff(a.survival, axis=2) <= 0).all()
    assert (np.diff(a.yields[..., 1:], axis=3) >= 0).all()
    assert (a.yields[..., 1:] <= np.arange(1, DEPTH + 2)).all()
    assert (a.yields[:, :, layout.YIELD_OPTIMISTIC] >= a.yields[:, :, layout.YIELD_RAW]).all()


def test_a_request_starts_from_the_prior_with_weight_two():
    arrays = new_arrays()
    assert arrays.acceptance.estimates[0, layout.COPY, layout.FORECAST].tolist() == [[0.5, 2], [0.25, 2], [0.125, 2]]
    assert arrays.acceptance.yields[0, layout.ACCEPTANCE, layout.YIELD_RAW, 1:].tolist() == [1, 1.5, 1.75, 1.875]


def test_a_rejection_speaks_for_longer_prefixes_and_termination_for_none():
    arrays = new_arrays()
    one_round(arrays, [lane(0, accepted=1, emitted=2), lane(1, accepted=1, emitted=1)])
    rejected = arrays.acceptance.estimates[0, layout.LEARNED, layout.ACCEPTANCE, :, layout.MEAN]
    censored = arrays.acceptance.estimates[1, layout.LEARNED, layout.ACCEPTANCE, :, layout.MEAN]
    assert rejected[0] > 0.5
    assert rejected[1] < 0.25
    assert rejected[2] < 0.125
    assert censored[0] > 0.5
    assert censored[1:].tolist() == [0.25, 0.125]


def test_a_survival_row_replaces_what_was_seen_also_where_it_was_censored():
    arrays = new_arrays()
    one_round(arrays, [lane(0, accepted=1, emitted=1)], survival=np.array([[0.75, 0.5, math.nan]] * SLOTS))
    means = arrays.acceptance.estimates[0, layout.LEARNED, layout.ACCEPTANCE, :, layout.MEAN]
    assert 0.5 < means[0] < 0.75
    assert 0.25 < means[1] < 0.5
    assert means[2] == 0.125


def test_confidence_moves_the_forecast_up_to_the_lanes_ceiling_and_the_prior_by_a_sixty_fourth():
    arrays = new_arrays()
    one_round(arrays, [lane(0, ceiling=3, offered=0)], confidence=np.ones((SLOTS, DEPTH), np.float32))
    assert arrays.acceptance.prior[0].tolist() == [0.5 + 0.5 / 64, 0.25 + 0.75 / 64, 0.125]
    assert arrays.acceptance.estimates[0, 0, layout.FORECAST, :, layout.MEAN].tolist()[2] == 0.125
    assert arrays.acceptance.prior[1].tolist() == [0.5, 0.25, 0.125]


def test_copy_rounds_do_not_teach_the_forecast():
    arrays = new_arrays()
    one_round(arrays, [lane(0, source=layout.COPY)], confidence=np.ones((SLOTS, DEPTH), np.float32))
    assert arrays.acceptance.prior[0].tolist() == [0.5, 0.25, 0.125]
    assert (arrays.acceptance.estimates[0, :, layout.FORECAST, :, layout.MEAN] == [0.5, 0.25, 0.125]).all()


def test_weights_reach_the_cap_of_128_and_stay_there():
    arrays = new_arrays()
    for _ in range(400):
        one_round(arrays, [lane(0)])
    assert arrays.acceptance.estimates[0, 0, layout.ACCEPTANCE, 0, layout.WEIGHT] == 128
    assert arrays.acceptance.survival[0, layout.ACCEPTANCE, 0] < 1e-3


def test_128_tokens_halve_the_weight_of_what_was_not_observed():
    arrays = new_arrays()
    for _ in range(32):
        one_round(arrays, [lane(0, accepted=3, emitted=4)])
    assert arrays.acceptance.estimates[0, layout.COPY, 0, 0, layout.WEIGHT] == pytest.approx(1.0, rel=1e-12)
    assert arrays.acceptance.estimates[0, layout.COPY, 0, 0, layout.MEAN] == 0.5


def test_unobserved_weights_never_fall_to_zero():
    arrays = new_arrays()
    for _ in range(800):
        one_round(arrays, [lane(0, accepted=3, emitted=4)])
    assert arrays.acceptance.estimates[0, layout.COPY, 0, 0, layout.WEIGHT] == 2.0**-20
    assert arrays.acceptance.yields[0, layout.ACCEPTANCE, layout.YIELD_OPTIMISTIC, DEPTH + 1] == DEPTH + 1


def test_a_lane_that_may_not_teach_leaves_every_estimate_alone():
    arrays = new_arrays()
    before = arrays.acceptance.estimates.copy()
    arrays.commit([{"slot": 0, "source": 0, "ceiling": 4}])
    arrays.complete([(0, 0, 3, layout.FAILED)], confidence=np.ones((SLOTS, DEPTH), np.float32))
    assert same_bits(before, arrays.acceptance.estimates)
    assert arrays.slots[0]["emitted"] == 0
    assert arrays.slots[0]["in_flight"] == 0


def test_the_decay_table_is_two_to_the_minus_n_over_128():
    table = decay_table()
    assert table[0] == 1
    assert table[64] == 2.0**-0.5
    assert same_bits(table, [2.0 ** (-n / 128) for n in range(65)])
