"""The plan page in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import sqlalchemy as sa
from factories import FilledStore
from playwright.sync_api import Browser, Page, expect

from dashboard.pages import plan as plan_pages
from service.store.tables import plan_alternatives, plans
from service.why.verdicts import ReExecution, Verdict

pytestmark = pytest.mark.browser


def a_contested_plan(store: sa.Engine) -> tuple[str, int]:
    """An ordinary plan with a free runner-up in its own unit."""
    joined = plans.join(
        plan_alternatives, (plans.c.run_id == plan_alternatives.c.run_id) & (plans.c.fence == plan_alternatives.c.fence)
    )
    query = (
        sa.select(plans.c.run_id, plans.c.fence)
        .select_from(joined)
        .where(
            plans.c.reason == "ordinary",
            plan_alternatives.c.barred_by == "none",
            plans.c.score_kind == plan_alternatives.c.score_kind,
        )
        .order_by(plans.c.fence.desc())
        .limit(1)
    )
    with store.connect() as connection:
        run, fence = connection.execute(query).one()
    return run, fence


def test_it_says_in_words_why_the_plan_was_chosen_and_shows_the_runner_ups(
    page: Page, address: str, store: sa.Engine, filled: FilledStore
) -> None:
    run, fence = a_contested_plan(store)
    page.goto(f"{address}/dashboard/plan/{run}/{fence}")
    expect(page.locator("#plan-headline")).to_contain_text("was chosen over")
    expect(page.locator("#plan-headline")).to_contain_text("per ms against")
    expect(page.locator("#plan-alternatives .ag-row").first).to_contain_text("behind")
    expect(page.locator("#plan-lanes .ag-row").first).to_contain_text("req-")
    expect(page.locator(".parts-graph .bars .point").first).to_be_attached()
    expect(page.locator(".number-group").get_by_text("B: request rows")).to_be_visible()


def test_next_and_previous_walk_the_run(page: Page, address: str, filled: FilledStore) -> None:
    run = filled.run_ids[1]
    page.goto(f"{address}/dashboard/plan/{run}/1")
    expect(page.locator("h1")).to_contain_text("Plan 1:")
    assert page.get_by_role("link", name="Previous").count() == 0
    page.get_by_role("link", name="Next").click()
    expect(page.locator("h1")).to_contain_text("Plan 2:")
    page.get_by_role("link", name="Previous").click()
    expect(page.locator("h1")).to_contain_text("Plan 1:")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("plan/{run}/999999", "has no plan 999,999"),
        ("plan/no-such-run/1", "No plan of this run is stored"),
        ("plan/%3Cb%3Ebold/1", "Run <b>bold has no plan"),
    ],
)
def test_an_unknown_plan_has_a_page_that_says_so(
    page: Page, address: str, filled: FilledStore, path: str, words: str
) -> None:
    page.goto(f"{address}/dashboard/{path.format(run=filled.run_ids[0])}")
    expect(page.locator("h1")).to_have_text("No such plan")
    expect(page.locator("main")).to_contain_text(words)


def test_lost_and_running_plans_say_what_became_of_them(page: Page, address: str, filled: FilledStore) -> None:
    run, fence = filled.lost[0]
    page.goto(f"{address}/dashboard/plan/{run}/{fence}")
    expect(page.locator("main")).to_contain_text("the engine died while it ran")
    run, fence = filled.in_flight[0]
    page.goto(f"{address}/dashboard/plan/{run}/{fence}")
    expect(page.locator("main")).to_contain_text("It is still running")


def test_terms_are_explained_and_runner_ups_counted(
    page: Page, address: str, store: sa.Engine, filled: FilledStore
) -> None:
    run, fence = a_contested_plan(store)
    page.goto(f"{address}/dashboard/plan/{run}/{fence}")
    page.get_by_text("What the terms mean").click()
    for term in ("Sigma", "Lane value", "Undivided", "Common scale", "Margin", "Rank", "Wait cost"):
        expect(page.locator("#plan-glossary")).to_contain_text(term)
    expect(page.locator("dt", has_text="Margin").first).to_have_attribute("title", re.compile("runner-up"))
    expect(page.locator("main")).to_contain_text("recorded, here by score")
    expect(page.locator("main")).to_contain_text("no exploration ledgers yet")


def test_a_request_leads_to_its_life(page: Page, address: str, filled: FilledStore) -> None:
    run, fence = filled.plan_keys[-20]
    page.goto(f"{address}/dashboard/plan/{run}/{fence}")
    link = page.locator("#plan-lanes .ag-row a").first
    name = link.inner_text()
    link.click()
    page.wait_for_url(f"**/dashboard/requests/{run}/{name}")
    expect(page.locator("main")).to_contain_text(name)


def test_brackets_walk_to_the_neighbours(page: Page, address: str, filled: FilledStore) -> None:
    run = filled.run_ids[1]
    page.goto(f"{address}/dashboard/plan/{run}/5")
    expect(page.get_by_role("link", name="Next")).to_be_visible()
    for key, fence in (("]", 6), ("]", 7), ("[", 6)):
        page.keyboard.press(key)
        expect(page.locator("h1")).to_contain_text(f"Plan {fence}:")
        expect(page.locator("#plan-lanes .ag-row").first).to_be_attached()


def test_barred_candidates_say_why_and_durations_are_compared(
    page: Page, address: str, store: sa.Engine, filled: FilledStore
) -> None:
    barred = sa.select(plan_alternatives.c.run_id, plan_alternatives.c.fence)
    with store.connect() as connection:
        run, fence = connection.execute(barred.where(plan_alternatives.c.barred_by == "unmeasured").limit(1)).one()
    page.goto(f"{address}/dashboard/plan/{run}/{fence}")
    expect(page.locator("#plan-barred")).to_contain_text("barred: never measured")
    run, fence = a_contested_plan(store)
    page.goto(f"{address}/dashboard/plan/{run}/{fence}")
    expect(page.locator(".plan-meters")).to_contain_text("Observed on the device")
    expect(page.locator("main")).to_contain_text("were predicted")


def test_the_plan_is_found_in_the_timeline(page: Page, address: str, filled: FilledStore) -> None:
    run, fence = filled.plan_keys[-20]
    page.goto(f"{address}/dashboard/plan/{run}/{fence}")
    page.get_by_role("link", name="In time").click()
    page.wait_for_url(re.compile("timeline.*since="))
    expect(page.locator("#timeline-grid")).to_contain_text(str(fence))


class Replayed(ReExecution):
    """Answers without a process."""

    async def verdict(self, database: str, run_id: str, fence: int) -> Verdict:
        ledgers = {"timing_credit_ms": 12.5, "discovery_ms": 0.0}
        return Verdict("same", None, from_fence=fence - 3, plans=3, ledgers_after=ledgers)


def test_a_decision_is_re_executed_when_somebody_asks(
    page: Page,
    store: sa.Engine,
    filled: FilledStore,
    fake_engine: Any,
    serve: Callable[..., AbstractContextManager[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan_pages, "ReExecution", Replayed)
    run, fence = filled.plan_keys[-20]
    with serve(store, fake_engine) as address:
        page.goto(f"{address}/dashboard/plan/{run}/{fence}")
        button = page.get_by_role("button", name="Re-execute this decision")
        button.click()
        verdict = page.locator("#plan-verdict")
        expect(verdict).to_contain_text("the same decision, bit for bit (shape, lanes, score, runner-ups), from the")
        expect(verdict).to_contain_text(f"behind plan {fence - 3}; 3 decisions were replayed")
        expect(verdict.locator("table")).to_contain_text("Timing: credit0 ms12.5 ms")
        expect(button).to_be_enabled()
        page.goto("about:blank")


def test_an_unknown_address_has_a_page_with_a_way_back(browser: Browser, address: str) -> None:
    page = browser.new_page()
    answer = page.goto(f"{address}/dashboard/nope")
    assert answer is not None
    assert answer.status == 404
    page.get_by_role("link", name="Go to the overview").click()
    page.wait_for_url(f"{address}/dashboard/")
    page.close()
