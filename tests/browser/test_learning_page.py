"""The Learning page in a browser."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import sqlalchemy as sa
from life_cases import Case
from plain_minutes import write_minutes
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser


@pytest.fixture
def pages(store: sa.Engine, fake_engine: Any, serve: Callable[..., AbstractContextManager[str]]) -> Iterator[str]:
    """A run with rounds of drafts, a discovered graph and a probe of each ledger."""
    case = Case(at=dt.datetime.now(dt.UTC) - dt.timedelta(minutes=3))
    drafts = {"offered_tokens": 3, "accepted_tokens": 2, "proposal_source": "learned", "expected_tokens": 2.8}
    speculative = {"draft_depth": 3, "target_width": 4, "offered_tokens": 3, "accepted_tokens": 2}
    case.plan(0, 9, {"a": drafts}, "speculative", **speculative, reason="discovery", cost_state="unknown")
    ledgers: dict[str, float] = {"timing_ordinary_ms": 9000.0, "acceptance_ordinary_ms": 9000.0}
    for number in range(1, 20):
        reason = {6: "timing_refresh", 12: "acceptance_learning"}.get(number, "ordinary")
        values = {**speculative, **ledgers, "reason": reason, "exploration_credit_ms": 5.0 * (reason != "ordinary")}
        case.plan(20 * number, 20 * number + 9, {"a": drafts}, "speculative", **values)
        if reason != "ordinary":
            ledgers[f"{reason.partition('_')[0]}_spent_ms"] = 9.5
    case.write(store)
    write_minutes(store)
    with serve(store, fake_engine) as address:
        yield address


def test_what_was_learned_what_it_cost_and_what_it_bought(page: Page, pages: str) -> None:
    page.goto(f"{pages}/dashboard/learning")
    expect(page.locator("#learning-depth .barlayer .point").first).to_be_attached()
    expect(page.locator("#learning-reliability .scatterlayer .trace").first).to_be_attached()
    expect(page.get_by_role("meter")).to_have_count(2)
    expect(page.get_by_role("meter").first).to_have_attribute("aria-valuenow", re.compile(r"^\d+$"))
    expect(page.locator("#learning-bounds")).to_contain_text("9.50 ms charged of 27.5 ms allowed")
    expect(page.locator("#learning-spent .scatterlayer .trace").first).to_be_attached()
    expect(page.locator("#learning-exploring .barlayer .point").first).to_be_attached()
    expect(page.locator("#learning-bought")).to_contain_text("1 graph was measured for the first time")
    page.locator("#learning-episodes").scroll_into_view_if_needed()
    expect(page.locator("#learning-episodes .ag-row")).to_have_count(2)
    page.locator("#learning-graphs").get_by_role("link").first.click()
    expect(page).to_have_url(re.compile(r"/dashboard/costs\?.*graph=speculative"))
    expect(page.locator("#costs-chosen")).to_contain_text("How speculative:B1")
