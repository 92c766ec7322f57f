"""`helios bench plan`: what it prints."""

from __future__ import annotations

import json

COLUMNS = ["allocation", "requests", "probe", "median_us", "p99_us", "plans", "distinct_plans", "candidates"]


def test_every_combination_of_allocation_size_and_probe_is_a_row(helios):
    sizes = ("--requests", 3, "--requests", 9, "--requests", 3)
    answer = helios("bench", "plan", "--plans", 4, *sizes, "--no-growth", "--json")
    assert answer.exit_code == 0, answer.output
    document = json.loads(answer.output)
    assert [list(row) for row in document["rows"]] == [COLUMNS] * 8
    found = {(row["allocation"], row["requests"], row["probe"]) for row in document["rows"]}
    assert found == {(a, n, p) for a in ("device", "host") for n in (3, 9) for p in (False, True)}
    ordinary = [row for row in document["rows"] if not row["probe"]]
    assert all(row["plans"] == 4 and 0 < row["median_us"] <= row["p99_us"] and row["candidates"] for row in ordinary)
    assert [row["from"] for row in document["growth"]] == [3, 3]


def test_the_tables_name_the_machine_and_the_published_figures(helios):
    answer = helios("bench", "plan", "--plans", 2, "--requests", 8, "--no-growth")
    assert answer.exit_code == 0, answer.output
    assert "published_us" in answer.output
    assert "cores, Python" in answer.output
