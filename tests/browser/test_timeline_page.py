"""The timeline in a real browser."""

from __future__ import annotations

import datetime as dt
import re
import urllib.parse
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import sqlalchemy as sa
from factories import FilledStore, fill_store
from million import Million
from playwright.sync_api import Page, expect

from dashboard.ids import STATUS_BANNER
from service.store.engines import write_transaction
from service.store.tables import plan_lanes, plans

pytestmark = pytest.mark.browser
BARS = ".timeline-graph .bars .point"
ROWS = "#timeline-grid .ag-center-cols-container .ag-row"
SHOWN = "#timeline-shown"
PLOT = "document.querySelector('.timeline-graph .js-plotly-plot')"


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


def drawn(page: Page, trace: str = "plans") -> list[str]:
    """The ids of a trace's marks."""
    found: list[str] = page.evaluate(
        f"(uid) => {PLOT}.data.filter((trace) => trace.uid.startsWith(uid)).flatMap((trace) => trace.ids)", trace
    )
    return found


def address_query(page: Page) -> dict[str, str]:
    return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(page.url).query))


def shown_range(page: Page) -> list[str]:
    found: list[str] = page.evaluate(f"{PLOT}._fullLayout.xaxis.range")
    return found


def drag(page: Page, start: float, end: float) -> None:
    """Drags over the chart from one share of its width to another."""
    box = page.locator(".timeline-graph .nsewdrag").first.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * start, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * (start + end) / 2, middle, steps=4)
    page.mouse.move(box["x"] + box["width"] * end, middle, steps=4)
    page.mouse.up()


def test_it_shows_one_bar_per_plan_gaps_and_requests_and_the_newest_plan_first(
    page: Page, address: str, filled: FilledStore
) -> None:
    open_timeline(page, address)
    assert set(drawn(page)) == {f"{run}/{fence}" for run, fence in filled.plan_keys[-200:]}
    assert len(drawn(page, "gaps")) > 100
    assert len({name.split("\n")[1] for name in drawn(page, "phases")}) == 12
    for text in ("slot 0", "slot 1", "idle"):
        expect(page.locator(".timeline-graph .ytick", has_text=text)).to_be_attached()
    for text in ("policy 2", "trace gap"):
        expect(page.locator(".timeline-graph .annotation-text", has_text=text)).to_be_attached()
    expect(page.locator("#timeline-events")).to_contain_text("policy version 2 came into force by anna")
    expect(page.locator("#timeline-events")).to_contain_text("1 plan missing in the trace: missing tail")
    expect(page.locator(f"{ROWS}[row-index='0'] a")).to_have_text(str(filled.plan_keys[-1][1]))
    expect(page.locator(SHOWN)).to_contain_text("200 plans, committed from 2026-03-01 12:00:00 to")
    expect(page).to_have_title("Timeline · Helios")


def test_every_mark_of_the_figure_is_drawn(page: Page, address: str) -> None:
    open_timeline(page, address)
    wanted = page.evaluate(f"{PLOT}.data.map((trace) => trace.ids.length).reduce((a, b) => a + b)")
    expect(page.locator(BARS)).to_have_count(wanted)


def test_selecting_a_bar_opens_its_plan(page: Page, address: str, filled: FilledStore) -> None:
    open_timeline(page, address)
    box = page.locator(BARS).first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator(".hoverlayer .hovertext")).to_contain_text("predicted")
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_url(re.compile(r"/dashboard/plan/run-[0-9a-f-]+/\d+$"))
    expect(page.locator("#plan-headline")).to_be_visible()


def test_a_link_in_the_table_opens_the_plan_and_back_returns_to_the_view(page: Page, address: str) -> None:
    open_timeline(page, address, "?by=reason&policy=2")
    page.evaluate("window.sameDocument = true")
    link = page.locator(f"{ROWS}[row-index='2'] a")
    fence = link.inner_text()
    link.click()
    expect(page.locator("h1")).to_contain_text(f"Plan {int(fence):,}")
    assert page.evaluate("window.sameDocument") is True
    page.go_back()
    expect(page.locator(BARS).first).to_be_attached()
    expect(page.locator("#timeline-filter-note")).to_contain_text("Only plans of policy version 2")
    assert address_query(page) == {"by": "reason", "policy": "2"}


