"""The SQL page in a browser, in front of the whole HTTP application with a scripted engine."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import sys
import urllib.parse

import pytest
from factories import fill_store
from playwright.sync_api import expect

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "api"))

from fake_engine import serving

from dashboard.app import create_dashboard
from dashboard.asgi import mount
from service.store.database import open_database

pytestmark = pytest.mark.browser
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def site(_sqlite_template, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sql-page")
    shutil.copy(_sqlite_template, folder / "helios.db")
    store = open_database(f"sqlite:///{folder / 'helios.db'}")
    fill_store(store, plans=400, requests=20)
    with serving(store, folder, mounts=lambda control: [mount(create_dashboard(engine=store, control=control))]) as api:
        yield api
    store.dispose()


@pytest.fixture
def open_page(site, page):
    def opened(**query):
        page.goto(f"{site.url}/dashboard/sql" + ("?" + urllib.parse.urlencode(query) if query else ""))
        expect(page.locator("#sql-status")).not_to_be_empty()
        return page

    return opened


def settled(page):
    expect(page.locator("#sql-cancel")).to_be_disabled()
    expect(page.locator("#sql-status")).not_to_have_text("Running…")
    return page.locator("#sql-status").inner_text()


def test_a_question_of_the_cookbook_is_chosen_run_and_sent_as_a_link(open_page, page, site):
    open_page()
    page.get_by_label("A question from the cookbook").first.click()
    page.get_by_role("option", name="Why did plans run?").click()
    expect(page.locator("#sql-how")).to_contain_text("Time by reason")
    expect(page.locator("#sql-statement")).to_have_value(re.compile("SELECT reason, count"))
    page.locator("#sql-statement").press("Control+Enter")
    expect(page.locator("#sql-grid")).to_contain_text("ordinary")
    assert re.match(r"\d+ rows?, in [\d,]+ ms\.", settled(page))
    link = page.url
    assert "q=SELECT+reason" in link
    page.goto("about:blank")
    page.goto(link)
    expect(page.locator("#sql-grid")).to_contain_text("ordinary")
    page.locator("summary", has_text="Asked before").click()
    expect(page.locator("#sql-history button").first).to_contain_text("SELECT reason")


def test_a_table_shows_its_columns_and_one_goes_into_the_statement(open_page, page):
    open_page()
    page.locator("#sql-statement").fill("SELECT ")
    page.locator("summary", has_text=re.compile("^plan_lanes$")).click()
    entry = page.locator(".sql-table[open] dl > div")
    expect(entry.first).to_contain_text("run_id")
    expect(page.locator(".sql-table[open] dl")).not_to_contain_text("recorded_on")
    page.get_by_role("button", name="proposal_source", exact=True).click()
    expect(page.locator("#sql-statement")).to_have_value("SELECT proposal_source")


def test_an_answer_is_a_chart_and_its_choices_are_in_the_address(open_page, page):
    open_page(q="SELECT kind, count(*) AS plans, avg(device_ms) AS ms FROM plans GROUP BY kind", view="chart")
    settled(page)
    expect(page.locator("#sql-graph .bars .point")).to_have_count(2)
    expect(page.locator("#sql-chart-note")).to_contain_text("2 rows drawn")
    page.get_by_label("Drawn as").first.click()
    page.get_by_role("option", name="points").click()
    expect(page.locator("#sql-graph .scatterlayer .point")).to_have_count(2)
    for name, value in (("view", "chart"), ("kind", "points"), ("x", "0"), ("y", "2")):
        assert urllib.parse.parse_qs(urllib.parse.urlsplit(page.url).query)[name] == [value]


def test_what_is_left_out_is_said_and_names_stay_text(open_page, page):
    open_page(q=f"SELECT '{EVIL}' AS \"{EVIL}\", run_id FROM plans", rows="100")
    assert settled(page).startswith("The first 100 rows; there are more.")
    expect(page.locator("#sql-grid .ag-cell").first).to_have_text(EVIL)
    assert page.locator("#sql-grid img").count() == 0
    assert page.locator("#sql-history img").count() == 0


def test_a_statement_is_cancelled_and_its_process_ends(open_page, page, site):
    open_page()
    page.locator("#sql-statement").fill(ENDLESS)
    page.locator("#sql-run").click()
    expect(page.locator("#sql-status")).to_have_text("Running…")
    page.locator("#sql-cancel").click()
    expect(page.locator("#sql-status")).to_have_text("Cancelled; nothing was changed.")
    page.locator("#sql-statement").fill("SELECT 5 AS five")
    page.locator("#sql-run").click()
    expect(page.locator("#sql-grid")).to_contain_text("five")


def test_files_hold_the_whole_answer_and_a_mistake_is_shown_in_its_place(open_page, page, watch):
    open_page(q="SELECT kind, '=1+1' AS f FROM plans", rows="100")
    settled(page)
    with page.expect_download() as told:
        page.locator("#sql-export-csv").click()
    text = pathlib.Path(told.value.path()).read_text()
    assert (told.value.suggested_filename, len(text.splitlines())) == ("helios.csv", 401)
    assert text.splitlines()[1].endswith(",'=1+1")
    with page.expect_download() as told:
        page.locator("#sql-export-json").click()
    assert len(json.loads(pathlib.Path(told.value.path()).read_text())["rows"]) == 400
    page.locator("#sql-statement").fill("SELECT kind,\n  nix\nFROM plans")
    page.locator("#sql-run").click()
    expect(page.locator("#sql-status")).to_contain_text("line 2, column 3")
    chosen = page.evaluate("(e => e.value.slice(e.selectionStart, e.selectionEnd))(document.activeElement)")
    assert chosen == "nix"
    watch.console.clear()  # the browser itself notes the 422
    watch.failures.clear()


def test_an_answer_fits_a_phone(open_page, page):
    page.set_viewport_size({"width": 360, "height": 800})
    open_page(q="SELECT * FROM requests")
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
