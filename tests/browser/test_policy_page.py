"""The policy page in a real browser: every change goes to SQL and to the engine, or nowhere."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any

import pytest
import sqlalchemy as sa
from playwright.sync_api import Locator, Page, expect
from waiting import wait_in_page

from scheduler.policy import COEFFICIENTS
from service.control.policy import PolicyControl
from service.ipc.errors import EngineUnavailable
from service.store.tables import policy_versions

pytestmark = pytest.mark.browser


def open_policy(page: Page, address: str) -> None:
    page.goto(f"{address}/dashboard/policy")
    expect(page.locator("#policy-history .ag-row").first).to_be_visible()
    expect(page.locator("#policy-diff")).to_contain_text("No difference")


def field(page: Page, label: str) -> Locator:
    return page.get_by_role("textbox", name=label)


def sign(page: Page, who: str = "olga", note: str = "from the test") -> None:
    page.locator("#policy-actor").fill(who)
    page.locator("#policy-note").fill(note)


def apply(page: Page) -> None:
    expect(page.locator("#policy-apply")).to_be_enabled()
    page.locator("#policy-apply").click()


def versions(store: sa.Engine) -> list[dict[str, Any]]:
    with store.connect() as connection:
        rows = connection.execute(sa.select(policy_versions).order_by(policy_versions.c.version)).mappings()
        return [dict(row) for row in rows]


def somebody_else_changes(store: sa.Engine, **coefficients: float) -> None:
    async def accept(version: int, values: dict[str, Any]) -> int:
        return 1

    control = PolicyControl(store, accept)

    def change() -> None:  # in a thread of its own, since Playwright keeps an event loop in this one
        asyncio.run(control.change(expected_version=2, coefficients=coefficients, actor="boris", note="urgent"))

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(change).result()


def test_the_preset_interactive_is_one_choice_and_its_group_is_open_once_it_is_in_force(
    page: Page, address: str, store: sa.Engine
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    open_policy(page, address)
    cadence = page.locator(".coefficient", has_text="decode_cadence").get_by_role("textbox")
    expect(page.get_by_role("heading", name="Prompts and gaps")).to_be_visible()
    expect(cadence).to_be_hidden()
    page.locator("#policy-preset").click()
    page.get_by_role("option", name="interactive").click()
    expect(page.locator("#policy-diff")).to_contain_text("prompt_wait_price")
    sign(page)
    apply(page)
    expect(page.locator("#policy-version")).to_contain_text("preset interactive")
    newest = versions(store)[-1]
    assert (newest["preset"], newest["prompt_wait_price"], newest["decode_cadence"]) == ("interactive", 1000.0, "on")
    page.reload()
    expect(cadence).to_be_visible()
    expect(page.locator(".coefficient", has_text="token_budget").get_by_role("textbox")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_budget_is_a_preset_with_a_number(page: Page, address: str, store: sa.Engine) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    open_policy(page, address)
    number = page.locator("#policy-budget")
    expect(number).to_be_hidden()
    field(page, "Token fairness").fill("3")
    page.locator("#policy-preset").click()
    page.get_by_role("option", name="budget:N").click()
    expect(page.locator("#policy-diff")).to_contain_text("token_budget0512")
    expect(field(page, "Token fairness")).to_have_value("16")
    for wrong in ("0", "many"):
        number.fill(wrong)
        expect(page.get_by_text("must be a whole number from 1 to 1,048,576")).to_be_visible()
    expect(page.locator("#policy-diff")).to_contain_text("token_budget0512")
    number.fill("768")
    expect(page.locator("#policy-diff")).to_contain_text("token_budget0768")
    sign(page)
    apply(page)
    expect(page.locator("#policy-version")).to_contain_text("preset budget:768")
    newest = versions(store)[-1]
    assert (newest["preset"], newest["token_budget"], newest["token_fairness"]) == ("budget:768", 768, 16.0)
    expect(number).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_every_coefficient_has_a_labelled_field_with_meaning_and_unit(page: Page, address: str) -> None:
    open_policy(page, address)
    for summary in page.locator(".further-group > summary").all():
        summary.click()
    assert page.locator(".coefficient").count() == len(COEFFICIENTS)
    for coefficient in COEFFICIENTS:
        entry = page.locator(".coefficient", has_text=coefficient.name)
        expect(entry.first).to_contain_text(coefficient.meaning)
        name = entry.first.get_by_role("textbox").first.get_attribute("aria-label")
        assert name


def test_a_change_becomes_a_version_and_reaches_the_engine_once(
    page: Page, address: str, store: sa.Engine, fake_engine: Any
) -> None:
    open_policy(page, address)
    field(page, "Decode age price").fill("0.7")
    expect(page.locator("#policy-diff")).to_contain_text("decode_age_price")
    sign(page)
    apply(page)
    expect(page.locator("#policy-result")).to_contain_text("Version 3 applied")
    expect(page.locator("#policy-version")).to_contain_text("Version 3 is in force; by olga")
    expect(page.locator("#policy-history .ag-row[row-index='0']")).to_contain_text("decode_age_price 0.4 → 0.7")
    expect(page.locator("#policy-diff")).to_contain_text("No difference")
    newest = versions(store)[-1]
    assert (newest["version"], newest["state"], newest["decode_age_price"]) == (3, "applied", 0.7)
    assert (newest["actor"], newest["note"], newest["parent_version"]) == ("olga", "from the test", 2)
    assert [version for version, _ in fake_engine.applied] == [3]
    assert fake_engine.applied[0][1]["decode_age_price"] == 0.7
    page.get_by_role("link", name="Plans chosen under version 3").click()
    expect(page.locator("#timeline-filter-note")).to_contain_text("Only plans of policy version 3")


def test_a_bad_value_shows_its_message_and_changes_nothing(
    page: Page, address: str, store: sa.Engine, fake_engine: Any
) -> None:
    open_policy(page, address)
    sign(page)
    field(page, "Decode age price").fill("-1")
    field(page, "Adaptation").fill("0")
    field(page, "Terminal value").fill("many")
    for message in ("0 or more, not -1", "above 0, not 0", "a finite number, 0 or more, not 'many'"):
        expect(page.locator(".policy-form")).to_contain_text(message)
    expect(page.locator("#policy-diff")).to_contain_text("3 entries cannot be used")
    expect(page.locator("#policy-apply")).to_be_disabled()
    assert len(versions(store)) == 2
    assert fake_engine.applied == []


def test_a_preset_fills_the_form_and_reset_takes_it_back(page: Page, address: str, store: sa.Engine) -> None:
    open_policy(page, address)
    page.locator("#policy-preset").click()
    page.get_by_role("option", name="throughput").click()
    expect(field(page, "Delivery fairness")).to_have_value("0")
    expect(page.locator("#policy-diff")).to_contain_text("delivery_fairness")
    page.get_by_role("button", name="Reset the form").click()
    expect(field(page, "Delivery fairness")).to_have_value("4")
    expect(page.locator("#policy-preset")).to_have_value("")
    page.locator("#policy-preset").click()
    page.get_by_role("option", name="throughput").click()
    sign(page)
    apply(page)
    expect(page.locator("#policy-result")).to_contain_text("Version 3 applied")
    assert versions(store)[-1]["preset"] == "throughput"


def test_a_change_without_a_name_asks_for_one(page: Page, address: str, store: sa.Engine) -> None:
    open_policy(page, address)
    field(page, "Decode age price").fill("0.7")
    apply(page)
    expect(page.get_by_text("Say who you are")).to_be_visible()
    assert len(versions(store)) == 2


def test_a_stale_save_shows_the_other_change_and_overwrites_nothing(
    page: Page, address: str, store: sa.Engine, fake_engine: Any
) -> None:
    open_policy(page, address)
    somebody_else_changes(store, token_fairness=20.0)
    field(page, "Decode age price").fill("0.7")
    sign(page)
    apply(page)
    warning = page.locator("#policy-stale")
    expect(warning).to_contain_text("boris applied version 3")
    expect(warning).to_contain_text("urgent")
    expect(warning.locator("tbody tr")).to_have_text("token_fairness1620")
    assert [row["actor"] for row in versions(store)] == ["default", "anna", "boris"]
    assert fake_engine.applied == []
    page.get_by_role("button", name="Continue on version 3").click()
    expect(field(page, "Token fairness")).to_have_value("20")
    expect(field(page, "Decode age price")).to_have_value("0.7")
    apply(page)
    expect(page.locator("#policy-result")).to_contain_text("Version 4 applied")
    newest = versions(store)[-1]
    assert (newest["token_fairness"], newest["decode_age_price"], newest["parent_version"]) == (20.0, 0.7, 3)


def test_going_back_to_a_version_shows_the_change_first(
    page: Page, address: str, store: sa.Engine, fake_engine: Any
) -> None:
    open_policy(page, address)
    sign(page, note="")
    page.get_by_role("button", name="Go back to version 1").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("decode_age_price")
    assert len(versions(store)) == 2
    dialog.get_by_role("button", name="Go back").click()
    expect(page.locator("#policy-result")).to_contain_text("Version 3 applied, with the values of version 1")
    expect(dialog).to_be_hidden()
    newest = versions(store)[-1]
    assert (newest["version"], newest["decode_age_price"], newest["actor"]) == (3, 0.1, "olga")
    assert [version for version, _ in fake_engine.applied] == [3]


def test_the_dialog_asks_who_and_why_and_the_browser_remembers_who(
    page: Page, address: str, store: sa.Engine, fake_engine: Any
) -> None:
    open_policy(page, address)
    page.get_by_role("button", name="Go back to version 1").click()
    dialog = page.get_by_role("dialog")
    confirm = dialog.get_by_role("button", name="Go back")
    expect(dialog).to_contain_text("decode_age_price")
    expect(confirm).to_be_disabled()
    dialog.get_by_label("Who").fill("boris")
    dialog.get_by_label("Note").fill("too slow")
    expect(confirm).to_be_enabled()
    confirm.click()
    expect(page.locator("#policy-result")).to_contain_text("Version 3 applied, with the values of version 1")
    newest = versions(store)[-1]
    assert (newest["actor"], newest["note"]) == ("boris", "rollback to 1: too slow")
    page.reload()
    expect(page.locator("#policy-actor")).to_have_value("boris")
    page.locator("#policy-note").fill("from the form")
    page.get_by_role("button", name="Go back to version 2").click()
    expect(dialog.get_by_label("Who")).to_have_value("boris")
    expect(dialog.get_by_label("Note")).to_have_value("from the form")
    expect(dialog.get_by_role("button", name="Go back")).to_be_enabled()


def test_nanoseconds_are_said_in_seconds_while_typing(page: Page, address: str) -> None:
    open_policy(page, address)
    expect(page.locator(".readable")).to_have_text("= 30 s")
    field(page, "Estimate lifetime").fill("1500000000")
    expect(page.locator(".readable")).to_have_text("= 1.5 s")


def test_an_engine_that_is_away_is_said_plainly_and_nothing_changes(
    page: Page, address: str, store: sa.Engine, fake_engine: Any
) -> None:
    open_policy(page, address)
    fake_engine.error = EngineUnavailable("no engine is ready now; try again in a moment")
    field(page, "Decode age price").fill("0.7")
    sign(page)
    apply(page)
    expect(page.locator("#policy-result")).to_contain_text("the engine cannot be reached")
    expect(page.locator("#policy-version")).to_contain_text("Version 2 is in force")
    assert [row["state"] for row in versions(store)] == ["applied", "applied", "refused"]


def test_the_form_works_with_the_keyboard_alone(page: Page, address: str, store: sa.Engine) -> None:
    open_policy(page, address)
    field(page, "Decode age price").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("0.9")
    page.locator("#policy-actor").focus()
    page.keyboard.type("olga")
    page.keyboard.press("Tab")
    page.keyboard.type("by keys")
    # No person presses three keys within the millisecond that the field takes to hand its text on.
    wait_in_page(page, "window.dash_component_api.getLayout('policy-note').props.value === 'by keys'")
    expect(page.locator("#policy-apply")).to_be_enabled()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#policy-result")).to_contain_text("Version 3 applied")
    assert versions(store)[-1]["note"] == "by keys"