def test_new_and_ended_plans_appear_by_themselves(
    page: Page, address: str, store: sa.Engine, filled: FilledStore
) -> None:
    open_timeline(page, address)
    run, open_fence = filled.in_flight[0]
    fence = add_plan(store, kind="vision")
    ended = {"started_ns": plans.c.committed_ns, "completed_ns": plans.c.committed_ns + 4_000_000}
    with write_transaction(store) as connection:
        of_plan = (plans.c.run_id == run, plans.c.fence == open_fence)
        connection.execute(plans.update().where(*of_plan).values(outcome="completed", **ended))
    expect(page.locator(f"{ROWS}[row-index='0'] a")).to_have_text(str(fence))
    expect(page.locator(f"{ROWS}[row-index='1']")).to_contain_text("completed")
    ids = drawn(page)
    assert ids.count(f"{run}/{open_fence}") == 1
    assert f"{run}/{fence}" in ids
    assert len(ids) == 200, "the oldest bar made room"
    expect(page.locator("#timeline-legend")).to_contain_text("vision")


def test_the_live_switch_pauses_and_resumes(page: Page, address: str, store: sa.Engine) -> None:
    page.clock.install()
    open_timeline(page, address)
    page.get_by_label("Live").uncheck(force=True)
    expect(page.get_by_label("Live")).not_to_be_checked()
    expect(page).to_have_url(re.compile("since=.*until="))
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
    assert address_query(page) == {}


def test_zooming_by_drag_keys_buttons_and_wheel_is_in_the_address(page: Page, address: str) -> None:
    open_timeline(page, address)
    whole = shown_range(page)
    drag(page, 0.5, 0.7)
    page.wait_for_url(re.compile("since="))
    expect(page.get_by_label("Live")).not_to_be_checked()
    expect(page.locator(SHOWN)).not_to_contain_text("200 plans")
    zoomed = shown_range(page)
    assert whole[0] < zoomed[0] < zoomed[1] < whole[1]
    view = page.url

    def changes(action: Callable[[], None]) -> list[str]:
        before = page.url
        action()
        page.wait_for_url(lambda url: url != before)
        expect(page.locator(BARS).first).to_be_attached()
        return [address_query(page)["since"], address_query(page)["until"]]

    page.locator("#timeline-frame").focus()
    first = changes(lambda: page.keyboard.press("-"))
    assert first[0] < zoomed[0].replace(" ", "T")
    later = changes(lambda: page.keyboard.press("ArrowRight"))
    assert later[0] > first[0]
    earlier = changes(lambda: page.get_by_role("button", name="Earlier").click())
    assert earlier[0] < later[0]
    inner = changes(lambda: page.get_by_role("button", name="Zoom in").click())
    assert earlier[0] < inner[0] < inner[1] < earlier[1]
    page.keyboard.press("0")
    page.locator("#timeline-frame").focus()
    page.keyboard.press("0")
    expect(page.get_by_label("Live")).to_be_checked()
    expect(page.locator(SHOWN)).to_contain_text("200 plans")
    page.locator(".timeline-graph .nsewdrag").first.hover()
    page.keyboard.down("Control")
    changes(lambda: page.mouse.wheel(0, -120))
    page.keyboard.up("Control")
    page.goto(view)
    expect(page.locator(BARS).first).to_be_attached()
    expect(page.locator(SHOWN)).not_to_contain_text("200 plans")
    assert shown_range(page) == zoomed, "whoever gets the address sees the same"


def test_colours_and_filters_are_in_the_address_too(page: Page, address: str, store: sa.Engine) -> None:
    open_timeline(page, address)
    page.get_by_text("By reason").click()
    expect(page.locator("#timeline-legend")).to_contain_text("discovery")
    page.get_by_text("Filters", exact=True).click()
    page.get_by_role("textbox", name="Kind").click()
    page.get_by_role("option", name="prefill", exact=True).click()
    page.get_by_role("textbox", name="Policy version").click()
    page.get_by_role("option", name="2", exact=True).click()
    query = sa.select(sa.func.count()).select_from(plans).where(plans.c.policy_version == 2, plans.c.kind == "prefill")
    with store.connect() as connection:
        wanted = connection.execute(query).scalar_one()
    expect(page.locator(SHOWN)).to_contain_text(f"{wanted} plans, committed from")
    assert address_query(page) == {"by": "reason", "kind": "prefill", "policy": "2"}
    page.get_by_role("link", name="show all").click()
    expect(page.locator(SHOWN)).to_contain_text("200 plans, committed from")
    expect(page.get_by_role("textbox", name="Kind")).to_have_value("")


