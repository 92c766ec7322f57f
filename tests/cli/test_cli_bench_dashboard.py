"""`helios bench dashboard`: a real browser looks at every page of a served store; a missing one is said."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest

from service.load import browser as browser_module
from service.load.page_times import Sample, View, rows


def test_a_row_has_medians_and_maxima_of_cold_and_warm() -> None:
    view = View("page", "/dashboard/", "main", "main", "a click", "1", "true")
    samples = [
        Sample("page", warm, first, 2 * first, 3 * first, 4 * first)
        for warm, times in ((False, (10, 30, 20)), (True, (1, 2, 9)))
        for first in times
    ]
    (row,) = rows([view], samples)
    assert (row["first_paint_cold_p50_ms"], row["first_paint_cold_max_ms"]) == (20, 30)
    assert (row["useful_warm_p50_ms"], row["complete_warm_max_ms"]) == (4, 27)
    assert (row["interaction_p50_ms"], row["interaction_max_ms"]) == (36, 120)


def test_without_a_browser_it_says_what_to_install(helios: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser_module, "NAMES", ("no-such-browser",))
    answer = helios("bench", "dashboard", "--plans", 2000)
    assert answer.exit_code == 1
    assert "install one" in answer.output


def test_without_playwright_it_says_what_to_install(helios: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    answer = helios("bench", "dashboard", "--plans", 2000, "--chromium", "chromium")
    assert answer.exit_code == 1
    assert "pip install playwright" in answer.output


@pytest.mark.browser
@pytest.mark.e2e
def test_pages_are_opened_cold_and_warm(helios: Any, chromium_path: str) -> None:
    only = ("--page", "plan")
    answer = helios("bench", "dashboard", "--plans", 2000, "--rounds", 1, *only, "--chromium", chromium_path, "--json")
    assert answer.exit_code == 0, answer.output
    document = json.loads(answer.output)
    assert document["plans"] == 2000
    assert [row["page"] for row in document["rows"]] == ["plan"]
    for row in document["rows"]:
        assert 0 < row["first_paint_cold_p50_ms"] <= row["useful_cold_max_ms"] <= row["complete_cold_max_ms"]
        assert row["interaction_p50_ms"] > 0
