"""Which pages of the dashboard `helios bench dashboard` opens, and what it does there."""

from __future__ import annotations

import json
import urllib.parse
from typing import Any

import sqlalchemy as sa

from service.load.page_times import View, click
from service.store.engines import read_transaction
from service.store.tables import plans, requests

DRAWN = ".js-plotly-plot .main-svg"
TILES = "#overview-tiles .tile"
QUESTION = "SELECT kind, SUM(plans) AS plans, SUM(device_ms_sum) AS busy_ms FROM plan_minutes GROUP BY kind"


def views(engine: sa.Engine) -> list[View]:
    """Every page, with a plan and a request from the middle of the store. Raises StoreError.

    Costs and learning are of that plan's run: the newest one, which the server has just begun, holds nothing to show.
    """
    plan, request = _middle(engine)
    run = _quoted(plan.run_id)
    plan_path = f"/dashboard/plan/{run}/{plan.fence}"
    request_path = f"/dashboard/requests/{_quoted(request.run_id)}/{_quoted(request.request_id)}"
    return [
        _spanned("overview, hour", "/dashboard/?last=1h", TILES, "6h", complete=f"#overview-device {DRAWN}"),
        _spanned("overview, day", "/dashboard/?last=24h", TILES, "7d", complete=f"#overview-device {DRAWN}"),
        _changed(
            "timeline, day",
            "/dashboard/timeline?last=24h",
            f".timeline-graph {DRAWN}",
            "zoom",
            click('[data-move="in"]'),
            "#timeline-shown",
        ),
        _changed(
            "timeline, minutes",
            "/dashboard/timeline?last=15m",
            f".timeline-graph {DRAWN}",
            "earlier",
            click('[data-move="earlier"]'),
            "#timeline-shown",
        ),
        _changed("plan", plan_path, "#plan-lanes .ag-row", "next plan", click("nav a.step:last-of-type"), "main h1"),
        _changed(
            "requests, day",
            "/dashboard/requests?last=24h",
            "#requests-grid .ag-row",
            "next page",
            click("#requests-pager a:last-of-type"),
            "#requests-note",
        ),
        _spanned("requests, hour", "/dashboard/requests?last=1h", "#requests-grid .ag-row", "6h"),
        _changed("request", request_path, "#request-plans .ag-row", "all requests", click(".crumbs a"), "main h1"),
        _spanned("costs, day", f"/dashboard/costs?last=24h&run={run}", "#costs-grid .ag-row", "6h"),
        _spanned("learning, day", f"/dashboard/learning?last=24h&run={run}", "#learning-bounds", "6h"),
        _changed(
            "policy",
            "/dashboard/policy",
            "#policy-history .ag-row",
            "draft a change",
            _typed(".number-field input", "17"),
            "#policy-diff",
        ),
        _answered("sql", QUESTION),
    ]


def _middle(engine: sa.Engine) -> tuple[Any, Any]:
    """A completed plan with a plan behind it, and an ended request, both from the middle of the newest whole run."""
    run = sa.select(plans.c.run_id).group_by(plans.c.run_id).order_by(sa.func.count().desc()).limit(1)
    with read_transaction(engine) as connection:
        run_id = connection.execute(run).scalar_one()
        fences = sa.select(sa.func.max(plans.c.fence)).where(plans.c.run_id == run_id)
        middle = connection.execute(fences).scalar_one() // 2
        of_run = (plans.c.run_id == run_id, plans.c.fence >= middle)
        plan = sa.select(plans.c.run_id, plans.c.fence, plans.c.committed_at).where(*of_run)
        found = connection.execute(plan.order_by(plans.c.fence).limit(1)).one()
        ended = (requests.c.arrived_at <= found.committed_at, requests.c.finish_reason.in_(("stop", "length")))
        request = sa.select(requests.c.run_id, requests.c.request_id).where(*ended)
        return found, connection.execute(request.order_by(requests.c.arrived_at.desc()).limit(1)).one()


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def _spanned(name: str, path: str, useful: str, last: str, *, complete: str | None = None) -> View:
    """The answer to another span is another page, with another choice marked."""
    whole = complete or useful
    here = f'.span-choice.here[data-last="{last}"]'
    drawn = f"document.querySelector({json.dumps(here)}) && document.querySelector({json.dumps(whole)})"
    return View(name, path, useful, whole, f"span of {last}", click(f'.span-choice[data-last="{last}"]'), drawn)


def _changed(name: str, path: str, useful: str, acts: str, act: str, told: str) -> View:
    """The answer is there when the text of `told` is another."""
    text = f"(document.querySelector({json.dumps(told)}) || {{}}).textContent"
    return View(
        name, path, useful, useful, acts, f"window.heliosBefore = {text}; {act}", f"{text} && {text} !== heliosBefore"
    )


def _answered(name: str, statement: str) -> View:
    """The SQL page runs the statement of its address, and again at a click."""
    path = f"/dashboard/sql?q={_quoted(statement)}"
    grid = "#sql-grid .ag-row"
    running = "document.querySelector('#sql-status').textContent.startsWith('Running')"
    # It says that it runs at once, and something else when the answer is there.
    drawn = f"(window.heliosRan = window.heliosRan || {running}) && !{running}"
    return View(
        name, path, "#sql-statement", grid, "run again", f"window.heliosRan = false; {click('#sql-run')}", drawn
    )


def _typed(selector: str, value: str) -> str:
    """JavaScript that types into the first field of a selector, as React notices it."""
    return (
        f"((field) => {{ Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(field,"
        f" {json.dumps(value)}); field.dispatchEvent(new Event('input', {{ bubbles: true }})); }})"
        f"(document.querySelector({json.dumps(selector)}))"
    )
