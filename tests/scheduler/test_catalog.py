from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import Catalog, CostState, GraphKind, GraphShape
from scheduler.catalog import MAX_DURATION_NS
from scheduler.errors import InvalidCatalog, InvalidObservation, InvalidShape
from scheduler.shapes import parse_shape_filter

DECODE = GraphShape(GraphKind.DECODE, 4)
TTL = 1_000


def catalog():
    return Catalog([DECODE], ttl_ns=TTL)


def test_every_graph_starts_unknown():
    estimate = catalog().estimate(DECODE, 0)
    assert (estimate.duration_ns, estimate.observed_ns, estimate.state) == (0, None, CostState.UNKNOWN)
    assert not estimate.known


def test_the_first_sample_sets_the_estimate():
    c = catalog()
    assert c.observe(DECODE, 70, 5).duration_ns == 70
    assert c.estimate(DECODE, 5).state is CostState.FRESH


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=40))
def test_fresh_samples_give_the_median_of_the_last_nine(samples):
    c = catalog()
    for i, sample in enumerate(samples):
        c.observe(DECODE, sample, i)
    assert c.estimate(DECODE, len(samples)).duration_ns == int(statistics.median(samples[-9:]))


def test_an_estimate_turns_stale_after_its_time_but_stays_known():
    c = catalog()
    c.observe(DECODE, 70, 0)
    assert c.estimate(DECODE, TTL).state is CostState.FRESH
    stale = c.estimate(DECODE, TTL + 1)
    assert (stale.state, stale.duration_ns, stale.known) == (CostState.STALE, 70, True)


def test_the_first_sample_of_a_stale_graph_replaces_the_estimate():
    c = catalog()
    for at in range(5):
        c.observe(DECODE, 70, at)
    assert c.observe(DECODE, 500, 5 + TTL).duration_ns == 500


def test_a_missing_duration_changes_nothing_and_freshens_nothing():
    c = catalog()
    c.observe(DECODE, 70, 0)
    c.observe(DECODE, 0, TTL + 1)
    assert c.estimate(DECODE, TTL + 1).state is CostState.STALE


@pytest.mark.parametrize("duration", [-1, 1.5, True, None, float("nan"), MAX_DURATION_NS + 1])
def test_impossible_durations_are_refused(duration):
    c = catalog()
    with pytest.raises(InvalidObservation):
        c.observe(DECODE, duration, 0)
    assert c.estimate(DECODE, 0).state is CostState.UNKNOWN


def test_an_empty_catalog_and_a_doubled_shape_are_refused():
    with pytest.raises(InvalidCatalog, match="no graph"):
        Catalog([])
    with pytest.raises(InvalidCatalog, match="decode:B4 twice"):
        Catalog([DECODE, DECODE])
    with pytest.raises(InvalidCatalog, match="not in the catalog"):
        catalog().estimate(GraphShape(GraphKind.DECODE, 8), 0)


def test_target_rows_are_filled_in_for_generation_graphs_only():
    assert DECODE.target_rows == 4
    assert GraphShape(GraphKind.SPECULATIVE, 4, 3, 4).target_rows == 16
    assert GraphShape(GraphKind.PREFILL, 1, prefill_capacity=64).target_rows == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"kind": GraphKind.DECODE, "batch_capacity": 0},
        {"kind": GraphKind.DECODE, "batch_capacity": True},
        {"kind": GraphKind.DECODE, "batch_capacity": 4, "draft_depth": 2},
        {"kind": GraphKind.DECODE, "batch_capacity": 4, "prefill_capacity": 64},
        {"kind": GraphKind.PREFILL, "batch_capacity": 1},
        {"kind": GraphKind.SPECULATIVE, "batch_capacity": 2, "target_width": 4, "target_rows": 9},
        {"kind": GraphKind.SNAPSHOT, "batch_capacity": 1, "target_rows": 1},
    ],
)
def test_contradictory_shapes_are_refused(arguments):
    with pytest.raises(InvalidShape):
        GraphShape(**arguments)


def test_labels_can_be_read_back_as_filters():
    assert parse_shape_filter("decode:B4") == {"kind": "decode", "batch_capacity": 4}
    assert parse_shape_filter("prefill:C256") == {"kind": "prefill", "prefill_capacity": 256}
    assert GraphShape(GraphKind.PREFILL, 1, prefill_capacity=256).label == "prefill:B1:C256"
    for bad in ("nope", "decode:4", "decode:B", "decode:B٤", "decode:B4:"):
        with pytest.raises(InvalidShape, match="write for example"):
            parse_shape_filter(bad)
