"""The banner on every page says what /health/ready says, and nothing while that says nothing."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
import sqlalchemy as sa
from litestar import Litestar
from litestar.testing import TestClient

from dashboard.app import create_dashboard
from dashboard.asgi import mount
from service.control.policy import PolicyControl

BANNER = ["status-banner.children"]


async def accept(version: int, coefficients: dict) -> int:
    return 1


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def client(store: sa.Engine, said: list[str]):
    async def status() -> list[str]:
        return list(said)

    dashboard = create_dashboard(engine=store, control=PolicyControl(store, accept), status=status)
    with TestClient(Litestar([mount(dashboard)])) as made:
        yield made


def lines(call: Callable[..., httpx.Response], client) -> list[str]:
    answer = call(client, BANNER, {"status-tick.n_intervals": 3})
    found = answer.json()["response"]["status-banner"]["children"]
    return [child["props"]["children"] for child in found]


def test_the_banner_has_the_lines_of_the_moment(call, client, said):
    assert lines(call, client) == []
    said[:] = ["the trace is losing records: disk full", "the trace store is 42 s behind"]
    assert lines(call, client) == said
    said.clear()
    assert lines(call, client) == []


def test_it_is_in_the_frame_of_every_page_and_empty_at_first(client):
    layout = client.get("/dashboard/_dash-layout").json()
    (banner,) = [part for part in layout["props"]["children"] if part["props"].get("id") == "status-banner"]
    assert banner["props"]["role"] == "status"
    assert not banner["props"].get("children")
