"""The timeline in a real browser."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import sqlalchemy as sa
from factories import FilledStore, fill_store
from playwright.sync_api import Page, expect
from waiting import wait_in_page

from dashboard.ids import STATUS_BANNER
from service.store.engines import write_transaction
from service.store.tables import plan_lanes, plans

pytestmark = pytest.mark.browser
BARS = ".timeline-graph .bars .point"
ROWS = "#timeline-grid .ag-center-cols-container .ag-row"


def open_timeline(page: Page, address: str, query: str = "") -> None:
    page.goto(f"{address}/dashboard/timeline{query}")
    expect(page.locator(BARS).first).to_be_attached()


def add_plan(store: sa.Engine, **changes: object) -> int:
    """Copies the newest plan with the next fence, ten ms later; returns its fence."""
    with write_transaction(store) as connection:
        newest = connection.execute(sa.select(plans).order_by(plans.c.committed_at.desc()).limit(1)).mappings().one()
        fence = newest["fence"] + 1
        row = {
            **newest,
            "fence": fence,
            "committed_at": newest["committed_at"] + dt.timedelta(milliseconds=10),
            "committed_ns": newest["committed_ns"] + 10_000_000,
            **changes,
        }
        connection.execute(plans.insert(), row)
        lane = connection.execute(sa.select(plan_lanes).limit(1)).mappings().one()
        connection.execute(plan_lanes.insert(), {**lane, "run_id": row["run_id"], "fence": fence})
    return int(fence)


def bar_ids(page: Page) -> list[str]:
    found: list[str] = page.evaluate(
        "document.querySelector('.timeline-graph .js-plotly-plot').data.flatMap((trace) => trace.ids)"
    )
    return found


def test_it_shows_one_bar_per_plan_and_the_newest_plan_first(page: Page, address: str, filled: FilledStore) -> None:
    open_timeline(page, address)
    wanted = {f"{run}/{fence}" for run, fence in filled.plan_keys[-200:]}
    assert set(bar_ids(page)) == wanted
    newest = page.locator(f"{ROWS}[row-index='0'] a")
    expect(newest).to_have_text(str(filled.plan_keys[-1][1]))
    expect(page).to_have_title("Timeline · Helios")


def test_the_strip_says_what_runs(page: Page, address: str) -> None:
    open_timeline(page, address)
    strip = page.locator("#timeline-strip")
    expect(strip).to_contain_text("smollm2-135m-instruct")
    expect(strip).to_contain_text("version 2")
    expect(strip).to_contain_text("1 gap")


def test_selecting_a_bar_opens_its_plan(page: Page, address: str, filled: FilledStore) -> None:
    open_timeline(page, address)
    box = page.locator(BARS).first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator(".hoverlayer .hovertext")).to_contain_text("predicted")
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_url(re.compile(r"/dashboard/plan/run-[0-9a-f-]+/\d+$"))
    expect(page.locator("#plan-headline")).to_be_visible()


def test_a_link_in_the_table_opens_the_plan_without_loading_the_page_again(page: Page, address: str) -> None:
    open_timeline(page, address)
    page.evaluate("window.sameDocument = true")
    link = page.locator(f"{ROWS}[row-index='2'] a")
    fence = link.inner_text()
    link.click()
    expect(page.locator("h1")).to_contain_text(f"Plan {int(fence):,}")
    assert page.evaluate("window.sameDocument") is True
    page.go_back()
    expect(page.locator(BARS).first).to_be_attached()


def test_new_and_ended_plans_appear_by_themselves(
    page: Page, address: str, store: sa.Engine, filled: FilledStore
) -> None:
    open_timeline(page, address)
    run, open_fence = filled.in_flight[0]
    fence = add_plan(store)
    with write_transaction(store) as connection:
        connection.execute(
            plans.update()
            .where(plans.c.run_id == run, plans.c.fence == open_fence)
            .values(outcome="completed", started_ns=plans.c.committed_ns, completed_ns=plans.c.committed_ns + 4_000_000)
        )
    expect(page.locator(f"{ROWS}[row-index='0'] a")).to_have_text(str(fence))
    row = page.locator(f"{ROWS}[row-index='1']")
    expect(row).to_contain_text(str(open_fence))
    expect(row).to_contain_text("completed")
    ids = bar_ids(page)
    assert ids.count(f"{run}/{open_fence}") == 1
    assert f"{run}/{fence}" in ids
    assert len(ids) == 200, "the oldest bar made room"


def test_a_new_kind_gets_a_row_of_its_own(page: Page, address: str, store: sa.Engine) -> None:
    open_timeline(page, address)
    add_plan(store, kind="vision")
    expect(page.locator(".timeline-graph .ytick", has_text="vision")).to_be_attached()


def test_the_live_switch_pauses_and_resumes(page: Page, address: str, store: sa.Engine) -> None:
    page.clock.install()
    open_timeline(page, address)
    page.get_by_label("Live").uncheck(force=True)
    expect(page.get_by_label("Live")).not_to_be_checked()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.post_data or ""))
    page.clock.fast_forward(2_000)  # whatever was on its way
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    before = len(asked)
    fence = add_plan(store)
    page.clock.fast_forward(10_000)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert [body for body in asked[before:] if STATUS_BANNER not in body] == [], "the banner alone goes on asking"
    page.get_by_label("Live").check(force=True)
    expect(page.locator(f"{ROWS}[row-index='0'] a")).to_have_text(str(fence))


def shown_range(page: Page) -> list[str]:
    found: list[str] = page.evaluate(
        "document.querySelector('.timeline-graph .js-plotly-plot')._fullLayout.xaxis.range"
    )
    return found


def test_news_leave_the_part_that_was_zoomed_into_alone(page: Page, address: str, store: sa.Engine) -> None:
    open_timeline(page, address)
    whole = shown_range(page)
    box = page.locator(".timeline-graph .nsewdrag").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.4, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, middle, steps=5)
    page.mouse.move(box["x"] + box["width"] * 0.6, middle, steps=5)
    page.mouse.up()
    zoomed = shown_range(page)
    assert zoomed != whole
    fence = add_plan(store)
    expect(page.locator(f"{ROWS}[row-index='0'] a")).to_have_text(str(fence))
    assert shown_range(page) == zoomed
    page.mouse.dblclick(box["x"] + box["width"] * 0.5, box["y"] + 2)
    fence = add_plan(store)
    expect(page.locator(f"{ROWS}[row-index='0'] a")).to_have_text(str(fence))
    start, end = shown_range(page)
    assert start < zoomed[0]
    assert end > whole[1]


def test_the_number_of_plans_can_be_chosen(page: Page, address: str) -> None:
    open_timeline(page, address)
    page.locator("#timeline-limit").click()
    page.get_by_role("option", name="100 plans").click()
    wait_in_page(
        page, "document.querySelector('.timeline-graph .js-plotly-plot').data.flatMap((t) => t.ids).length === 100"
    )


def test_it_can_be_limited_to_one_policy_version(page: Page, address: str, store: sa.Engine) -> None:
    open_timeline(page, address, "?policy=2")
    with store.connect() as connection:
        wanted = connection.execute(
            sa.select(sa.func.count()).select_from(plans).where(plans.c.policy_version == 2)
        ).scalar()
    assert len(bar_ids(page)) == wanted
    page.get_by_role("link", name="show all").click()
    wait_in_page(
        page, "document.querySelector('.timeline-graph .js-plotly-plot').data.flatMap((t) => t.ids).length === 200"
    )


def test_names_from_outside_stay_text(page: Page, address: str, store: sa.Engine) -> None:
    evil = "<img src=x onerror=alert(1)>"
    fence = add_plan(store, reason="<b>ordinary</b>")
    with write_transaction(store) as connection:
        connection.execute(plan_lanes.update().where(plan_lanes.c.fence == fence).values(request_id=evil))
        run = connection.execute(sa.select(plans.c.run_id).where(plans.c.fence == fence)).scalar()
    page.on("dialog", lambda dialog: pytest.fail(f"markup ran: {dialog.message}"))
    open_timeline(page, address)
    expect(page.locator(f"{ROWS}[row-index='0']")).to_contain_text("<b>ordinary</b>")
    page.goto(f"{address}/dashboard/plan/{run}/{fence}")
    expect(page.locator("#plan-lanes")).to_contain_text(evil)
    assert page.locator("img").count() == 0


BURSTS = 5
IN_RANGE = """() => {
    const plot = document.querySelector('.timeline-graph .js-plotly-plot');
    const [from, to] = plot._fullLayout.xaxis.range.map((text) => Date.parse(text.replace(' ', 'T') + 'Z'));
    return plot.data.flatMap((trace) => trace.base).filter((base) => base >= from && base <= to).length;
}"""


def fill_bursts(store: sa.Engine, plan_count: int) -> None:
    """BURSTS bursts of plans, a minute apart; the newest plan was committed a second ago."""
    filled = fill_store(store, plans=plan_count, requests=40)
    shift = dt.datetime.now(dt.UTC) - filled.last_at - dt.timedelta(seconds=1)
    minute = dt.timedelta(minutes=1)
    with write_transaction(store) as connection:
        for index, (run, fence) in enumerate(filled.plan_keys):
            key = (plans.c.run_id == run, plans.c.fence == fence)
            at = connection.execute(sa.select(plans.c.committed_at).where(*key)).scalar_one()
            later = shift - minute * (BURSTS - 1 - index * BURSTS // plan_count)
            connection.execute(plans.update().where(*key).values(committed_at=at + later))


def choose(page: Page, label: str) -> None:
    page.locator("#timeline-limit").click()
    page.get_by_role("option", name=label, exact=True).click()


def test_the_chart_shows_every_plan_it_says_across_pauses(
    page: Page, store: sa.Engine, fake_engine: Any, serve: Callable[..., AbstractContextManager[str]]
) -> None:
    fill_bursts(store, 2100)
    with serve(store, fake_engine) as address:
        open_timeline(page, address)
        shown = page.locator("#timeline-shown")
        choose(page, "2,000 plans")
        expect(shown).to_contain_text("2,000 plans, committed from")
        assert (len(bar_ids(page)), page.evaluate(IN_RANGE)) == (2000, 2000)
        expect(page.locator(".timeline-graph .annotation-text", has_text="policy 2")).to_be_attached()
        page.get_by_text("Since the last pause").click()
        expect(shown).to_contain_text("leaves out 1,580 plans of the table")
        assert page.evaluate(IN_RANGE) == 420
        page.get_by_text("All of them").click()
        expect(shown).not_to_contain_text("leaves out")
        choose(page, "last 10 min")
        expect(shown).to_contain_text("Only the newest 2,000 plans of the last 10 min are shown")
        assert page.evaluate(IN_RANGE) == 2000
        page.goto("about:blank")


def test_a_time_window_without_plans_says_so_and_keeps_its_controls(page: Page, address: str) -> None:
    open_timeline(page, address)
    choose(page, "last 1 min")
    expect(page.locator("#timeline-shown")).to_have_text("No plan was chosen in the last 1 min.")
    assert bar_ids(page) == []
    choose(page, "100 plans")
    expect(page.locator("#timeline-shown")).to_contain_text("100 plans, committed from")


def test_the_last_minute_is_told_above_the_chart(page: Page, address: str) -> None:
    open_timeline(page, address)
    expect(page.locator("#timeline-minute")).to_contain_text("no plan was chosen, the device was idle")


def test_the_important_columns_fit_a_narrow_screen(page: Page, address: str) -> None:
    open_timeline(page, address)
    for field in ("output_tokens", "queue_depth", "policy_version"):
        box = page.locator(f"#timeline-grid .ag-header-cell[col-id='{field}']").bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 1256
