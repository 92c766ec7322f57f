"""The process that reads for the dashboard: what it answers, for whom, and what happens when it ends."""

from __future__ import annotations

import asyncio
import json
import pathlib
import shutil
import subprocess
import sys

import pytest
from factories import fill_store
from litestar import Litestar
from litestar.testing import TestClient
from waiting import wait_until

import dashboard.app
from dashboard.app import create_dashboard
from dashboard.asgi import mount
from dashboard.in_service import runs_in_service
from dashboard.reader.messages import Call, Start
from dashboard.reader.reader import Reader, ReaderFailed
from dashboard.routing import POLICY_PATH, SQL_PATH
from service.control.policy import PolicyControl
from service.credentials.caller import Caller, Role
from service.store.database import open_database

JSON = [(b"content-type", b"application/json")]
VIEWER, OPERATOR = Caller("ada", Role.VIEWER), Caller("eve", Role.OPERATOR)


async def accept(version, coefficients):
    return 1


def dashboard_over(store):
    return create_dashboard(engine=store, control=PolicyControl(store, accept))


def page_of(path):
    inputs = [{"id": "url", "property": "pathname", "value": path}, {"id": "url", "property": "search", "value": ""}]
    output = {"output": "page.children", "outputs": {"id": "page", "property": "children"}}
    return json.dumps({**output, "inputs": inputs, "changedPropIds": ["url.pathname"]}).encode()


def ask(reader, body, caller=None):
    return asyncio.run(reader.answer(Call(JSON, body, caller)))


@pytest.fixture(scope="module")
def site(_sqlite_template, tmp_path_factory):
    """A filled store, a plan's page in it, and a reader over it: a process takes a second or two to start."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copy(_sqlite_template, folder / "helios.db")
    store = open_database(f"sqlite:///{folder / 'helios.db'}")
    run_id, fence = fill_store(store, plans=8, requests=2).plan_keys[3]
    reader = Reader(Start(str(store.url), str(folder / "previews")))
    asyncio.run(reader.begin())  # here, since a process ends with the thread that started it
    yield store, f"/dashboard/plan/{run_id}/{fence}", reader
    reader.close()
    store.dispose()


def test_a_page_is_what_it_is_in_the_service_and_is_not_made_there(site, monkeypatch):
    store, path, reader = site
    made = []
    for known in (None, reader):
        if known is not None:
            monkeypatch.setattr(dashboard.app, "page_for", None)
        with TestClient(Litestar([mount(dashboard_over(store), known)])) as client:
            answer = client.post("/dashboard/_dash-update-component", content=page_of(path), headers=dict(JSON))
            made.append((answer.status_code, answer.headers, answer.json()))
    assert made[0] == made[1]
    assert "decode" in str(made[0][2])
    assert "content-security-policy" in made[0][1]


def test_the_caller_goes_with_the_call(site):
    _, _, reader = site
    shown = [ask(reader, page_of(POLICY_PATH), caller).body for caller in (VIEWER, OPERATOR, None)]
    assert b"signed in as a viewer" in shown[0]
    assert b"signed in as a viewer" not in shown[1]
    assert b"signed in as a viewer" not in shown[2]


def test_what_changes_something_or_asks_the_service_is_not_for_the_reader(site):
    callbacks = dashboard_over(site[0]).callback_map
    here = {name for name, callback in callbacks.items() if runs_in_service(callback)}
    assert "status-banner.children" in here
    assert any("policy-result" in name for name in here)
    assert "page.children" not in here


def test_a_reader_that_does_not_start_is_said(store, call):
    reader = Reader(Start("", ""), (sys.executable, "-c", "import sys; sys.exit(3)"))
    with TestClient(Litestar([mount(dashboard_over(store), reader)])) as client:
        assert client.get("/dashboard/").status_code == 200
        answer = call(client, ["page.children"], {"url.pathname": SQL_PATH, "url.search": ""})
    reader.close()
    assert answer.status_code == 503
    assert "reload the page" in answer.json()["detail"]


def test_a_reader_that_hangs_is_ended():
    hangs = "import sys; sys.stdin.read(); import signal; signal.pause()"
    reader = Reader(Start("", ""), (sys.executable, "-c", hangs), answer_s=0.1)

    async def run():
        await reader.begin()
        hung = reader.pid
        with pytest.raises(ReaderFailed, match=r"0\.1 s"):
            await reader.answer(Call(JSON, b"{}"))
        return hung

    hung = asyncio.run(run())
    assert reader.pid is None
    reader.close()
    assert not pathlib.Path(f"/proc/{hung}").exists()


ENDS_WITH_ITS_SERVICE = """
import asyncio, os, signal, sys
from dashboard.reader.messages import Call, Start
from dashboard.reader.reader import Reader

async def run():
    reader = Reader(Start(sys.argv[1], sys.argv[2]))
    answer = await reader.answer(Call([(b"content-type", b"application/json")], sys.argv[3].encode()))
    print(reader.pid, answer.status, flush=True)
    if sys.argv[4] == "stopped":
        os.kill(reader.pid, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(run())
"""


@pytest.mark.parametrize("reader", ["running", "stopped"])
def test_a_reader_ends_with_its_service(site, tmp_path, reader):
    store, path, _ = site
    arguments = [str(store.url), str(tmp_path), page_of(path).decode(), reader]
    done = subprocess.run(
        [sys.executable, "-c", ENDS_WITH_ITS_SERVICE, *arguments], capture_output=True, text=True, check=False
    )
    pid, status = done.stdout.split()
    assert status == "200"
    wait_until(lambda: not runs(pid), "the reader has ended")


def runs(pid):
    """Whether a process is there and not merely waits to be buried."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
