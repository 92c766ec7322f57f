"""`helios bench trace`: every way in every round, and what is printed."""

from __future__ import annotations

import json

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

RATIOS = {"throughput_ratio", "gap_p99_ratio", "engine_ratio"}


def test_every_way_is_measured_in_every_round(helios):
    ways = ["tracing off", "SQL only", "everything on", "database and collector down"]
    answer = helios("bench", "trace", "--pairs", 1, "--seconds", 0.3, "--json")
    assert answer.exit_code == 0, answer.output
    document = json.loads(answer.output)
    assert [row["way"] for row in document["rows"]] == ways
    assert [len(own) for own in document["rounds"]] == [1] * len(ways)
    for row in document["rows"]:
        assert row["pairs"] == 1
        assert row["tokens_per_s"] > 0
        assert {name: set(row[name]) for name in RATIOS} == {name: {"median", "low", "high"} for name in RATIOS}
    assert document["rows"][0]["throughput_ratio"]["median"] == 1.0
    assert document["plan"]["rate"] == 200.0
