"""The adapter between Litestar and Dash."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

import httpx
import pytest
import sqlalchemy as sa
from factories import fill_store
from litestar import Litestar, get
from litestar.exceptions import WebSocketDisconnect
from litestar.testing import TestClient

from dashboard.app import create_dashboard
from dashboard.asgi import MAX_BODY_BYTES, mount
from service.control.policy import PolicyControl
from service.store.database import open_database, upgrade

UPDATE = "/dashboard/_dash-update-component"
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    "path",
    ["/dashboard/", "/dashboard", "/dashboard/policy", "/dashboard/plan/run-1/7", "/dashboard/plan/a%2Fb%20c/7"],
)
def test_every_page_answers_the_first_request_with_the_index(client: TestClient[Litestar], path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert "_dash-config" in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/dashboardfoo",
        "/dashboard/assets/none.css",
        "/dashboard/assets/../app.py",
        "/dashboard/assets/%2e%2e/app.py",
        "/dashboard/_dash-component-suites/dash/none.js",
        "/dashboard/_dash-component-suites/os/path.py",
        "/dashboard/_dash-nothing",
        "/dashboard/nothing",
        "/dashboard/plan/run-1/x",
        "/dashboard/plan/run-1/99999999999999999999",
        "/dashboard/plan/run-1",
        "/dashboard/policy/extra",
        "/dashboard//policy",
    ],
)
def test_unknown_paths_are_404_and_never_the_index(client: TestClient[Litestar], path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert "_dash-config" not in answer.text


def test_a_person_at_an_unknown_address_gets_a_page_with_a_way_back(client: TestClient[Litestar]) -> None:
    answer = client.get("/dashboard/nope", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert '<a href="/dashboard/">' in answer.text
    assert client.get("/dashboard/nope").json()["status"] == 404


def test_assets_and_scripts_are_served_as_what_they_are(client: TestClient[Litestar]) -> None:
    assert client.get("/dashboard/assets/helios.css").headers["content-type"].startswith("text/css")
    layout = client.get("/dashboard/_dash-layout")
    assert layout.headers["content-type"] == "application/json"
    index = client.get("/dashboard/").text
    sources = [part.split('"')[0] for part in index.split('src="')[1:]]
    assert len(sources) > 5
    assert all(source.startswith("/dashboard/") for source in sources)
    assert client.get(sources[-1]).status_code == 200


def test_websockets_are_refused_during_the_handshake(client: TestClient[Litestar]) -> None:
    for path in ("/dashboard/_dash-ws-callback", "/dashboard/", "/dashboard/nothing"):
        with pytest.raises(WebSocketDisconnect), client.websocket_connect(path):
            pass


def test_pages_are_told_to_use_no_websocket(client: TestClient[Litestar]) -> None:
    index = client.get("/dashboard/").text
    config = json.loads(index.split('id="_dash-config" type="application/json">')[1].split("</script>")[0])
    assert "websocket" not in config
    assert config["serve_locally"] is True


def test_pages_only_answer_reading(client: TestClient[Litestar]) -> None:
    assert client.head("/dashboard/policy").status_code == 200
    assert client.post("/dashboard/policy", content="{}").status_code == 405


def test_callbacks_of_other_sites_are_refused(client: TestClient[Litestar]) -> None:
    body = json.dumps({"output": "page.children"})
    answer = client.post(UPDATE, content=body, headers={**JSON, "origin": "http://evil.example"})
    assert answer.status_code == 403
    assert client.post(UPDATE, content=body, headers={**JSON, "origin": "null"}).status_code == 403


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"output": 1}', b'"x"', b"\xff\xfe", b"[" * 100_000])
def test_unreadable_callbacks_are_400(client: TestClient[Litestar], body: bytes) -> None:
    assert client.post(UPDATE, content=body, headers=JSON).status_code == 400


def test_unknown_callbacks_other_types_and_huge_bodies_are_refused(client: TestClient[Litestar]) -> None:
    body = json.dumps({"output": "nothing.children"})
    assert client.post(UPDATE, content=body, headers=JSON).status_code == 404
    assert client.post(UPDATE, content=body, headers={"content-type": "text/plain"}).status_code == 415
    huge = b'{"output": "' + b"x" * MAX_BODY_BYTES + b'"}'
    assert client.post(UPDATE, content=huge, headers=JSON).status_code == 413


def test_other_routes_of_the_application_stay_reachable(store: sa.Engine) -> None:
    @get("/dashboards", sync_to_thread=False)
    def other() -> str:
        return "other"

    async def apply(version: int, coefficients: object) -> int:
        return 1

    dash_app = create_dashboard(engine=store, control=PolicyControl(store, apply))
    with TestClient(Litestar([mount(dash_app), other])) as client:
        assert client.get("/dashboards").text == "other"


def test_two_dashboards_in_one_process_show_their_own_stores(
    store: sa.Engine, tmp_path: pathlib.Path, call: Callable[..., httpx.Response]
) -> None:
    """No page state lives in module globals."""

    async def apply(version: int, coefficients: object) -> int:
        return 1

    other = f"sqlite:///{tmp_path}/other.db"
    upgrade(other)
    empty = open_database(other)
    fill_store(store, plans=8, requests=2)
    apps = [create_dashboard(engine=engine, control=PolicyControl(engine, apply)) for engine in (store, empty)]
    clients = [TestClient(Litestar([mount(app)])) for app in apps]
    texts = []
    for client in (*clients, *clients):
        with client:
            address = {"url.pathname": "/dashboard/policy", "url.search": ""}
            texts.append(call(client, ["page.children"], address).text)
    empty.dispose()
    assert ["Version 2 is in force" in text for text in texts] == [True, False, True, False]
    assert ["holds no policy yet" in text for text in texts] == [False, True, False, True]
