"""The policy page in a real browser: a change on trial is opened, kept, rolled back, and taken back by itself."""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime as dt
from typing import Any

import pytest
import sqlalchemy as sa
from playwright.sync_api import Locator, Page, expect

from service.control.guard_watch import GuardWatch
from service.control.policy import PolicyControl
from service.store.tables import policy_guards, policy_versions
from tests.browser.test_every_page import CONTRAST

pytestmark = pytest.mark.browser
PANEL = "#guard-panel"


def field(page: Page, label: str) -> Locator:
    return page.get_by_role("textbox", name=label)


def open_trial(page: Page, address: str) -> None:
    """decade_age_price 0.2 on trial for 15 minutes, with limits that need no hour before."""
    page.goto(f"{address}/dashboard/policy?draft=decode_age_price:0.2")
    expect(page.locator("#policy-diff tbody tr")).to_have_count(1)
    expect(page.locator(PANEL)).to_be_hidden()
    page.get_by_text("Apply on trial, with a way back").click()
    field(page, "First token p99, at most").fill("800 ms")
    field(page, "Inter-token p99, at most").fill("")
    field(page, "Throughput, at least").fill("")
    field(page, "Who").fill("olga")
    field(page, "Note").fill("faster first tokens")
    page.get_by_role("button", name="Apply on trial").click()
    expect(page.locator("#policy-result")).to_contain_text("Version 3 applied, on trial for 15 min")
    expect(page.locator(PANEL)).to_contain_text("Version 3 is on trial")


def rows(store: sa.Engine, table: sa.Table) -> list[dict[str, Any]]:
    with store.connect() as connection:
        return [dict(row) for row in connection.execute(sa.select(table).order_by(table.c.version)).mappings()]


def test_a_trial_is_shown_and_kept_and_its_evidence_stays(
    page: Page, address: str, store: sa.Engine, fake_engine: Any
) -> None:
    open_trial(page, address)
    panel = page.locator(PANEL)
    expect(panel.locator("tbody tr")).to_have_count(1)
    expect(panel.locator("tbody tr")).to_contain_text("at most 800 ms")
    expect(panel).to_contain_text("version 2's values come back")
    expect(page.locator("#policy-history")).to_contain_text("on trial")
    assert page.evaluate(CONTRAST) == []
    field(page, "Decode age price").fill("0.3")
    page.get_by_role("button", name="Apply", exact=True).click()
    expect(page.locator("#policy-result")).to_contain_text("a version is on trial; roll it back or keep it first")
    assert len(rows(store, policy_versions)) == 3
    _is_on_the_overview_too(page, address)
    page.get_by_role("button", name="Keep now").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("nothing takes it back by itself any more")
    dialog.get_by_role("button", name="Keep now").click()
    expect(page.locator("#policy-result")).to_contain_text("The trial is over; version 3 stays in force")
    expect(panel).to_be_hidden()
    assert [row["state"] for row in rows(store, policy_guards)] == ["ended"]
    page.get_by_role("link", name="ended by hand").click()
    expect(page.locator("#trial-3")).to_contain_text("Ended by olga, who kept the version")
    page.reload()
    expect(page.locator("#trial-3 table")).to_be_visible()
    assert [version for version, _ in fake_engine.applied] == [3]


def _is_on_the_overview_too(page: Page, address: str) -> None:
    page.goto(f"{address}/dashboard/")
    expect(page.locator("#trial-place")).to_contain_text("Version 3 is on trial")
    expect(page.locator("#trial-place tbody tr")).to_contain_text("at most 800 ms")
    page.get_by_role("link", name="Roll back or keep it on the policy page").click()
    expect(page.locator(PANEL)).to_contain_text("Version 3 is on trial")


def test_roll_back_now_asks_once_and_restores_the_values_before(
    page: Page, address: str, store: sa.Engine, fake_engine: Any
) -> None:
    open_trial(page, address)
    page.get_by_role("button", name="Roll back now").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Makes a new version with version 2's values at once")
    dialog.get_by_role("button", name="Let the trial go on").click()
    expect(dialog).to_be_hidden()
    assert len(rows(store, policy_versions)) == 3
    page.get_by_role("button", name="Roll back now").click()
    dialog.get_by_role("button", name="Roll back now").click()
    expect(page.locator("#policy-version")).to_contain_text("Version 4 is in force; by olga")
    expect(page.locator(PANEL)).to_be_hidden()
    assert [row["decode_age_price"] for row in rows(store, policy_versions)] == [0.1, 0.4, 0.2, 0.4]
    assert [version for version, _ in fake_engine.applied] == [3, 4]


def watch_until_after_the_trial(store: sa.Engine, engine: Any) -> None:
    """One look of a watcher two hours from now: too little happened to decide."""
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=2)
    control = PolicyControl(store, engine.apply, now=lambda: later)
    watch = GuardWatch(
        control, watcher="test", engine_run=lambda: "run", lag_s=lambda: 0.0, decided=lambda outcome: None
    )

    def look() -> None:  # in a thread of its own, since Playwright keeps an event loop in this one
        asyncio.run(watch.step())

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(look).result()


def test_a_trial_that_is_taken_back_by_itself_is_told_with_its_reason_without_a_reload(
    page: Page, address: str, store: sa.Engine, fake_engine: Any
) -> None:
    open_trial(page, address)
    field(page, "Token fairness").fill("20")
    watch_until_after_the_trial(store, fake_engine)
    expect(page.locator("#policy-version")).to_contain_text("Version 4 is in force; by guard")
    expect(page.locator(PANEL)).to_be_hidden()
    expect(page.locator("#policy-history")).to_contain_text("taken back")
    page.get_by_text("Version 3: taken back").click()
    expect(page.locator("#trial-3")).to_contain_text("It could not be decided")
    page.get_by_role("button", name="Continue on version 4, keeping my edits").click()
    expect(field(page, "Token fairness")).to_have_value("20")
    expect(field(page, "Decode age price")).to_have_value("0.4")
    expect(page.locator("#policy-stale")).to_be_empty()


def test_limits_that_cannot_be_used_say_how_they_are_written(page: Page, address: str, store: sa.Engine) -> None:
    page.goto(f"{address}/dashboard/policy?draft=decode_age_price:0.2")
    expect(page.locator("#policy-apply")).to_be_enabled()
    page.get_by_text("Apply on trial, with a way back").click()
    field(page, "First token p99, at most").fill("800")
    field(page, "Minutes on trial").fill("soon")
    page.get_by_role("button", name="Apply on trial").click()
    form = page.locator(".guard-form")
    expect(form).to_contain_text("say it like “110 %” of the hour before, or “500 ms”")
    expect(form).to_contain_text("must be a number of minutes")
    expect(page.locator(".policy-side")).to_contain_text("Say who you are")
    assert rows(store, policy_guards) == []
