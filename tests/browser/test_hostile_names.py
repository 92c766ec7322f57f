"""Names from outside are text on every page: none becomes markup, a script, an address that runs, or SQL."""

from __future__ import annotations

import urllib.parse

import pytest
import sqlalchemy as sa
from factories import FilledStore
from playwright.sync_api import BrowserContext, expect

from service.store.engines import write_transaction
from service.store.tables import engine_runs, plan_alternatives, plan_lanes, policy_versions, requests, trace_gaps

pytestmark = pytest.mark.browser

HOSTILE = (
    "=cmd|' /C calc'!A0<img src=x onerror=\"window.pwned=1\"><a href='javascript:window.pwned=1'>x</a>"
    "'; DROP TABLE plans; --"
)
FOUND = """() => [
    ...document.querySelectorAll("img[src='x'], a[href^='javascript'], [onerror]"),
    ...(window.pwned ? [window] : []),
].map((found) => found.outerHTML || "ran")"""


def poison(store: sa.Engine, filled: FilledStore) -> tuple[str, str]:
    """Puts HOSTILE into every text that a caller or an operator chooses; returns a request that has it."""
    run, victim = filled.request_keys[-1]
    name = f"{HOSTILE}{victim}"
    with write_transaction(store) as connection:
        for table in (requests, plan_lanes):
            connection.execute(sa.update(table).where(table.c.request_id == victim).values(request_id=name))
        connection.execute(sa.update(plan_alternatives).values(request_ids=[name, "req-x"]))
        connection.execute(sa.update(requests).values(model=HOSTILE, error=HOSTILE, prefix_key=HOSTILE))
        connection.execute(sa.update(engine_runs).values(model=HOSTILE, host=HOSTILE, end_reason=HOSTILE))
        connection.execute(sa.update(policy_versions).values(actor=HOSTILE, note=HOSTILE))
        connection.execute(sa.update(trace_gaps).values(reason=HOSTILE))
    return run, name


def test_no_name_becomes_anything_but_text(
    context: BrowserContext, address: str, store: sa.Engine, filled: FilledStore
) -> None:
    run, name = poison(store, filled)
    with store.connect() as connection:
        of_request = sa.select(plan_lanes.c.run_id, plan_lanes.c.fence).where(plan_lanes.c.request_id == name)
        plan_run, fence = connection.execute(of_request).first()
        before = connection.execute(sa.text("SELECT count(*) FROM plans")).scalar_one()
    span = "since=2026-03-01T11:00:00Z&until=2026-03-01T13:00:00Z"
    quoted = urllib.parse.quote(name, safe="")
    page = context.new_page()
    page.on("dialog", lambda dialog: pytest.fail(f"a name ran: {dialog.message}"))
    for path, shown in (
        (f"?{span}", False),
        (f"timeline?{span}&request={quoted}", True),
        (f"plan/{urllib.parse.quote(plan_run, safe='')}/{fence}", True),
        (f"requests?{span}", True),
        (f"requests/{urllib.parse.quote(run, safe='')}/{quoted}", True),
        (f"costs?{span}&run={quoted}", False),
        (f"learning?{span}&run={quoted}", False),
        (f"policy?note={quoted}", True),
        (f"sql?q={urllib.parse.quote('SELECT model, error FROM requests')}&q2={quoted}", False),
        (quoted, False),
    ):
        page.goto(f"{address}/dashboard/{path}")
        if path != quoted:
            expect(page.locator("main .loading")).to_have_count(0)
        if shown:
            expect(page.locator("main")).to_contain_text("<img src=x onerror=")
        assert page.evaluate(FOUND) == [], path
    with store.connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM plans")).scalar_one() == before
