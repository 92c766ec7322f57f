"""The comparison's arithmetic: medians over the rounds, and ratios within them."""

from __future__ import annotations

import pytest

from service.load.server import Options, catalog_csv
from service.load.trace_cost import Sample, Way, rows, traced_ways
from service.measurements import parse_catalog

WAYS = (Way("off", Options()), Way("on", Options()))


def sample(tokens, gap, engine=100.0):
    return Sample(tokens, tokens / 8, gap / 2, gap, engine)


def test_ratios_are_taken_within_a_round():
    """The machine slows down tenfold from the first round to the last; the ratio stays."""
    off = [sample(1000 / n, 5.0 * n, 100 * n) for n in range(1, 11)]
    on = [sample(990 / n, 6.0 * n, 150 * n) for n in range(1, 11)]
    first, second = rows(WAYS, [off, on])
    assert first["throughput_ratio"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert second["throughput_ratio"] == {"median": 0.99, "low": 0.99, "high": 0.99}
    assert second["gap_p99_ratio"] == {"median": 1.2, "low": 1.2, "high": 1.2}
    assert second["engine_ratio"]["median"] == 1.5
    assert (second["way"], second["pairs"], second["gap_p99_ms"]) == ("on", 10, 33.0)


def test_few_rounds_give_a_median_and_no_interval():
    found = rows(WAYS, [[sample(8.0, 5.0)] * 5, [sample(4.0, 5.0)] * 5])
    assert found[1]["throughput_ratio"] == {"median": 0.5, "low": None, "high": None}


def test_the_ways_differ_in_what_they_trace_alone():
    off, sql, everything, down = traced_ways(200.0, 8, "http://127.0.0.1:1")
    assert [way.options.tracing for way in (off, sql, everything, down)] == [False, True, True, True]
    assert [way.options.recorder for way in (off, sql, everything, down)] == [False, True, True, True]
    assert [bool(way.options.otlp_endpoint) for way in (off, sql, everything, down)] == [False, False, True, True]
    assert [way.catches_up for way in (off, sql, everything, down)] == [True, True, True, False]
    assert {(way.options.plans_per_s, way.options.lanes) for way in (off, sql, everything, down)} == {(200.0, 8)}
    assert down.options.database.startswith("postgresql://")


@pytest.mark.parametrize("lanes", [1, 3, 8, 64])
def test_the_catalog_has_a_decode_graph_for_all_lanes_which_takes_the_time_asked_for(lanes):
    table = parse_catalog(catalog_csv(lanes), "catalog")
    decodes = {extent.batch: curve for extent, curve in table.curves.items() if extent.kind.value == "decode"}
    assert max(decodes) == lanes
    assert decodes[lanes].at(0) == 50.0
    assert all(curve.at(0) <= 50.0 for curve in decodes.values())
