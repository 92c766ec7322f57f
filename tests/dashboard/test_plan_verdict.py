"""Re-execution on the plan page: its verdict in words, and the callback's checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from litestar import Litestar
from litestar.testing import TestClient

from dashboard.pages.plan.meters import duration_meters
from dashboard.pages.plan.verdict import verdict_lines
from service.why.verdicts import Verdict

BEFORE = {"timing_credit_ms": 3.0, "timing_spent_ms": 0.0}
Call = Callable[..., httpx.Response]
Rows = Callable[..., dict[str, Any]]


def text_of(parts: object) -> str:
    if isinstance(parts, list | tuple):
        return " ".join(text_of(part) for part in parts)
    return text_of(parts.children) if hasattr(parts, "children") else str(parts)


def test_the_same_decision_shows_the_ledgers_behind_it() -> None:
    same = Verdict("same", from_fence=40, plans=2, ledgers_after={"timing_credit_ms": 4.0, "timing_spent_ms": 0.0})
    text = text_of(verdict_lines(same, BEFORE))
    assert "the same decision, bit for bit" in text
    assert "behind plan 40; 2 decisions were replayed" in text
    assert "Timing: credit 3.00 ms 4.00 ms" in text
    assert "Timing: spent" not in text, "empty before and after"
    assert "not known yet" in text_of(verdict_lines(Verdict("same", from_fence=1, plans=1), BEFORE))


def test_a_difference_is_listed_and_versions_are_named() -> None:
    found = Verdict("different", None, ("value_rate: 1 against 2",), 13, 40, 1, "0.1", "0.2")
    text = text_of(verdict_lines(found, BEFORE))
    for words in ("it came out differently", "value_rate: 1 against 2", "and 12 more", "version 0.1, replayed by 0.2"):
        assert words in text


@pytest.mark.parametrize(
    ("result", "words"), [("not_replayable", "cannot be re-executed: x"), ("unavailable", "was not re-executed: x")]
)
def test_what_cannot_be_re_executed_says_why(result: str, words: str) -> None:
    assert words in text_of(verdict_lines(Verdict(result, "x"), BEFORE))


@pytest.mark.parametrize(
    ("clicks", "key", "status"),
    [(1, None, 422), (1, {"run_id": "a" * 300, "fence": 1}, 422), (1, {"run_id": "a", "fence": -1}, 422),
     (1, {"run_id": "gone", "fence": 1}, 204), (None, None, 204), (1, "x", 422)],
)  # fmt: skip
def test_only_plans_of_the_store_are_re_executed(
    client: TestClient[Litestar], call: Call, clicks: object, key: object, status: int
) -> None:
    answer = call(client, ["plan-verdict.children"], {"plan-reexecute.n_clicks": clicks}, {"plan-key.data": key})
    assert answer.status_code == status, json.dumps(key)


def test_durations_are_compared_on_one_scale(plan_row: Rows) -> None:
    times = {"wall_ms": 20.0, "exposed_delivery_ms": 0.0}
    text = text_of(duration_meters(plan_row(**times)))
    assert "9.00 ms were predicted; the device took 10.0 ms: 11 % longer." in text
    assert "Wall time  20.0 ms" in text.replace("None", "")
    assert "nothing was predicted" in text_of(duration_meters(plan_row(**times, cost_state="unknown")))
    assert "was not observed" in text_of(duration_meters(plan_row(**times, device_ms=None, outcome="lost")))
