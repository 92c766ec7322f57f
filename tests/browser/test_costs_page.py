"""The Costs page in a browser."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import sqlalchemy as sa
from factories import fill_store
from plain_minutes import write_minutes
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser


@pytest.fixture
def pages(store: sa.Engine, fake_engine: Any, serve: Callable[..., AbstractContextManager[str]]) -> Iterator[str]:
    fill_store(store, started_at=dt.datetime.now(dt.UTC) - dt.timedelta(minutes=2))
    write_minutes(store)
    with serve(store, fake_engine) as address:
        yield address


def test_a_cell_of_the_map_opens_its_graphs_history(page: Page, pages: str) -> None:
    page.goto(f"{pages}/dashboard/costs")
    cell = page.locator("#costs-maps .heat-cell", has_text=re.compile("ms")).first
    name = (cell.get_attribute("title") or "").rpartition(": ")[0].partition(": ")[0]
    cell.click()
    expect(page).to_have_url(re.compile("graph="))
    expect(page.locator("#costs-chosen")).to_have_text(f"How {name} went")
    expect(page.locator("#costs-drift .scatterlayer .trace").first).to_be_attached()
    expect(page.locator("#costs-errors .scatterlayer .trace").first).to_be_attached()
    expect(page.locator("#costs-maps .here")).to_have_count(1)
    page.locator("#costs-grid").scroll_into_view_if_needed()
    expect(page.locator("#costs-grid .ag-row").first).to_be_visible()


def test_another_run_has_costs_of_its_own(page: Page, pages: str) -> None:
    page.goto(f"{pages}/dashboard/costs")
    page.locator("#costs-run").click()
    page.get_by_role("option").last.click()
    expect(page).to_have_url(re.compile(r"run=run-\w+-0001"))
    expect(page.locator("#costs-run")).to_have_value(re.compile("-0001"))
    page.go_back()
    expect(page.locator("#costs-run")).to_have_value(re.compile("-0002"))
