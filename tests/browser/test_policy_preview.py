"""The policy page in a real browser: a draft in the address, tried on recorded traffic in a process of its own."""

from __future__ import annotations

import re

import pytest
import sqlalchemy as sa
from playwright.sync_api import Locator, Page, expect

from service.store.tables import policy_attempts, policy_versions
from tests.browser.test_every_page import CONTRAST

pytestmark = pytest.mark.browser


def open_policy(page: Page, address: str, query: str = "") -> None:
    page.goto(f"{address}/dashboard/policy{query}")
    expect(page.locator("#policy-history .ag-row").first).to_be_visible()


def field(page: Page, label: str) -> Locator:
    return page.get_by_role("textbox", name=label)


def query_of(page: Page) -> str:
    return page.evaluate("window.location.search")


def count(store: sa.Engine, table: sa.Table) -> int:
    with store.connect() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def test_the_address_holds_the_draft_and_gives_it_to_whoever_opens_it(page: Page, address: str) -> None:
    open_policy(page, address)
    field(page, "Decode age price").fill("0.7")
    field(page, "Token fairness").fill("20")
    expect(page.locator("#policy-diff tbody tr")).to_have_count(2)
    page.wait_for_function("() => window.location.search === '?draft=token_fairness:20,decode_age_price:0.7'")
    field(page, "Token fairness").fill("many")  # the address keeps the last draft that could be used
    expect(page.locator("#policy-diff")).to_contain_text("1 entry cannot be used")
    sent = page.url
    page.goto("about:blank")
    page.goto(sent)
    expect(page.locator("#policy-diff tbody tr")).to_have_count(2)
    expect(field(page, "Decode age price")).to_have_value("0.7")
    expect(field(page, "Token fairness")).to_have_value("20")
    expect(page.locator("#policy-apply")).to_be_enabled()
    page.get_by_role("button", name="Reset the form").click()
    expect(field(page, "Token fairness")).to_have_value("16")
    page.wait_for_function("() => window.location.search === ''")


def test_what_of_an_address_cannot_be_used_is_told_as_text(page: Page, address: str) -> None:
    odd = "?draft=token_fairness:20,<img src=x onerror=alert(1)>:1,decode_age_price:-1"
    open_policy(page, address, odd)
    expect(page.locator(".policy-side")).to_contain_text("<img src=x onerror=alert(1)>:1, decode_age_price:-1")
    expect(page.locator("main img")).to_have_count(0)
    expect(field(page, "Token fairness")).to_have_value("20")
    expect(field(page, "Decode age price")).to_have_value("0.4")


def test_a_preview_runs_beside_the_server_and_stays_at_its_address(page: Page, address: str, store: sa.Engine) -> None:
    before = count(store, policy_versions), count(store, policy_attempts)
    open_policy(page, address, "?draft=decode_age_price:0.2")
    expect(page.locator("#policy-diff tbody tr")).to_have_count(1)
    page.get_by_text("Sweep one or two coefficients").click()
    page.locator("#sweep-first").click()
    page.get_by_role("option", name="Token fairness").click()
    expect(page.locator("#sweep-first-values")).to_have_value("4, 8, 16, 32, 64")
    page.locator("#sweep-first-values").fill("8, 32")
    page.get_by_role("button", name="Preview the draft").click()
    expect(page.locator("#preview-message")).to_contain_text("Done", timeout=60_000)
    result = page.locator("#preview-result")
    expect(result).to_contain_text("Against version 2: decode_age_price 0.4 → 0.2")
    expect(result.locator(".trust-words")).to_contain_text("really happened")
    expect(result).to_contain_text("Under the draft: ")
    expect(result.get_by_role("columnheader")).to_contain_text(["really happened", "policy in force, simulated"])
    expect(page.locator("#preview-first-token .scatterlayer .trace")).to_have_count(3)
    assert (count(store, policy_versions), count(store, policy_attempts)) == before
    assert page.evaluate(CONTRAST) == []
    page.set_viewport_size({"width": 360, "height": 800})
    page.wait_for_function("() => document.documentElement.scrollWidth <= 360")  # once the charts have followed
    page.set_viewport_size({"width": 1280, "height": 800})
    _use_a_point(page)
    assert re.search(r"preview=[0-9a-f]{24}", query_of(page))
    page.reload()
    expect(result).to_contain_text("Against version 2: decode_age_price 0.4 → 0.2")
    expect(field(page, "Token fairness")).to_have_value("32")
    page.get_by_text("Earlier previews").click()
    page.get_by_role("link", name="decode_age_price 0.4 → 0.2 (done)").click()
    expect(field(page, "Token fairness")).to_have_value("16")
    expect(result).to_contain_text("Against version 2: decode_age_price 0.4 → 0.2")


def _use_a_point(page: Page) -> None:
    """The sweep's other axes can be chosen, and a point becomes the draft."""
    graph = page.locator("#sweep-graph")
    expect(graph).to_contain_text("first token p99")
    page.locator("#sweep-y").click()
    page.get_by_role("option", name="inter-token p99").click()
    expect(graph.locator(".ytitle")).to_contain_text("inter-token p99")
    page.get_by_role("button", name="Use 32 in the draft").click()
    expect(field(page, "Token fairness")).to_have_value("32")
    expect(field(page, "Decode age price")).to_have_value("0.2")
    page.wait_for_function("() => window.location.search.includes('draft=token_fairness:32,decode_age_price:0.2')")


def test_a_preview_can_be_cancelled(page: Page, address: str) -> None:
    open_policy(page, address, "?draft=decode_age_price:0.2")
    page.get_by_role("button", name="Preview the draft").click()
    page.get_by_role("button", name="Cancel", exact=True).click()
    expect(page.locator("#preview-message")).to_contain_text("Cancelled")
    expect(page.locator("#preview-progress")).to_be_hidden()
    expect(page.get_by_role("button", name="Preview the draft")).to_be_enabled()


def test_entries_of_a_preview_that_cannot_be_used_say_so_and_start_nothing(page: Page, address: str) -> None:
    open_policy(page, address)
    field(page, "Minutes of traffic").fill("-3")
    field(page, "up to (UTC)").fill("yesterday")
    page.get_by_role("button", name="Preview the draft").click()
    expect(page.locator(".preview")).to_contain_text("must be a number of minutes")
    expect(page.locator(".preview")).to_contain_text("must be a time like")
    expect(page.locator("#preview-message")).to_be_hidden()
    field(page, "Minutes of traffic").fill("5")
    field(page, "up to (UTC)").fill("2020-01-01 00:00")
    page.get_by_role("button", name="Preview the draft").click()
    expect(page.locator("#preview-problem")).to_contain_text("no plan was recorded in this window")


def test_a_preview_that_is_not_there_any_more_is_said(page: Page, address: str) -> None:
    open_policy(page, address, "?preview=0123456789abcdef01234567")
    expect(page.locator("#preview-message")).to_contain_text("This preview cannot be shown")
