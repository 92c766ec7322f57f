"""Signing in, what a viewer is told, and out again, in a browser against the whole application."""

from __future__ import annotations

import datetime as dt
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from factories import FilledStore
from playwright.sync_api import BrowserContext, Page, expect

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "api"))

from fake_engine import serving as serving_api

from dashboard.app import create_dashboard
from dashboard.asgi import mount
from service.credentials.caller import Role
from service.credentials.files import add_credential, revoke_credential

pytestmark = pytest.mark.browser


class Server:
    """The application with credentials over the filled store."""

    def __init__(self, url: str, file: pathlib.Path, keys: dict[str, str]) -> None:
        self.url, self.file, self.keys = url, file, keys


@pytest.fixture
def server(store: sa.Engine, filled: FilledStore, tmp_path: pathlib.Path) -> Iterator[Server]:
    file = tmp_path / "credentials.json"
    now = dt.datetime.now(dt.UTC)
    keys = {str(role): add_credential(file, f"a-{role}", role, now)[1] for role in Role}

    def dashboard(control: Any) -> list[Any]:
        return [mount(create_dashboard(engine=store, control=control))]

    with serving_api(store, tmp_path, mounts=dashboard, credentials_file=str(file)) as api:
        yield Server(api.url, file, keys)


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("Key").fill(key)
    page.get_by_role("button", name="Sign in").click()


def test_a_viewer_signs_in_reads_is_refused_a_change_and_is_told_of_its_end(
    context: BrowserContext, server: Server
) -> None:
    page = context.new_page()
    page.goto(f"{server.url}/dashboard/policy")
    expect(page.get_by_role("heading", name="Helios")).to_be_visible()
    sign_in(page, server.keys["client"])
    expect(page.get_by_role("alert")).to_contain_text("for /v1 alone")
    sign_in(page, server.keys["viewer"])
    expect(page).to_have_url(f"{server.url}/dashboard/policy")
    expect(page.locator(".account")).to_have_text("a-viewerviewerSign out")
    expect(page.locator("#policy-history .ag-row").first).to_be_visible()
    assert page.evaluate("document.cookie") == ""
    answer = page.evaluate("""() => fetch("/api/policy", {method: "PUT", body: "{}"}).then((told) => told.status)""")
    assert answer == 403
    notice = page.locator(".session-notice")
    expect(notice).to_contain_text("needs the role operator")
    revoke_credential(server.file, "a-viewer")
    page.evaluate("fetch('/api/policy')")
    expect(notice).to_contain_text("session is over")
    notice.get_by_role("link", name="Sign in").click()
    expect(page.get_by_label("Key")).to_be_visible()
    sign_in(page, server.keys["operator"])
    expect(page).to_have_url(f"{server.url}/dashboard/policy")
    page.get_by_role("link", name="Signed in as a-operator").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Key")).to_be_visible()
    page.goto(f"{server.url}/dashboard/")
    expect(page.get_by_label("Key")).to_be_visible()
