"""Rows as the store returns them, and the dashboard mounted in a Litestar application without a browser."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from factories import fill_store
from litestar import Litestar
from litestar.testing import TestClient

from dashboard.app import create_dashboard
from dashboard.asgi import mount
from service.control.policy import PolicyControl

Row = dict[str, Any]
AT = dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.UTC)

SHAPE: Row = {
    "kind": "decode",
    "batch_capacity": 4,
    "draft_depth": 0,
    "target_width": 1,
    "target_rows": 4,
    "prefill_capacity": 0,
    "prompt_rows": 1,
}
SCORE: Row = {
    "score_kind": "rate",
    "value_rate": 3.1,
    "log_scale": 0.0,
    "token_value": 30.0,
    "delivery_value": 4.0,
    "age_relief": 2.0,
    "terminal_relief": 0.0,
    "prompt_wait_relief": 0.0,
    "decode_late_relief": 0.0,
    "wait_cost": 0.5,
    "score_horizon_ms": 10.0,
    "following_shape": None,
}


@pytest.fixture
def plan_row() -> Callable[..., Row]:
    """Makes a `plans` row with `request_ids`: decode ×4 worth 3.1 per ms, as changed by keywords."""

    def make(fence: int = 1, **changes: object) -> Row:
        base = {
            **SHAPE,
            **SCORE,
            "run_id": "run-1",
            "fence": fence,
            "committed_at": AT + dt.timedelta(milliseconds=20 * fence),
            "committed_ns": 20_000_000 * fence,
            "started_ns": 20_000_000 * fence + 1_000_000,
            "completed_ns": 20_000_000 * fence + 11_000_000,
            "reason": "ordinary",
            "outcome": "completed",
            "active_rows": 4,
            "selected_cost_ms": 9.0,
            "cost_state": "fresh",
            "device_ms": 10.0,
            "margin": 0.6,
            "queue_depth": 0,
            "frame_slot": 0,
            "policy_version": 1,
            "prompt_tokens": 0,
            "output_tokens": 4,
            "request_ids": ["a", "b"],
        }
        return base | changes

    return make


@pytest.fixture
def alternative_row() -> Callable[..., Row]:
    """Makes a `plan_alternatives` row: prefill 256 worth 1.2 per ms, as changed by keywords."""

    def make(rank: int = 1, **changes: object) -> Row:
        base = {
            **SHAPE,
            **SCORE,
            "kind": "prefill",
            "batch_capacity": 1,
            "prefill_capacity": 256,
            "target_rows": 0,
            "rank": rank,
            "value_rate": 1.2,
            "token_value": 25.0,
            "delivery_value": 0.0,
            "age_relief": 0.0,
            "wait_cost": 0.05,
            "score_horizon_ms": 20.0,
            "active_rows": 1,
            "request_ids": ["c"],
            "selected_cost_ms": 20.0,
            "cost_state": "fresh",
            "barred_by": "none",
        }
        return base | changes

    return make


async def accept(version: int, coefficients: dict[str, Any]) -> int:
    return 1


def mounted(store: sa.Engine) -> Litestar:
    return Litestar([mount(create_dashboard(engine=store, control=PolicyControl(store, accept)))])


@pytest.fixture
def client(store: sa.Engine) -> Iterator[TestClient[Litestar]]:
    """An HTTP client of the dashboard over a filled store."""
    fill_store(store, plans=40, requests=6)
    with TestClient(mounted(store)) as made:
        yield made


@pytest.fixture
def call() -> Callable[..., httpx.Response]:
    """Posts a callback as a browser would: `call(client, outputs, {"id.prop": value} of inputs and of states)`."""

    def post(
        client: TestClient[Litestar],
        outputs: list[str],
        inputs: dict[str, object],
        states: dict[str, object] | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        output = f"..{'...'.join(outputs)}.." if len(outputs) > 1 else outputs[0]
        body = {
            "output": output,
            "outputs": [part(name) for name in outputs] if len(outputs) > 1 else part(outputs[0]),
            "inputs": [{**part(name), "value": value} for name, value in inputs.items()],
            "state": [{**part(name), "value": value} for name, value in (states or {}).items()],
            "changedPropIds": list(inputs),
        }
        content = json.dumps(body)
        return client.post(
            "/dashboard/_dash-update-component",
            content=content,
            headers={"content-type": "application/json", **(headers or {})},
        )

    def part(name: str) -> dict[str, str]:
        component, _, prop = name.rpartition(".")
        return {"id": component, "property": prop}

    return post
