"""Twenty views that read without end hold up neither inference nor /metrics nor /api, and end when they are left.

They outlive the process that reads for them: the next one is asked in its place.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket

import pytest
import slow_reader
from fake_engine import serving
from waiting import wait_until

from dashboard.app import create_dashboard
from dashboard.asgi import CALLBACK_PATH, mount
from dashboard.reader.messages import Start
from dashboard.reader.reader import Reader
from dashboard.reads import THREADS
from dashboard.routing import SQL_PATH
from service.store.database import open_database

VIEWS = 20


@pytest.fixture
def notes(tmp_path, monkeypatch):
    path = tmp_path / "notes"
    monkeypatch.setenv(slow_reader.NOTES, str(path))
    return path


@pytest.fixture
def site(_sqlite_template, tmp_path, notes):
    shutil.copy(_sqlite_template, tmp_path / "helios.db")
    store = open_database(f"sqlite:///{tmp_path / 'helios.db'}")
    reader = Reader(Start(str(store.url), str(tmp_path / "previews")), slow_reader.PROGRAM)

    def page(control):
        return [mount(create_dashboard(engine=store, control=control), reader)]

    with serving(store, tmp_path, mounts=page) as api:
        yield api, reader
    reader.close()
    store.dispose()


def open_view(url):
    """Asks for the page as a browser does, and waits for nothing."""
    host, port = url.removeprefix("http://").split(":")
    inputs = [
        {"id": "url", "property": "pathname", "value": SQL_PATH},
        {"id": "url", "property": "search", "value": ""},
    ]
    body = json.dumps(
        {
            "output": "page.children",
            "outputs": {"id": "page", "property": "children"},
            "inputs": inputs,
            "changedPropIds": ["url.pathname"],
        }
    ).encode()
    head = f"POST {CALLBACK_PATH} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    connection = socket.create_connection((host, int(port)))
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def test_twenty_slow_views_hold_up_nobody_and_end_with_their_viewers(site, notes):
    api, reader = site
    with contextlib.ExitStack() as stack:
        views = [stack.enter_context(open_view(api.url)) for _ in range(VIEWS)]
        wait_until(lambda: slow_reader.noted(notes, "begun") == THREADS, "as many views read as may")
        killed = reader.pid
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: slow_reader.noted(notes, "begun") == 2 * THREADS, "another process reads for them")
        assert reader.pid not in (None, killed)
        for _ in range(3):
            assert api.chat().status_code == 200
            assert api.http.get("/metrics").status_code == 200
            assert api.http.get("/api/plans").status_code == 200
            assert api.http.get("/health/ready").status_code == 200
        assert select.select(views, [], [], 0)[0] == [], "all of that was answered before any view"
        assert slow_reader.noted(notes, "begun") == 2 * THREADS
    wait_until(
        lambda: slow_reader.noted(notes, "ended") == slow_reader.noted(notes, "begun") - THREADS, "no query reads on"
    )
    begun = slow_reader.noted(notes, "begun")
    with open_view(api.url):
        wait_until(lambda: slow_reader.noted(notes, "begun") > begun, "there is a place again")