def test_names_from_outside_stay_text(page: Page, address: str, store: sa.Engine) -> None:
    evil = "<img src=x onerror=alert(1)>"
    fence = add_plan(store, reason="<b>ordinary</b>")
    with write_transaction(store) as connection:
        connection.execute(plan_lanes.update().where(plan_lanes.c.fence == fence).values(request_id=evil))
        run = connection.execute(sa.select(plans.c.run_id).where(plans.c.fence == fence)).scalar()
    page.on("dialog", lambda dialog: pytest.fail(f"markup ran: {dialog.message}"))
    open_timeline(page, address, "?by=reason")
    expect(page.locator(f"{ROWS}[row-index='0']")).to_contain_text("<b>ordinary</b>")
    expect(page.locator("#timeline-legend")).to_contain_text("<b>ordinary</b>")
    page.goto(f"{address}/dashboard/plan/{run}/{fence}")
    expect(page.locator("#plan-lanes")).to_contain_text(evil)
    assert page.locator("img").count() == 0


def test_many_plans_are_bins_with_their_extremes_and_a_bin_leads_closer(
    page: Page, store: sa.Engine, fake_engine: Any, serve: Callable[..., AbstractContextManager[str]]
) -> None:
    filled = fill_store(store, plans=3000, requests=40)
    run, fence = filled.plan_keys[1500]
    of_plan = (plans.c.run_id == run, plans.c.fence == fence)
    with write_transaction(store) as connection:
        connection.execute(plans.update().where(*of_plan).values(completed_ns=plans.c.started_ns + 5_000_000_000))
    until = filled.last_at + dt.timedelta(seconds=5)
    span = f"?since={filled.first_at:%Y-%m-%dT%H:%M:%SZ}&until={until:%Y-%m-%dT%H:%M:%SZ}"
    with serve(store, fake_engine) as address:
        open_timeline(page, address, span)
        expect(page.locator(SHOWN)).to_contain_text(re.compile("3,000 plans in [0-9]+ bins of [0-9]+ ms"))
        expect(page.locator(SHOWN)).to_contain_text("The longest of all took 5,000 ms")
        assert f"{run}/{fence}" in drawn(page, "longest")
        marks = page.evaluate(f"{PLOT}.data.map((trace) => trace.ids.length).reduce((a, b) => a + b)")
        assert marks <= 5000
        expect(page.locator("h2", has_text="The longest plans in view")).to_be_visible()
        expect(page.locator(f"{ROWS}[row-index='0'] a")).to_have_text(str(fence))
        drag(page, 0.2, 0.3)
        expect(page.locator(SHOWN)).to_contain_text("plans, committed from")
        assert drawn(page)
        page.goto("about:blank")


def test_one_plan_of_five_seconds_among_a_million_is_a_mark_that_leads_to_it(
    page: Page, million: Million, million_address: str
) -> None:
    run, fence = million.made.outlier
    open_timeline(page, million_address, "?last=7d")
    expect(page.locator(SHOWN)).to_contain_text(re.compile("[0-9,]+ plans in [0-9]+ bins of"))
    assert f"{run}/{fence}" in drawn(page, "longest")
    assert page.evaluate(f"{PLOT}.data.map((trace) => trace.ids.length).reduce((a, b) => a + b)") <= 5000
    expect(page.locator(SHOWN)).to_contain_text(f"plan {fence}")
    page.locator(SHOWN).get_by_role("link", name=f"plan {fence}").click()
    expect(page.locator("h1")).to_contain_text(f"Plan {fence:,}")


def test_a_time_without_plans_says_so_and_keeps_its_controls(page: Page, address: str) -> None:
    page.goto(f"{address}/dashboard/timeline?last=5m")
    expect(page.locator(SHOWN)).to_contain_text("No plan was chosen from")
    page.get_by_role("link", name="Newest 200").click()
    expect(page.locator(SHOWN)).to_contain_text("200 plans, committed from")


def test_the_last_minute_is_told_below_the_chart(page: Page, address: str) -> None:
    open_timeline(page, address)
    expect(page.locator("#timeline-minute")).to_contain_text("no plan was chosen, the device was idle")


def test_the_important_columns_fit_a_narrow_screen(page: Page, address: str) -> None:
    open_timeline(page, address)
    for field in ("output_tokens", "queue_depth", "policy_version"):
        box = page.locator(f"#timeline-grid .ag-header-cell[col-id='{field}']").bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 1256
