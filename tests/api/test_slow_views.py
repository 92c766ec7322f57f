"""Twenty views that read without end hold up neither inference nor /metrics nor /api, and end when they are left."""

from __future__ import annotations

import contextlib
import functools
import json
import select
import shutil
import socket
import threading

import pytest
import sqlalchemy as sa
from fake_engine import serving
from waiting import wait_until

import dashboard.app
from dashboard.asgi import CALLBACK_PATH, mount
from dashboard.context import ControlRoom
from dashboard.reads import THREADS, Reads
from dashboard.routing import SQL_PATH
from service.store.database import open_database, read_transaction

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
VIEWS = 20


class Slow:
    """A page whose query does not end; counts those that have begun and ended."""

    def __init__(self):
        self.lock, self.begun, self.ended = threading.Lock(), 0, 0

    async def page(self, room, _search):
        return await room.read(self.query)

    def query(self, engine):
        with self.lock:
            self.begun += 1
        try:
            with read_transaction(engine) as connection:
                return connection.execute(sa.text(ENDLESS)).scalar()
        finally:
            with self.lock:
                self.ended += 1


@pytest.fixture
def slow():
    return Slow()


@pytest.fixture
def site(_sqlite_template, tmp_path, monkeypatch, slow):
    shutil.copy(_sqlite_template, tmp_path / "helios.db")
    store = open_database(f"sqlite:///{tmp_path / 'helios.db'}")
    patient = functools.partial(ControlRoom, reads=Reads(patience_s=120, limit_s=600))
    monkeypatch.setattr(dashboard.app, "ControlRoom", patient)
    monkeypatch.setitem(dashboard.app.LAYOUTS, SQL_PATH, slow.page)

    def page(control):
        return [mount(dashboard.app.create_dashboard(engine=store, control=control))]

    with serving(store, tmp_path, mounts=page) as api:
        yield api, store
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


def test_twenty_slow_views_hold_up_nobody_and_end_with_their_readers(site, slow):
    api, store = site
    with contextlib.ExitStack() as stack:
        views = [stack.enter_context(open_view(api.url)) for _ in range(VIEWS)]
        wait_until(lambda: slow.begun == THREADS, "as many views read as may")
        for _ in range(3):
            assert api.chat().status_code == 200
            assert api.http.get("/metrics").status_code == 200
            assert api.http.get("/api/plans").status_code == 200
            assert api.http.get("/health/ready").status_code == 200
        assert select.select(views, [], [], 0)[0] == [], "all of that was answered before any view"
        assert slow.begun == THREADS
    wait_until(lambda: slow.ended == slow.begun, "the queries have ended")
    wait_until(lambda: store.pool.checkedout() == 0, "their connections are back")
    with open_view(api.url):
        wait_until(lambda: slow.begun > slow.ended, "there is a place again")
