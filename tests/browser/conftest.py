"""The dashboard served by itself over a filled store; the browser is in tests/chromium.py."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
import uvicorn
from factories import FilledStore, fill_store
from litestar import Litestar
from million import Million, million_store

from dashboard.app import create_dashboard
from dashboard.asgi import mount
from service.control.guards import GuardControl
from service.control.policy import PolicyControl
from service.control.preview.jobs import Limits, Previews


class Engine:
    """Stands in for the engine's client: records what it is given, or fails with `error`."""

    def __init__(self) -> None:
        self.applied: list[tuple[int, dict[str, Any]]] = []
        self.error: Exception | None = None

    async def apply(self, version: int, coefficients: dict[str, Any], *, withdraws: int | None = None) -> int:
        if self.error is not None:
            raise self.error
        self.applied.append((version, coefficients))
        return 1000 + version


@pytest.fixture
def fake_engine() -> Engine:
    return Engine()


@pytest.fixture
def filled(store: sa.Engine) -> FilledStore:
    """What the store holds before the dashboard starts."""
    return fill_store(store)


@contextlib.contextmanager
def serving(store: sa.Engine, engine: Engine) -> Iterator[str]:
    """The dashboard alone, behind Litestar and uvicorn in a thread; yields its address."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))

    def run() -> None:
        server.run(sockets=[listener])

    control = PolicyControl(store, engine.apply)
    url = store.url.render_as_string(hide_password=False)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="helios-previews-"))
    guards, previews = GuardControl(control), Previews(folder, url, store, Limits(niceness=0))
    app = Litestar([mount(create_dashboard(engine=store, control=control, guards=guards, previews=previews))])
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=1))
    started = threading.Event()
    original = server.startup

    async def startup(sockets: list[socket.socket] | None = None) -> None:
        await original(sockets)
        started.set()

    server.startup = startup  # type: ignore[method-assign]
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(30), "the server did not start"
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def serve() -> Callable[[sa.Engine, Engine], contextlib.AbstractContextManager[str]]:
    """`serving`, for tests that prepare their own store."""
    return serving


@pytest.fixture
def address(store: sa.Engine, filled: FilledStore, fake_engine: Engine) -> Iterator[str]:
    """The dashboard over the filled store."""
    with serving(store, fake_engine) as url:
        yield url


@pytest.fixture(scope="module")
def module_serve() -> Callable[[sa.Engine], contextlib.AbstractContextManager[str]]:
    """The dashboard over a store that a module fills once."""
    return lambda store: serving(store, Engine())


@pytest.fixture(scope="session")
def million() -> Iterator[Million]:
    """The store of a million plans, one for the session; making it takes as long as some ten tests."""
    with million_store() as made:
        yield made


@pytest.fixture(scope="session")
def million_address(million: Million) -> Iterator[str]:
    """The dashboard over a million plans."""
    with serving(million.store, Engine()) as url:
        yield url
